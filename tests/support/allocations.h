#pragma once

#include <cstdint>

namespace adder::test {

/// How often the program has called `operator new` so far. For tests that list
/// tests/support/allocations.cc among their sources, which counts.
std::int64_t allocations();

}  // namespace adder::test
