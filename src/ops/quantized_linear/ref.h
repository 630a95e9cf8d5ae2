#pragma once

// The definition of quantized_linear in plain loops.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace adder::ref {

/// A row of integers, of which each `block` share a scale.
template <typename Real>
struct QuantizedRow {
  std::vector<int> values;
  std::vector<Real> scales;
};

/// An input of a layer, in float32 as kernels do it.
template <typename Real>
QuantizedRow<Real> quantize_input(std::span<const float> x, std::size_t block) {
  QuantizedRow<Real> out;
  for (std::size_t begin = 0; begin < x.size(); begin += block) {
    const auto part = x.subspan(begin, std::min(block, x.size() - begin));
    float largest = 0;
    bool is_finite = true;
    for (float v : part) {
      largest = std::max(largest, std::abs(v));
      is_finite = is_finite && std::isfinite(v);
    }
    const float inverse = largest > 0 ? 127.0F / largest : 0.0F;
    // Of numbers so small that 127 / largest has no value in float32 nothing is left.
    const bool is_nothing = !std::isfinite(inverse);
    for (float v : part) {
      out.values.push_back(is_finite && !is_nothing ? static_cast<int>(std::nearbyint(v * inverse))
                                                    : 0);
    }
    out.scales.push_back(is_finite ? static_cast<Real>(is_nothing ? 0.0F : largest / 127.0F)
                                   : std::numeric_limits<Real>::quiet_NaN());
  }
  return out;
}

/// One element of y; scales of w are of `w_block` inputs, those of x of `x_block`.
template <typename Real>
Real quantized_dot(const QuantizedRow<Real>& w, std::size_t w_block, const QuantizedRow<Real>& x,
                   std::size_t x_block, Real bias) {
  Real sum = bias;
  for (std::size_t s = 0; s < x.scales.size(); ++s) {
    const std::size_t end = std::min((s + 1) * x_block, x.values.size());
    Real part = 0;
    for (std::size_t begin = s * x_block; begin < end; begin += w_block) {
      std::int64_t dot = 0;
      for (std::size_t i = begin; i < std::min(begin + w_block, end); ++i) {
        dot += std::int64_t{w.values[i]} * x.values[i];
      }
      part += static_cast<Real>(dot) * w.scales[begin / w_block];
    }
    sum += part * x.scales[s];
  }
  return sum;
}

}  // namespace adder::ref
