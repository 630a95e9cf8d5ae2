#pragma once

// A backend that does what another one does: for tests that change a little of it.

#include <utility>

#include "backend/backend.h"

namespace adder::test {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& other) : other_(other) {}

  std::string_view name() const override { return other_.name(); }
  int nthreads() const override { return other_.nthreads(); }
  std::int64_t piece_tokens() const override { return other_.piece_tokens(); }
  Tensor upload(const ConstTensorView& host) override { return other_.upload(host); }
  Tensor upload_ids(std::span<const std::int32_t> ids) override { return other_.upload_ids(ids); }
  Tensor upload_embedding(const ConstTensorView& host, std::shared_ptr<const void> owner) override {
    return other_.upload_embedding(host, std::move(owner));
  }
  std::shared_ptr<const LinearWeight> upload_linear(const ConstTensorView& weight,
                                                    const ConstTensorView& bias,
                                                    WeightFormat format) override {
    return other_.upload_linear(weight, bias, format);
  }
  Tensor upload_conv_weight(const ConstTensorView& weight) override {
    return other_.upload_conv_weight(weight);
  }
  void check_room(std::int64_t bytes, std::string_view what) override {
    other_.check_room(bytes, what);
  }
  std::shared_ptr<const LinearWeight> upload_tied_head(const Tensor& embedding,
                                                       const ConstTensorView& host,
                                                       WeightFormat format) override {
    return other_.upload_tied_head(embedding, host, format);
  }
  std::shared_ptr<const LinearWeight> upload_rows(const MatrixRows& weight,
                                                  const ConstTensorView& bias,
                                                  WeightFormat format) override {
    return other_.upload_rows(weight, bias, format);
  }
  bool multiplies(WeightFormat format) const override { return other_.multiplies(format); }
  bool embeds_from_head(WeightFormat format) const override {
    return other_.embeds_from_head(format);
  }
  std::shared_ptr<const LinearWeight> upload_quantized(const QuantizedMatrix& weight,
                                                       const ConstTensorView& bias) override {
    return other_.upload_quantized(weight, bias);
  }
  Tensor zeros(std::span<const std::int64_t> dims) override { return other_.zeros(dims); }
  Tensor new_activations(std::span<const std::int64_t> dims) override {
    return other_.new_activations(dims);
  }
  DType state_dtype() const override { return other_.state_dtype(); }
  Tensor new_recurrent_states(std::span<const std::int64_t> dims) override {
    return other_.new_recurrent_states(dims);
  }
  Tensor clone(const Tensor& tensor) override { return other_.clone(tensor); }
  void copy(Tensor& to, const Tensor& from) override { other_.copy(to, from); }
  void download(const Tensor& from, std::span<float> to) override { other_.download(from, to); }
  void assign(Tensor& to, std::span<const float> from) override { other_.assign(to, from); }
  Tensor columns(const Tensor& x, std::int64_t begin, std::int64_t count) override {
    return other_.columns(x, begin, count);
  }
  Tensor rows(const Tensor& x, std::int64_t begin, std::int64_t count) override {
    return other_.rows(x, begin, count);
  }
  Tensor last_tokens(const Tensor& x, const Sequences& sequences) override {
    return other_.last_tokens(x, sequences);
  }
  Tensor concat_columns(const Tensor& a, const Tensor& b) override {
    return other_.concat_columns(a, b);
  }
  Tensor embedding(const Tensor& ids, const Tensor& weight) override {
    return other_.embedding(ids, weight);
  }
  Tensor tied_embedding(const Tensor& ids, const LinearWeight& head) override {
    return other_.tied_embedding(ids, head);
  }
  Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) override {
    return other_.rms_norm(x, weight, epsilon);
  }
  Tensor add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                      float epsilon) override {
    return other_.add_rms_norm(residual, x, weight, epsilon);
  }
  Tensor linear(const Tensor& x, const LinearWeight& weight) override {
    return other_.linear(x, weight);
  }
  Tensor linear_add(Tensor& residual, const Tensor& x, const LinearWeight& weight) override {
    return other_.linear_add(residual, x, weight);
  }
  Tensor logits(const Tensor& hidden, const LinearWeight& head) override {
    return other_.logits(hidden, head);
  }
  Tensor causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            Tensor& state, const Sequences& sequences) override {
    return other_.causal_conv1d_silu(x, weight, bias, state, sequences);
  }
  Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                        const Sequences& sequences) override {
    return other_.selective_scan(input, state, sequences);
  }
  Tensor gated_mlp(const Tensor& x, const Tensor& gate) override {
    return other_.gated_mlp(x, gate);
  }
  Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) override {
    return other_.ssd(input, state, sequences);
  }
  Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                        const GatedNormOptions& options) override {
    return other_.gated_rms_norm(y, z, weight, options);
  }

 protected:
  Backend& other() { return other_; }

 private:
  Backend& other_;
};

}  // namespace adder::test
