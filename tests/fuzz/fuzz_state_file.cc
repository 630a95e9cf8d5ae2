// State files from bytes: once as they are, once with a checksum and a fingerprint that fit, so
// that what lies behind those two checks is reached too.

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "adder/error.h"
#include "adder/model.h"

namespace {

void parse(std::span<const std::byte> bytes, const adder::Model& model) {
  try {
    const adder::Snapshot snapshot = adder::Snapshot::parse(bytes, "fuzz", model);
    adder::Session session = model.new_session();
    session.restore(snapshot);
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const adder::Model model =
      adder::Model::load("tests/data/golden/mamba2-original-fp16", {.nthreads = 1});
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  parse(bytes, model);
  if (size < 64) return 0;
  const std::uint64_t fingerprint = model.fingerprint();
  std::memcpy(bytes.data() + 16, &fingerprint, sizeof(fingerprint));
  const std::uint64_t checksum = XXH3_64bits(bytes.data(), size - sizeof(checksum));
  std::memcpy(bytes.data() + size - sizeof(checksum), &checksum, sizeof(checksum));
  parse(bytes, model);
  return 0;
}
