// Tuning files from text. What can be read must come back from its own dump, merged into itself
// unchanged, and as a table.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "adder/error.h"
#include "adder/tuning.h"
#include "ops/ssd_forward/tuning.h"
#include "tune/tuning_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto entries = adder::tune::parse_tuning(text, "fuzz");
    const std::string dumped = adder::tune::dump_tuning(entries);
    const auto again = adder::tune::parse_tuning(dumped, "dumped");
    if (adder::tune::merged(entries, entries) != entries) std::abort();
    if (again.size() != entries.size() || adder::tune::dump_tuning(again) != dumped) std::abort();
    const auto table = adder::cuda::TuningTable::parse(text, "fuzz");
    if (table.size() > entries.size()) std::abort();
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  try {
    const auto shape = adder::cuda::parse_ssd_forward_shape(text);
    if (adder::cuda::read_ssd_forward_shape(adder::cuda::to_json(shape), "again") != shape) {
      std::abort();
    }
  } catch (const adder::Error&) {
    // the expected end of most inputs
  }
  return 0;
}
