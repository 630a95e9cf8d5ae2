#pragma once

// A linear layer whose weight is held in 8 or 4 bits:
//
//   y[t, o] = bias[o] + Σ_b w_scale[o, b] · x_scale[t, b] · Σ_{i in block b} w[o, i] · q[t, i]
//
// Blocks are 32 inputs. w[o, i] are integers from -128 to 127 (int8) or -8 to 7 (int4) that were
// fitted once, w_scale is f16. Inputs are quantized as they come, each block of a token by itself:
// x_scale = max |x| / 127, q = x / x_scale to the nearest integer. The inner sums are exact.
//
// Blocks of 32 with a scale each are what GGUF's Q8_0 and Q4_0 have: their values are held exactly.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "adder/ops/linear/linear.h"
#include "adder/thread_pool.h"
#include "adder/weight_format.h"

namespace adder::cpu {

/// Inputs that share a scale.
inline constexpr std::int64_t kQuantBlock = 32;

/// A weight in 8 or 4 bits, in the layout that the kernels of every CPU tier read and that files
/// hold: panels of 16 outputs. A panel has first the codes of its blocks, then their scales, f16
/// [block][16], and ends at a multiple of 64 bytes. A code is what is stored for the integer w: w +
/// 128 (int8) or w + 8 (int4), so that dot products take it as unsigned.
///
///   int8   [block][8][16][4]   4 adjacent inputs of an output in a 32-bit lane
///   int4   [block][4][16][4]   two codes a byte: input 4 j + k of the block in the lower half of
///                              byte k of lane group j, input 16 + 4 j + k in the upper
///
/// Both extents are rounded up and padded with codes for zero. A value: copies share the storage,
/// which is never written after packing.
class QuantizedLinear {
 public:
  QuantizedLinear() = default;
  /// A weight whose storage is there, in a mapped file perhaps: `bytes(...)` of them at a multiple
  /// of 64 bytes. Scales may be anything; the results are then whatever follows from them.
  QuantizedLinear(WeightFormat format, std::int64_t out_features, std::int64_t in_features,
                  std::shared_ptr<const std::byte> storage);

  /// Bytes of storage of a weight. Throws adder::Error for a format that is neither int8 nor int4.
  static std::int64_t bytes(WeightFormat format, std::int64_t out_features,
                            std::int64_t in_features);

  std::int64_t out_features() const { return out_features_; }
  std::int64_t in_features() const { return in_features_; }
  WeightFormat format() const { return format_; }
  /// What one pass over the weight reads.
  std::int64_t bytes() const { return bytes(format_, out_features_, in_features_); }

  std::int64_t blocks() const;  ///< of a row
  std::int64_t panels() const;
  std::int64_t panel_bytes() const;
  const std::byte* data() const { return storage_.get(); }

  /// Writes row `row`, w · w_scale in f32. Throws adder::Error on a row that is not there or an
  /// `out` of another size.
  void unpack_row(std::int64_t row, std::span<float> out) const;

 private:
  std::int64_t out_features_ = 0;
  std::int64_t in_features_ = 0;
  WeightFormat format_ = WeightFormat::int8;
  std::shared_ptr<const std::byte> storage_;
};

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
QuantizedLinear quantize_linear(const ConstTensorView& source, WeightFormat format,
                                std::span<const float> importance, std::string_view name,
                                ThreadPool& pool);

std::size_t quantized_linear_workspace_bytes(const LinearArgs& args, const QuantizedLinear& weight);

/// The sum runs over blocks in order, in float32, starting from the bias; it depends on nothing
/// else, so decoding token by token gives the same bits as prefill of the whole prompt. A block of
/// x with a value that is not finite makes the token's results NaN. `workspace` is of the size
/// above, at a multiple of 64 bytes.
void quantized_linear(const LinearArgs& args, const QuantizedLinear& weight,
                      std::span<std::byte> workspace, ThreadPool& pool);

}  // namespace adder::cpu
