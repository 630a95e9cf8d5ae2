#pragma once

// A linear layer whose weight is held in 8 or 4 bits:
//
//   y[t, o] = bias[o] + Σ_s x_scale[t, s] · Σ_{b in s} w_scale[o, b] · Σ_{i in b} w[o, i] · q[t, i]
//
// Blocks b are 32 inputs, s are 8 blocks. w[o, i] are integers from -128 to 127 (int8) or -8 to 7
// (int4) that were fitted once, w_scale is f16. Inputs are quantized as they come, each 256 of a
// token by themselves: x_scale = max |x| / 127, q = x / x_scale to the nearest integer. The inner
// sums are exact.
//
// Blocks of 32 with a scale each are what GGUF's Q8_0 and Q4_0 have: their values are held exactly.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "adder/matrix_rows.h"
#include "adder/ops/linear/linear.h"
#include "adder/quantized_matrix.h"
#include "adder/thread_pool.h"

namespace adder::cpu {

/// Fits integers and scales to `source`, (out_features, in_features) in f32, bf16 or f16 with
/// contiguous rows and any row stride. `name` is how errors call it. Each block by itself:
///
///   int8   the scale is max |w| / 127
///   int4   of scales around max |w| / 8, of either sign, the one with the least sum of
///          importance · (error)², see fit.h
///
/// `importance`, (in_features) values >= 0, says how much an error in an input's weights matters,
/// for instance the mean square of that input; empty: all the same. Throws adder::Error for a value
/// that is not finite, or too large for a scale in f16.
QuantizedMatrix quantize_linear(const ConstTensorView& source, WeightFormat format,
                                std::span<const float> importance, std::string_view name,
                                ThreadPool& pool);

/// The same of a matrix that need not lie anywhere: it is told which rows were read. What is stored
/// in this format already (see MatrixRows::has_panels) stays exactly what it is.
QuantizedMatrix quantize_linear(const MatrixRows& source, WeightFormat format,
                                std::span<const float> importance, ThreadPool& pool);

/// Panels [first, first + count) of that matrix alone, to their bytes at `to`, any address.
void quantize_panels(const MatrixRows& source, WeightFormat format,
                     std::span<const float> importance, std::int64_t first, std::int64_t count,
                     std::byte* to, ThreadPool& pool);

std::size_t quantized_linear_workspace_bytes(const LinearArgs& args, const QuantizedMatrix& weight);

/// Sums run over blocks in order, in float32, the outer one from the bias on; it depends on nothing
/// else, so decoding token by token gives the same bits as prefill of the whole prompt. 256 of x
/// with a value that is not finite makes the token's results NaN. `workspace` is of the size
/// above, at a multiple of 64 bytes.
void quantized_linear(const LinearArgs& args, const QuantizedMatrix& weight,
                      std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace adder::cpu
