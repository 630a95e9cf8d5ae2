#pragma once

// What a model is written against. A backend holds tensors on its device and offers the model-level
// operations; models hold no pointers and no `#ifdef`. CpuBackend runs each call at once; a CUDA
// backend enqueues it on a stream; an XLA backend records it. For that to work in all three,
//   - operations return new tensors and never hand out data that the host may read directly
//     (`download` does that),
//   - a state tensor passed by reference is replaced or updated in place, as the backend likes,
//   - sizes are known on the host: the number of tokens and the sequence boundaries.
//
// Activations, the residual stream and states are float32. The tokens of all sequences of a call
// lie one after another, without padding: (ntokens, channels).

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace adder {

/// Which tokens of a call belong to which sequence: sequence s has the tokens
/// [cu_seqlens[s], cu_seqlens[s + 1]) and row s of every state tensor.
class Sequences {
 public:
  /// `cu_seqlens` starts at 0 and never decreases.
  explicit Sequences(std::vector<std::int32_t> cu_seqlens);
  static Sequences single(std::int64_t ntokens);

  std::int64_t count() const { return static_cast<std::int64_t>(cu_seqlens_.size()) - 1; }
  std::int64_t ntokens() const { return cu_seqlens_.back(); }
  std::span<const std::int32_t> cu_seqlens() const { return cu_seqlens_; }
  /// Every sequence has exactly one token: a decode step.
  bool is_step() const { return is_step_; }

 private:
  std::vector<std::int32_t> cu_seqlens_;
  bool is_step_;
};

/// A weight matrix in the form that the backend multiplies with.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual std::int64_t in_features() const = 0;
  virtual std::int64_t out_features() const = 0;
  /// Bytes that one multiplication reads.
  virtual std::int64_t size_bytes() const = 0;
};

/// Inputs of the Mamba-2 sequence mixing (see ops/ssd_forward); names as there.
struct SsdInput {
  Tensor x;        ///< (ntokens, nheads · headdim), after convolution and SiLU
  Tensor B;        ///< (ntokens, ngroups · dstate)
  Tensor C;        ///< (ntokens, ngroups · dstate)
  Tensor dt;       ///< (ntokens, nheads), raw: before bias, softplus and limits
  Tensor A;        ///< (nheads), negative
  Tensor D;        ///< (nheads) or (nheads, headdim)
  Tensor dt_bias;  ///< (nheads)
  std::int64_t ngroups = 1;
  std::int64_t chunk_size = 256;
  float dt_min = 0;
  float dt_max = std::numeric_limits<float>::infinity();
};

/// Inputs of Mamba-1's selective scan (see ops/selective_scan); softplus is applied to dt +
/// dt_bias.
struct SelectiveScanInput {
  Tensor x;        ///< (ntokens, d_inner), after convolution and SiLU
  Tensor dt;       ///< (ntokens, d_inner), raw
  Tensor A;        ///< (d_inner, dstate), negative
  Tensor B;        ///< (ntokens, dstate)
  Tensor C;        ///< (ntokens, dstate)
  Tensor D;        ///< (d_inner)
  Tensor z;        ///< (ntokens, d_inner): the output is multiplied by silu(z)
  Tensor dt_bias;  ///< (d_inner)
};

struct GatedNormOptions {
  std::int64_t ngroups = 1;
  float epsilon = 1e-5F;
  /// False: norm(y · silu(z)). True: norm(y) · silu(z).
  bool norm_before_gate = false;
  /// False: y · silu(z) alone.
  bool normalize = true;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;

  // ---- weights ---------------------------------------------------------------------------------

  /// A small tensor as float32 on the device.
  virtual Tensor upload(const ConstTensorView& host) = 0;
  /// Token ids as int32 on the device.
  virtual Tensor upload_ids(std::span<const std::int32_t> ids) = 0;
  /// The embedding matrix (vocab, d_model), in its own dtype. `owner` keeps `host` alive: a
  /// backend in host memory need not copy it.
  virtual Tensor upload_embedding(const ConstTensorView& host,
                                  std::shared_ptr<const void> owner) = 0;
  /// A matrix (out_features, in_features) and an optional bias (out_features), held as `dtype`.
  virtual std::shared_ptr<const LinearWeight> upload_linear(const ConstTensorView& weight,
                                                            const ConstTensorView& bias,
                                                            DType dtype) = 0;
  /// The weight (channels, width) of a depthwise convolution, in the layout that suits the backend.
  virtual Tensor upload_conv_weight(const ConstTensorView& weight) = 0;

  // ---- state -----------------------------------------------------------------------------------

  /// A float32 tensor of zeros.
  virtual Tensor zeros(std::span<const std::int64_t> dims) = 0;
  /// A copy with storage of its own.
  virtual Tensor clone(const Tensor& tensor) = 0;
  /// Copies a contiguous float32 tensor to or from host memory of the same element count.
  virtual void download(const Tensor& from, std::span<float> to) = 0;
  virtual void assign(Tensor& to, std::span<const float> from) = 0;

  // ---- operations ------------------------------------------------------------------------------

  /// The columns [begin, begin + count) of a matrix.
  virtual Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t count) = 0;
  /// The rows [begin, begin + count) of a matrix.
  virtual Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t count) = 0;
  /// The last token of every sequence that has one: (sequences with tokens, channels).
  virtual Tensor last_tokens(const Tensor& x, const Sequences& sequences) = 0;
  /// (ntokens, a + b) from (ntokens, a) and (ntokens, b).
  virtual Tensor concat_columns(const Tensor& a, const Tensor& b) = 0;

  virtual Tensor embedding(const Tensor& ids, const Tensor& weight) = 0;
  /// `weight` may be undefined: all ones.
  virtual Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) = 0;
  /// residual += x, then the norm of the residual stream.
  virtual Tensor add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                              float epsilon) = 0;
  virtual Tensor linear(const Tensor& x, const LinearWeight& weight) = 0;
  /// Depthwise causal convolution with bias (may be undefined) and SiLU. `state` is
  /// (nsequences, width - 1, channels): the inputs before each sequence's first token, updated.
  virtual Tensor causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                    Tensor& state, const Sequences& sequences) = 0;
  /// `state` is (nsequences, nheads, headdim, dstate), updated. Returns (ntokens, nheads ·
  /// headdim).
  virtual Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) = 0;
  /// `state` is (nsequences, d_inner, dstate), updated. Returns (ntokens, d_inner).
  virtual Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                                const Sequences& sequences) = 0;
  /// `weight` may be undefined.
  virtual Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                                const GatedNormOptions& options) = 0;
  /// x · silu(gate).
  virtual Tensor gated_mlp(const Tensor& x, const Tensor& gate) = 0;
};

}  // namespace adder
