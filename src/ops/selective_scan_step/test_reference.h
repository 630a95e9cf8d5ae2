#pragma once

// The definition of selective_scan_step for all rows of a problem.

#include <cstdint>
#include <vector>

#include "ops/selective_scan/test_problem.h"
#include "ops/selective_scan_step/ref.h"

namespace adder::test::scan_step {

template <typename Real>
ScanProblem::Result<Real> reference(const ScanProblem& p) {
  const auto part = [&](const std::vector<float>& v, std::int64_t b) {
    const auto size = static_cast<std::int64_t>(v.size()) / p.batch;
    return std::vector<Real>(v.begin() + b * size, v.begin() + (b + 1) * size);
  };
  const auto all = [](const std::vector<float>& v) {
    return std::vector<Real>(v.begin(), v.end());
  };
  ScanProblem::Result<Real> out;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    std::vector<Real> state = part(p.states, b);
    std::vector<Real> y(static_cast<std::size_t>(p.d_inner));
    ref::selective_scan_step<Real>(part(p.x, b), part(p.dt, b), all(p.A), part(p.B, b),
                                   part(p.C, b), all(p.D), part(p.z, b), all(p.dt_bias),
                                   p.dt_softplus, static_cast<std::size_t>(p.dstate), state, y);
    out.y.insert(out.y.end(), y.begin(), y.end());
    out.states.insert(out.states.end(), state.begin(), state.end());
  }
  return out;
}

}  // namespace adder::test::scan_step
