#pragma once

// The meaning of chunk_cumsum, in plain loops. With Real = double this is the definition; with
// Real = float it is what rounding costs an implementation that takes no special care.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "ops/chunk_cumsum/chunk_cumsum.h"

namespace adder::ref {

/// How the plain versions of operations on chunks round a computed factor of a product. `Exact`
/// leaves it as it is.
struct Exact {
  template <typename Real>
  Real operator()(Real v) const {
    return v;
  }
};

/// To as many digits as a dtype has, whatever its range: what algorithms for matrix units do that
/// multiply 16-bit numbers and add in float32.
struct DigitsOf {
  DType dtype;

  float operator()(float v) const {
    if (dtype == DType::f32 || !std::isfinite(v)) return v;
    constexpr int kBf16Digits = 8;
    constexpr int kF16Digits = 11;
    const int digits = dtype == DType::bf16 ? kBf16Digits : kF16Digits;
    int exponent = 0;
    const float mantissa = std::frexp(v, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, digits)), exponent - digits);
  }
};

/// `raw` is dt_raw + dt_bias.
template <typename Real>
Real time_step(Real raw, const DtOptions& options) {
  const Real dt = !options.softplus ? raw : raw > 20 ? raw : std::log1p(std::exp(raw));
  return std::min(static_cast<Real>(options.max), std::max(static_cast<Real>(options.min), dt));
}

/// One chunk of one head: `dt` (length) in, the prefix sum scaled by log2(e) out.
template <typename Real>
void chunk_cumsum(std::span<const Real> dt, Real A, std::span<Real> sums) {
  Real sum = 0;
  for (std::size_t i = 0; i < dt.size(); ++i) {
    sum += std::max(Real(-1024), dt[i] * A * Real(1.4426950408889634074));
    sums[i] = sum;
  }
}

}  // namespace adder::ref
