#pragma once

// The meaning of causal_conv1d, in plain loops. With Real = double this is the definition; with
// Real = float it is what rounding costs an implementation that takes no special care.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace adder::ref {

/// One sequence: `x` and `y` are (ntokens, channels), `weight` (channels, width), `bias` (channels)
/// or empty, `conv_state` (width - 1, channels) and updated, `seq_idx` (ntokens) or empty.
template <typename Real>
void causal_conv1d(std::span<const Real> x, std::span<const Real> weight,
                   std::span<const Real> bias, std::size_t width, bool silu,
                   std::span<const std::int32_t> seq_idx, std::span<Real> conv_state,
                   std::span<Real> y) {
  const std::size_t channels = weight.size() / width;
  const std::size_t ntokens = channels == 0 ? 0 : x.size() / channels;
  for (std::size_t c = 0; c < channels; ++c) {
    std::vector<Real> window(width);  // the last `width` inputs, oldest first
    for (std::size_t k = 0; k + 1 < width; ++k) window[k + 1] = conv_state[k * channels + c];
    std::int32_t current = -1;
    for (std::size_t t = 0; t < ntokens; ++t) {
      const std::int32_t index = seq_idx.empty() ? 0 : seq_idx[t];
      if (index < 0) {
        y[t * channels + c] = 0;
        continue;
      }
      if (current >= 0 && index != current) window.assign(width, Real{0});
      current = index;
      window.erase(window.begin());
      window.push_back(x[t * channels + c]);
      Real u = bias.empty() ? Real{0} : bias[c];
      for (std::size_t k = 0; k < width; ++k) u += weight[c * width + k] * window[k];
      y[t * channels + c] = silu ? u / (1 + std::exp(-u)) : u;
    }
    for (std::size_t k = 0; k + 1 < width; ++k) conv_state[k * channels + c] = window[k + 1];
  }
}

}  // namespace adder::ref
