#pragma once

// The properties of ssd_forward, on the CPU.

#include <memory>

#include "core/cpu_tier.h"
#include "ops/ssd_forward/test_properties.h"

namespace adder::test {

inline SsdRunner cpu_runner(int nthreads) {
  const auto pool = std::make_shared<ThreadPool>(nthreads);
  return {.run = [pool](const SsdCase& c) { return c.run(*pool); },
          .judge = [](const SsdCase& c, const SsdOutput& got) { c.expect_right(got); },
          .garbage = {1e30F, INFINITY, std::nanf("")},
          .cuts_at_runs = true};
}

template <typename Body>
void in_every_tier(Body&& body) {
  for (CpuTier tier : supported_cpu_tiers()) {
    SCOPED_TRACE(name_of(tier));
    const ScopedCpuTier scoped(tier);
    body();
  }
}

}  // namespace adder::test
