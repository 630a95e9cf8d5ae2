// Loads a model, reads a prompt and writes what it thinks comes next, twice from the same point.
// Usage: generate MODEL_FOLDER [PROMPT]

#include <adder/error.h>
#include <adder/model.h>
#include <adder/session.h>
#include <adder/tokenizer.h>

#include <iostream>
#include <string>

namespace {

void continue_text(const adder::Model& model, adder::Session& session, std::uint64_t seed) {
  adder::StreamDecoder decoder(model.tokenizer());
  adder::GenerateOptions options;
  options.max_tokens = 32;
  options.seed = seed;
  for (int token : session.generate(options)) std::cout << decoder.push(token) << std::flush;
  std::cout << decoder.finish() << "\n\n";
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::cerr << "usage: generate MODEL_FOLDER [PROMPT]\n";
    return 2;
  }
  const std::string prompt = argc > 2 ? argv[2] : "It was a dark night";

  const adder::Model model = adder::Model::load(argv[1]);
  adder::Session session = model.new_session();
  session.prefill(model.tokenizer().encode(prompt));

  // A fork is an independent sequence that continues from the same state.
  adder::Session other = session.fork();
  std::cout << prompt;
  continue_text(model, session, 1);
  std::cout << prompt;
  continue_text(model, other, 2);
  return 0;
} catch (const adder::Error& error) {
  std::cerr << "generate: " << error.what() << '\n';
  return 1;
}
