#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/decode_loop.h"
#include "backend/memory_pool.h"
#include "cuda/timing.h"
#include "ops/linear/linear.h"

namespace adder {

class StepFuser;

/// Puts every operation on one stream of a CUDA device and returns; only `download` and `assign`
/// wait. Activations are of one dtype: f32, or that of 16-bit matrices, which tensor cores then
/// multiply. States of recurrences are f32 or bf16; a step reads and writes them as they are held,
/// a longer pass computes with float32 copies. Several threads may call it: their operations take
/// turns on the stream.
///
/// Memory of a tensor whose last owner is gone is used again at once: what is put on the stream
/// later comes later.
class CudaBackend final : public Backend {
 public:
  /// Throws adder::Error if there is no such device or it is older than compute capability 8.0.
  CudaBackend(int index, DType activations, DType states = DType::f32,
              CudaDecodeLoop::Turns loops = CudaDecodeLoop::best_turns());

  std::string_view name() const override { return name_; }
  std::int64_t piece_tokens() const override { return 8192; }
  void check_room(std::int64_t bytes, std::string_view what) override;

  Tensor upload(const ConstTensorView& host) override;
  Tensor upload_ids(std::span<const std::int32_t> ids) override;
  Tensor upload_embedding(const ConstTensorView& host, std::shared_ptr<const void> owner) override;
  std::shared_ptr<const LinearWeight> upload_linear(const ConstTensorView& weight,
                                                    const ConstTensorView& bias,
                                                    WeightFormat format) override;
  std::shared_ptr<const LinearWeight> upload_tied_head(const Tensor& embedding,
                                                       const ConstTensorView& host,
                                                       WeightFormat format) override;
  Tensor upload_conv_weight(const ConstTensorView& weight) override;

  Tensor zeros(std::span<const std::int64_t> dims) override;
  Tensor new_activations(std::span<const std::int64_t> dims) override;
  DType state_dtype() const override { return states_; }
  Tensor new_recurrent_states(std::span<const std::int64_t> dims) override;
  Tensor clone(const Tensor& tensor) override;
  void download(const Tensor& from, std::span<float> to) override;
  void assign(Tensor& to, std::span<const float> from) override;

  void copy(Tensor& to, const Tensor& from) override;
  std::unique_ptr<DecodeLoop> make_decode_loop(
      std::int64_t nsequences, std::int64_t vocab_size,
      const std::function<Tensor(const Tensor& ids)>& step) override;

  Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t count) override;
  Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t count) override;
  Tensor last_tokens(const Tensor& x, const Sequences& sequences) override;
  Tensor concat_columns(const Tensor& a, const Tensor& b) override;

  Tensor embedding(const Tensor& ids, const Tensor& weight) override;
  Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) override;
  Tensor add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                      float epsilon) override;
  Tensor linear(const Tensor& x, const LinearWeight& weight) override;
  Tensor linear_add(Tensor& residual, const Tensor& x, const LinearWeight& weight) override;
  Tensor logits(const Tensor& hidden, const LinearWeight& head) override;
  Tensor causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            Tensor& state, const Sequences& sequences) override;
  Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) override;
  Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                        const Sequences& sequences) override;
  Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                        const GatedNormOptions& options) override;
  Tensor gated_mlp(const Tensor& x, const Tensor& gate) override;

 private:
  struct Recording;

  cuda::Stream stream() const;
  /// Where this thread records a step of so few tokens that operations of it are fused.
  StepFuser* fuser(std::int64_t ntokens) const;
  MemoryPool& memory();
  /// Uninitialized, from the pool.
  Tensor empty(DType dtype, std::span<const std::int64_t> dims);
  Tensor zeros(DType dtype, std::span<const std::int64_t> dims);
  Tensor matrix(std::int64_t rows, std::int64_t columns, DType dtype);
  Tensor activations(std::int64_t rows, std::int64_t columns);
  void multiply_now(const LinearArgs& args, const Tensor& weight);
  /// `steps` may hold it back, if there is one.
  Tensor multiply(const Tensor& x, const LinearWeight& weight, DType y_dtype, StepFuser* steps,
                  bool keeps_x);
  /// Calls run(workspace) with so many bytes.
  void with_workspace(std::size_t bytes, const std::function<void(std::span<std::byte>)>& run);
  /// States as a pass over many tokens takes them: in float32, a copy unless they are held so.
  Tensor widened_states(const Tensor& states);
  /// Makes what a pass left, in float32, the states.
  void keep_states(Tensor& states, Tensor updated);
  /// cu_seqlens for an operation, which takes one sequence to be the rule.
  Tensor boundaries(const Sequences& sequences);

  const int index_;
  const DType dtype_;
  const DType states_;
  const CudaDecodeLoop::Turns loops_;
  const std::string name_;
  std::unique_ptr<cuda::OwnedStream> stream_;
  MemoryPool memory_;
  // What `boundaries` uploaded last: all layers of a call ask for the same.
  std::mutex boundaries_mutex_;
  std::vector<std::int32_t> boundaries_host_;
  Tensor boundaries_;
  std::vector<Tensor> counting_;

  static thread_local const Recording* recording_;
};

}  // namespace adder
