#pragma once

// What the kernels that round x to bf16 share. Only for kernels files.

#include "ops/linear/kernels.h"
#include "simd/simd.h"

namespace adder::cpu::ADDER_TIER {

inline constexpr int kBf16Outputs = 16;  // per panel
/// Inputs that a kernel's step takes, at most. Rows of rounded x are padded with zeros up to it.
inline constexpr std::int64_t kBf16Step = 32;
/// Elements of x that are rounded at once: 256 KB on the stack, which L2 holds.
inline constexpr std::int64_t kBf16Scratch = 128 * 1024;

ADDER_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
ADDER_INLINE std::int64_t rounded_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

/// How x is cut: `tokens` rows of `inputs` inputs, a multiple of kBf16Step.
struct Bf16Cut {
  std::int64_t tokens;
  std::int64_t inputs;
};

/// At most `most_inputs` inputs at once, unless there are so few tokens that more fit. Where a cut
/// is changes no bit of a result, as long as it lies between steps.
ADDER_INLINE Bf16Cut cut_of(const LinearWork& work, std::int64_t token_step,
                            std::int64_t most_inputs) {
  const std::int64_t in = rounded_up(work.in_features > 0 ? work.in_features : 1, kBf16Step);
  const std::int64_t tokens = rounded_up(work.ntokens, token_step);
  const std::int64_t fit = kBf16Scratch / smaller(tokens, kBf16Scratch / most_inputs);
  const std::int64_t most = (fit > most_inputs ? fit : most_inputs) / kBf16Step * kBf16Step;
  const std::int64_t blocks = (in + most - 1) / most;
  const std::int64_t inputs = rounded_up((in + blocks - 1) / blocks, kBf16Step);
  return {.tokens = smaller(tokens, kBf16Scratch / inputs / token_step * token_step),
          .inputs = inputs};
}

/// Rounds `n` inputs to nearest even and pads the row with zeros up to `width`.
ADDER_INLINE void round_row(const float* x, std::int64_t n, std::int64_t width, bf16* out) {
  std::int64_t i = 0;
  for (; i + simd::kLanes <= n; i += simd::kLanes) simd::store(out + i, simd::load(x + i));
  if (i < n) {
    simd::store(out + i, simd::load_n(x + i, static_cast<int>(n - i)));
    i += simd::kLanes;
  }
  for (; i < width; i += simd::kLanes) simd::store(out + i, simd::zero());
}

/// Rounds x's tokens [token, token + tokens) and inputs [input, input + width), of which those that
/// are not there are zero. Rows of `out` are `width` elements apart.
ADDER_INLINE void round_block(const LinearWork& work, std::int64_t token, std::int64_t tokens,
                              std::int64_t input, std::int64_t width, bf16* out) {
  const std::int64_t there = work.in_features - input;
  const std::int64_t n = smaller(there, width);
  for (std::int64_t t = 0; t < tokens; ++t) {
    round_row(work.x + (token + t) * work.x_stride + input, n, width, out + t * width);
  }
}

}  // namespace adder::cpu::ADDER_TIER
