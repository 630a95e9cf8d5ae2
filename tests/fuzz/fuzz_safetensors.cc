// Safetensors files from bytes: what is accepted must be readable to its last byte.

#include <cstdint>
#include <numeric>
#include <span>

#include "adder/error.h"
#include "checkpoint/safetensors.h"

namespace {

volatile std::uint64_t sink;

/// Reads every byte of the tensors, for AddressSanitizer to see.
std::uint64_t sum_of_bytes(const adder::TensorTable& table) {
  std::uint64_t sum = 0;
  for (const auto& [name, view] : table) {
    const auto* bytes = static_cast<const unsigned char*>(view.data);
    sum = std::accumulate(bytes, bytes + view.size_bytes(), sum);
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    sink = sum_of_bytes(
        adder::read_safetensors({reinterpret_cast<const std::byte*>(data), size}, "fuzz"));
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  return 0;
}
