// adder logits: a model's logits for given tokens, in a file.

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "checkpoint/safetensors.h"
#include "commands.h"
#include "core/tensor.h"
#include "model_options.h"
#include "progress.h"

namespace adder::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string ids;
  std::string out;
};

int run(const Options& options) {
  const Model model = options.model.load();
  const std::vector<int> ids = parse_ids(options.ids);
  const auto seqlen = static_cast<std::int64_t>(ids.size());
  const std::int64_t vocab_size = model.config().vocab_size;
  const Tensor logits = Tensor::empty(DType::f32, {seqlen, vocab_size});
  {
    Progress bar("computing");
    Session session = model.new_session();
    session.prefill(ids, [&](std::int64_t first, std::span<const float> block) {
      std::copy(block.begin(), block.end(), logits.as<float>() + first * vocab_size);
      bar.update(static_cast<double>(first) / static_cast<double>(seqlen));
    });
  }
  const NamedTensor tensor{"logits", logits.view};
  write_safetensors(options.out, {&tensor, 1});
  fmt::print(stderr, "{}: logits ({}, {}) f32\n", options.out, seqlen, vocab_size);
  return 0;
}

}  // namespace

Command add_logits(CLI::App& root) {
  CLI::App* app = root.add_subcommand("logits", "Write the logits after each of the given tokens");
  app->footer(
      "The file is in the safetensors format and holds one tensor, `logits` of (seqlen, "
      "vocab_size)\n"
      "f32: row t predicts token t+1. It appears whole or not at all.\n\n"
      "Example:\n"
      "  adder logits --ids 40,507 --out logits.safetensors");
  auto options = std::make_shared<Options>();
  options->model.add_to(*app);
  app->add_option("--ids", options->ids, "The tokens")
      ->option_text("1,2,3")
      ->check(token_ids())
      ->required();
  app->add_option("--out", options->out, "The file to write")->option_text("FILE")->required();
  return {app, [options] { return run(*options); }};
}

}  // namespace adder::cli
