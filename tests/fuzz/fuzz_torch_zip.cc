// PyTorch archives from bytes: once as a whole file, and once as the pickle alone, so that the
// unpickler sees more than what the zip records let through.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "adder/error.h"
#include "checkpoint/torch_zip.h"
#include "checkpoint/unpickle.h"

namespace {

volatile unsigned char sink;

/// Touches the first and the last element of every tensor, for AddressSanitizer to see.
void touch(const adder::TensorTable& table) {
  for (const auto& [name, view] : table) {
    if (view.numel() == 0) continue;
    const auto* first = static_cast<const unsigned char*>(view.data);
    std::int64_t last = 0;
    for (int i = 0; i < view.rank; ++i) last += (view.dim(i) - 1) * view.stride(i);
    const auto element_bytes = static_cast<std::int64_t>(size_of(view.dtype));
    sink = first[0];
    sink = first[last * element_bytes + element_bytes - 1];
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    touch(adder::read_torch_zip(bytes, "fuzz"));
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  try {
    adder::unpickle_state_dict(bytes, "fuzz");
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  return 0;
}
