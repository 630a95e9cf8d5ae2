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

/// One element of y.
template <typename Real>
Real quantized_dot(const QuantizedRow<Real>& w, const QuantizedRow<Real>& x, std::size_t block,
                   Real bias) {
  Real sum = bias;
  for (std::size_t b = 0; b < x.scales.size(); ++b) {
    std::int64_t dot = 0;
    for (std::size_t i = b * block; i < std::min((b + 1) * block, x.values.size()); ++i) {
      dot += std::int64_t{w.values[i]} * x.values[i];
    }
    sum += static_cast<Real>(dot) * x.scales[b] * w.scales[b];
  }
  return sum;
}

}  // namespace adder::ref
