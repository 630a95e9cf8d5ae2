#pragma once

// What a model is written against. A backend holds tensors on its device and offers the model-level
// operations; models hold no pointers and no `#ifdef`. CpuBackend runs each call at once; a CUDA
// backend enqueues it on a stream; an XLA backend records it. For that to work in all three,
//   - operations return new tensors and never hand out data that the host may read directly
//     (`download` does that),
//   - a state tensor passed by reference is replaced or updated in place, as the backend likes,
//   - sizes are known on the host: the number of tokens and the sequence boundaries.
//
// The residual stream, windows of convolutions and logits are float32. Activations between them are
// of one dtype, which the backend chooses: float32 on the CPU, elsewhere perhaps that of the
// matrices. States of recurrences are of one dtype too, float32 unless a backend was asked for
// another. The tokens of all sequences of a call lie one after another, without padding:
// (ntokens, channels).

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "adder/matrix_rows.h"
#include "adder/quantized_matrix.h"
#include "adder/weight_format.h"
#include "backend/decode_loop.h"
#include "core/check.h"
#include "core/tensor.h"

namespace adder {

/// Which tokens of a call belong to which sequence: sequence s has the tokens
/// [cu_seqlens[s], cu_seqlens[s + 1]) and row s of every state tensor.
class Sequences {
 public:
  /// `cu_seqlens` starts at 0 and never decreases.
  explicit Sequences(std::vector<std::int32_t> cu_seqlens);
  static Sequences single(std::int64_t ntokens);
  /// A step of `count` sequences.
  static Sequences one_token_each(std::int64_t count);

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
  /// The device: "cpu", "cuda:0".
  virtual std::string_view name() const = 0;
  /// Threads of the host that share the work.
  virtual int nthreads() const { return 1; }
  /// The tokens that one forward pass should take at most: activations are bounded by it, prompts
  /// are not.
  virtual std::int64_t piece_tokens() const = 0;
  /// Throws adder::Error if so many bytes more have no place on the device; `what` will need them.
  virtual void check_room(std::int64_t bytes, std::string_view what) {
    static_cast<void>(bytes);
    static_cast<void>(what);
  }

  // ---- weights ---------------------------------------------------------------------------------

  /// A small tensor as float32 on the device.
  virtual Tensor upload(const ConstTensorView& host) = 0;
  /// Token ids as int32 on the device.
  virtual Tensor upload_ids(std::span<const std::int32_t> ids) = 0;
  /// The embedding matrix (vocab, d_model), in its own dtype. `owner` keeps `host` alive: a
  /// backend in host memory need not copy it.
  virtual Tensor upload_embedding(const ConstTensorView& host,
                                  std::shared_ptr<const void> owner) = 0;
  /// A matrix (out_features, in_features) and an optional bias (out_features), held as `format`.
  /// Throws adder::Error for one that the backend does not multiply with.
  virtual std::shared_ptr<const LinearWeight> upload_linear(const ConstTensorView& weight,
                                                            const ConstTensorView& bias,
                                                            WeightFormat format) = 0;
  /// The same of a matrix that is read as it is packed. By default it is taken where it lies, or
  /// else decoded to float32 as a whole first.
  virtual std::shared_ptr<const LinearWeight> upload_rows(const MatrixRows& weight,
                                                          const ConstTensorView& bias,
                                                          WeightFormat format) {
    if (weight.view().defined()) return upload_linear(weight.view(), bias, format);
    const Tensor decoded = Tensor::empty(DType::f32, {weight.rows(), weight.columns()});
    weight.read(0, weight.rows(), decoded.span<float>());
    return upload_linear(decoded.view, bias, format);
  }
  /// Whether matrices of a format are multiplied with as they are.
  virtual bool multiplies(WeightFormat format) const { return !is_quantized(format); }
  /// A matrix of a format that the backend multiplies with, where it lies.
  virtual std::shared_ptr<const LinearWeight> upload_quantized(const QuantizedMatrix& weight,
                                                               const ConstTensorView& bias) {
    static_cast<void>(bias);
    fail("{}: matrices of {} are not multiplied here", name(), name_of(weight.format()));
  }
  /// Whether embeddings are looked up in a head of this format that they are tied to: then the
  /// matrix is held once. Only of a format that holds exactly what is stored.
  virtual bool embeds_from_head(WeightFormat format) const { return is_quantized(format); }
  /// The same matrix as an embedding that was uploaded, `host`, for a head that is tied to it.
  virtual std::shared_ptr<const LinearWeight> upload_tied_head(const Tensor& embedding,
                                                               const ConstTensorView& host,
                                                               WeightFormat format) {
    static_cast<void>(embedding);
    return upload_linear(host, {}, format);
  }
  /// The weight (channels, width) of a depthwise convolution, in the layout that suits the backend.
  virtual Tensor upload_conv_weight(const ConstTensorView& weight) = 0;

  // ---- state -----------------------------------------------------------------------------------

  /// A float32 tensor of zeros.
  virtual Tensor zeros(std::span<const std::int64_t> dims) = 0;
  /// The same of activations.
  virtual Tensor new_activations(std::span<const std::int64_t> dims) { return zeros(dims); }
  /// The dtype that states of recurrences are held in.
  virtual DType state_dtype() const { return DType::f32; }
  /// Zero states of recurrences: what `ssd` and `selective_scan` update.
  virtual Tensor new_recurrent_states(std::span<const std::int64_t> dims) { return zeros(dims); }
  /// A copy with storage of its own.
  virtual Tensor clone(const Tensor& tensor) = 0;
  /// Contiguous tensors of one dtype and number of elements: to = from, in the memory of `to`.
  virtual void copy(Tensor& to, const Tensor& from) = 0;
  /// Copies a contiguous tensor to or from host memory of the same element count; activations and
  /// states of another dtype are converted, to host memory exactly.
  virtual void download(const Tensor& from, std::span<float> to) = 0;
  virtual void assign(Tensor& to, std::span<const float> from) = 0;

  // ---- operations ------------------------------------------------------------------------------

  /// The columns [begin, begin + count) of a matrix.
  virtual Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t count) = 0;
  /// The rows [begin, begin + count) of a matrix, or of a state's sequences; in the same memory.
  virtual Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t count) = 0;
  /// The last token of every sequence that has one: (sequences with tokens, channels).
  virtual Tensor last_tokens(const Tensor& x, const Sequences& sequences) = 0;
  /// (ntokens, a + b) from (ntokens, a) and (ntokens, b).
  virtual Tensor concat_columns(const Tensor& a, const Tensor& b) = 0;

  virtual Tensor embedding(const Tensor& ids, const Tensor& weight) = 0;
  /// The same from the rows of a head that the embedding is tied to: see embeds_from_head.
  virtual Tensor tied_embedding(const Tensor& ids, const LinearWeight& head) {
    static_cast<void>(ids);
    static_cast<void>(head);
    fail("{}: embeddings are not taken from a head here", name());
  }
  /// `weight` may be undefined: all ones.
  virtual Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) = 0;
  /// residual += x, then the norm of the residual stream.
  virtual Tensor add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                              float epsilon) = 0;
  virtual Tensor linear(const Tensor& x, const LinearWeight& weight) = 0;
  /// residual += x · Wᵀ + bias, a block's last projection. A backend may leave the addition to the
  /// norm that comes next, which is to call `add_rms_norm` with what this returns; undefined if
  /// nothing is left to add.
  virtual Tensor linear_add(Tensor& residual, const Tensor& x, const LinearWeight& weight) {
    static_cast<void>(residual);
    return linear(x, weight);
  }
  /// The same into float32.
  virtual Tensor logits(const Tensor& hidden, const LinearWeight& head) = 0;
  /// Depthwise causal convolution with bias (may be undefined) and SiLU. `state` is
  /// (nsequences, width - 1, channels): the inputs before each sequence's first token, updated.
  virtual Tensor causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                    Tensor& state, const Sequences& sequences) = 0;
  /// `state` is (nsequences, nheads, headdim, dstate), updated; where it is not float32 it is
  /// rounded after the last token of the call. Returns (ntokens, nheads · headdim).
  virtual Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) = 0;
  /// `state` is (nsequences, d_inner, dstate), updated likewise. Returns (ntokens, d_inner).
  virtual Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                                const Sequences& sequences) = 0;
  /// `weight` may be undefined.
  virtual Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                                const GatedNormOptions& options) = 0;
  /// x · silu(gate).
  virtual Tensor gated_mlp(const Tensor& x, const Tensor& gate) = 0;

  // ---- decoding --------------------------------------------------------------------------------

  /// Steps of `nsequences` sequences that the device takes by itself, or null where the host starts
  /// each operation anyway. `step` feeds a token to each sequence, (nsequences) ids, and returns
  /// logits (nsequences, at least vocab_size); it is called at once, possibly several times, and
  /// what it does then is what is repeated later: with the same state tensors, updated in place.
  virtual std::unique_ptr<DecodeLoop> make_decode_loop(
      std::int64_t nsequences, std::int64_t vocab_size,
      const std::function<Tensor(const Tensor& ids)>& step) {
    static_cast<void>(nsequences);
    static_cast<void>(vocab_size);
    static_cast<void>(step);
    return nullptr;
  }
};

}  // namespace adder
