#pragma once

#include <algorithm>
#include <cstdint>

namespace adder::cpu {

/// The fewest panels worth a thread: 64K multiply-adds take a few microseconds, about what waking a
/// thread costs. Packing uses the grain of one token, so that it shares panels out as decoding
/// does.
inline std::int64_t panel_grain(std::int64_t ntokens, std::int64_t panel_elements) {
  return 1 + 65536 / std::max<std::int64_t>(1, ntokens * panel_elements);
}

}  // namespace adder::cpu
