#pragma once

// A linear layer: every projection of a model and its vocabulary head.
//
//   y[t, o] = bias[o] + Σ_i x[t, i] · W[o, i]          (bias absent: 0)
//
// or, on a CUDA device, added to what y holds: a block's last projection and the residual stream.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/matrix_rows.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"

namespace adder {

/// Arguments of linear but for the weight, whose form belongs to the device. All tensors are in the
/// same memory: the host's, or that of one CUDA device.
struct LinearArgs {
  /// (ntokens, in_features) f32; on a CUDA device f32, bf16 or f16. Rows contiguous, any row
  /// stride.
  ConstTensorView x;
  /// (out_features) f32, contiguous, optional.
  ConstTensorView bias;
  /// (ntokens, out_features) f32; on a CUDA device f32 or the dtype of x. Rows contiguous, any row
  /// stride that keeps rows apart. Must not overlap x.
  TensorView y;
  /// On the host, with a weight in bf16: x may be rounded to bf16 (to nearest even; beyond 3.39e38
  /// to infinity), which the CPU tiers do that multiply bf16 numbers. Means nothing on a CUDA
  /// device, where x has the dtype that is multiplied.
  bool round_inputs = false;
  /// On a CUDA device, of a y in f32: y + bias + the sum in place of bias + the sum.
  bool accumulate = false;
};

/// Throws adder::Error unless shapes, dtypes and layouts are as documented for a weight of shape
/// (out_features, in_features).
void validate(const LinearArgs& args, std::int64_t out_features, std::int64_t in_features);

namespace cpu {

/// Outputs per panel of a packed weight.
inline constexpr std::int64_t kPanelOutputs = 16;

/// A weight in the layout that the kernels of every CPU tier read, 64-byte aligned: panels of 16
/// outputs, in which the 16 weights of one input lie side by side.
///
///   f32, f16   [out_features / 16][in_features][16]
///   bf16       [out_features / 16][in_features / 2][16][2]     a pair of inputs per 32-bit lane
///
/// Both extents are rounded up and padded with zeros. A value: copies share the storage, which is
/// never written after packing.
class PackedLinear {
 public:
  PackedLinear() = default;

  std::int64_t out_features() const { return out_features_; }
  std::int64_t in_features() const { return in_features_; }
  DType dtype() const { return dtype_; }
  /// Bytes of storage: what one pass over the weight reads.
  std::int64_t bytes() const;

  std::int64_t panels() const;
  /// Elements from one panel to the next.
  std::int64_t panel_elements() const;
  const void* data() const { return storage_.get(); }

  /// Writes row `row` (in_features values, widened to f32 exactly): what an embedding that shares
  /// its weight with the vocabulary head looks up. Throws adder::Error on a row that is not there
  /// or an `out` of another size.
  void unpack_row(std::int64_t row, std::span<float> out) const;

 private:
  friend PackedLinear pack_linear(const MatrixRows&, DType, ThreadPool&);

  std::int64_t out_features_ = 0;
  std::int64_t in_features_ = 0;
  DType dtype_ = DType::f32;
  std::shared_ptr<std::byte> storage_;
};

/// Packs `source`, (out_features, in_features) in f32, bf16 or f16 with contiguous rows and any row
/// stride, storing f32, bf16 or f16. Widening is exact; narrowing rounds to nearest even. Each
/// source row is read once. With the pool that later runs `linear`, each thread writes (and so
/// places in its memory) the panels that it will read when decoding.
PackedLinear pack_linear(const ConstTensorView& source, DType storage_dtype, ThreadPool& pool);

/// The same of a matrix that need not lie anywhere: it is told which rows were read.
PackedLinear pack_linear(const MatrixRows& source, DType storage_dtype, ThreadPool& pool);

/// y = x · Wᵀ + bias: matrix-vector products for few tokens, matrix products for many, with the
/// same bits. The sum runs over i = 0, 1, 2, ... in that order, in float32 (one rounding per term
/// where the CPU tier has FMA), starting from the bias. The order depends on nothing: not on the
/// other tokens of the call, their number, or the number of threads. So decoding token by token
/// gives the same bits as prefill of the whole prompt.
///
/// With `round_inputs`, a weight in bf16 and a tier that multiplies bf16 numbers, the sum is one of
/// rounded x, in pairs of inputs or steps of 32 of them, as the tier's instruction adds them up,
/// and what is below the normal numbers counts as zero. It differs from the exact sum by at most
/// 2^-9 of each product and the roundings of the sum. The order depends on nothing all the same.
void linear(const LinearArgs& args, const PackedLinear& weight, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

/// Tokens up to which `linear` is a matrix-vector product for each, all in one pass over the
/// weight.
inline constexpr std::int64_t kFewTokens = 8;

/// `weight` is (out_features, in_features) as checkpoints have it, rows contiguous: f32, bf16 or
/// f16 where x is f32, else of the dtype of x.
std::size_t linear_workspace_bytes(const LinearArgs& args, const ConstTensorView& weight);

/// Puts the work on the stream and returns; workspace in memory of the device, at a multiple of 256
/// bytes. Sums are float32. Up to kFewTokens a token's result depends on nothing but its row, bit
/// for bit; beyond, cuBLASLt multiplies, in an order that depends on the number of tokens.
///
/// Beyond kFewTokens rows of x, y and the weight must not overlap and lie in rising order, and the
/// bias is rounded to the dtype of y first.
///
/// With `accumulate`, the products join what y holds before anything is rounded but to f32, and
/// the bias is added first; up to kFewTokens y is added last.
///
/// With x in f32, below 3.39e38, no digit of x or of the weight is dropped: a bf16 weight is
/// multiplied on tensor cores by the three bf16 numbers whose sum x is, an f16 weight is widened
/// first.
///
/// Fastest where rows of x and of the weight start at multiples of 16 bytes.
void linear(const LinearArgs& args, const ConstTensorView& weight, std::span<std::byte> workspace,
            Stream stream);

}  // namespace cuda
}  // namespace adder
