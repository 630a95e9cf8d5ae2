// GGUF files from bytes: what the container accepts must be readable to its last byte, its blocks
// must decode, its metadata end in a model or a sentence, and its tokenizer give the same ids for a
// text in one go and in pieces.

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "adder/error.h"
#include "adder/tokenizer.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/model_tensors.h"
#include "gguf/block_format.h"
#include "gguf/gguf_file.h"

namespace {

volatile std::uint64_t sink;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Reads every byte of the tensors, and decodes every block, for AddressSanitizer to see.
void read_tensors(const adder::GgufFile& file) {
  for (const adder::GgufTensor& tensor : file.tensors()) {
    sink = std::accumulate(tensor.data.begin(), tensor.data.end(), std::uint64_t{0},
                           [](std::uint64_t sum, std::byte byte) {
                             return sum + std::to_integer<std::uint64_t>(byte);
                           });
    if (!tensor.blocks) continue;
    const auto [values, bytes] = adder::block_size(*tensor.blocks);
    const std::size_t nblocks = tensor.data.size() / static_cast<std::size_t>(bytes);
    std::vector<float> decoded(nblocks * static_cast<std::size_t>(values));
    adder::decode_blocks(*tensor.blocks, tensor.data, decoded);
  }
}

void read_model(const adder::GgufFile& file) {
  const adder::StatedConfig stated = adder::read_gguf_config(file);
  adder::ModelTensors tensors;
  adder::add_gguf_tensors(tensors, file, stated.model.architecture);
  const adder::ModelConfig config = adder::resolve_config(stated, tensors, "fuzz");
  require(config.vocab_size >= 1 && config.vocab_size <= config.padded_vocab_size);
  require(config.d_model >= 1 && config.n_layer >= 1 && config.stores_A);
}

void read_tokenizer(std::span<const std::byte> bytes) {
  constexpr std::string_view kText = "It was <|e|> a  dark night, they're 1234\n\xc3\xa9\xff </s>.";
  const adder::Tokenizer tokenizer = adder::Tokenizer::from_gguf(bytes, "fuzz");
  const std::vector<int> ids = tokenizer.encode(kText);
  adder::StreamEncoder encoder(tokenizer);
  std::vector<int> streamed;
  for (std::size_t begin = 0; begin < kText.size(); begin += 5) {
    encoder.push(kText.substr(begin, 5), streamed);
  }
  encoder.finish(streamed);
  require(streamed == ids);
  for (const int id : ids) require(tokenizer.has_token(id) && id < tokenizer.vocab_size());
  tokenizer.decode(ids);
}

template <typename Action>
void attempt(const Action& action) {
  try {
    action();
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  attempt([&] {
    const adder::GgufFile file(bytes, "fuzz");
    attempt([&] { read_tensors(file); });
    attempt([&] { read_model(file); });
    attempt([&] { read_tokenizer(bytes); });
  });
  return 0;
}
