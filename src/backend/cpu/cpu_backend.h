#pragma once

#include "adder/thread_pool.h"
#include "backend/backend.h"
#include "backend/memory_pool.h"

namespace adder {

/// Runs every operation at once on a team of threads. Several threads may call it: their loops take
/// turns on the team.
class CpuBackend final : public Backend {
 public:
  /// With `round_inputs`, what is multiplied by matrices in bf16 may be rounded to bf16.
  explicit CpuBackend(int nthreads = 0, bool round_inputs = false)
      : pool_(nthreads), round_inputs_(round_inputs) {}

  std::string_view name() const override { return "cpu"; }
  int nthreads() const override { return pool_.nthreads(); }
  std::int64_t piece_tokens() const override { return 512; }

  Tensor upload(const ConstTensorView& host) override;
  Tensor upload_ids(std::span<const std::int32_t> ids) override;
  Tensor upload_embedding(const ConstTensorView& host, std::shared_ptr<const void> owner) override;
  std::shared_ptr<const LinearWeight> upload_linear(const ConstTensorView& weight,
                                                    const ConstTensorView& bias,
                                                    WeightFormat format) override;
  std::shared_ptr<const LinearWeight> upload_rows(const MatrixRows& weight,
                                                  const ConstTensorView& bias,
                                                  WeightFormat format) override;
  bool multiplies(WeightFormat /*format*/) const override { return true; }
  bool embeds_from_head(WeightFormat /*format*/) const override { return true; }
  std::shared_ptr<const LinearWeight> upload_quantized(const QuantizedMatrix& weight,
                                                       const ConstTensorView& bias) override;
  Tensor upload_conv_weight(const ConstTensorView& weight) override;

  Tensor zeros(std::span<const std::int64_t> dims) override;
  Tensor clone(const Tensor& tensor) override;
  void copy(Tensor& to, const Tensor& from) override;
  void download(const Tensor& from, std::span<float> to) override;
  void assign(Tensor& to, std::span<const float> from) override;

  Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t count) override;
  Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t count) override;
  Tensor last_tokens(const Tensor& x, const Sequences& sequences) override;
  Tensor concat_columns(const Tensor& a, const Tensor& b) override;

  Tensor embedding(const Tensor& ids, const Tensor& weight) override;
  Tensor tied_embedding(const Tensor& ids, const LinearWeight& head) override;
  Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) override;
  Tensor add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                      float epsilon) override;
  Tensor linear(const Tensor& x, const LinearWeight& weight) override;
  Tensor logits(const Tensor& hidden, const LinearWeight& head) override {
    return linear(hidden, head);
  }
  Tensor causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            Tensor& state, const Sequences& sequences) override;
  Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) override;
  Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                        const Sequences& sequences) override;
  Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                        const GatedNormOptions& options) override;
  Tensor gated_mlp(const Tensor& x, const Tensor& gate) override;

 private:
  /// Uninitialized, from the pool.
  Tensor empty(DType dtype, std::span<const std::int64_t> dims);
  Tensor matrix(std::int64_t rows, std::int64_t columns);

  ThreadPool pool_;
  const bool round_inputs_;
  MemoryPool memory_{allocate_host};
};

}  // namespace adder
