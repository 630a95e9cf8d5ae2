// A tokenizer.json and, after the first zero byte, a text. What loads must encode the text, in one
// go and in pieces alike, and decode the ids, at once and one by one alike.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "adder/tokenizer.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void encode_and_decode(const adder::Tokenizer& tokenizer, std::string_view text,
                       adder::EncodeOptions options) {
  const std::vector<int> ids = tokenizer.encode(text, options);
  adder::StreamEncoder encoder(tokenizer, options);
  std::vector<int> streamed;
  for (std::size_t begin = 0, size = 1; begin < text.size(); begin += size, size = size % 7 + 1) {
    encoder.push(text.substr(begin, size), streamed);
  }
  encoder.finish(streamed);
  require(streamed == ids);

  adder::StreamDecoder decoder(tokenizer);
  std::string decoded;
  for (const int id : ids) {
    require(tokenizer.has_token(id) && id < tokenizer.vocab_size());
    decoded += decoder.push(id);
  }
  decoded += decoder.finish();
  require(decoded == tokenizer.decode(ids));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view json = input.substr(0, input.find('\0'));
  const std::string_view text = json.size() < size ? input.substr(json.size() + 1) : "";
  try {
    const adder::Tokenizer tokenizer = adder::Tokenizer::from_json(json, "fuzz");
    encode_and_decode(tokenizer, text, {});
    encode_and_decode(tokenizer, text, {.add_special_tokens = false, .parse_special = false});
  } catch (const adder::Error&) {
    // Hostile input ends in a sentence.
  }
  return 0;
}
