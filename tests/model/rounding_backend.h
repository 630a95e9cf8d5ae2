#pragma once

// A backend that does what another one does and rounds every activation to 16 bits: a model in
// plain loops with 16-bit activations between its operations, each of which computes in float32.
// What that costs is what kernels of 16 bits may cost.

#include <algorithm>
#include <span>
#include <vector>

#include "tests/model/forwarding_backend.h"
#include "tests/support/device.h"

namespace adder::test {

class RoundingBackend final : public ForwardingBackend {
 public:
  /// `other` is the CPU's, whose tensors are contiguous where operations return them.
  RoundingBackend(Backend& other, DType dtype) : ForwardingBackend(other), dtype_(dtype) {}

  Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) override {
    return rounded(other().rms_norm(x, weight, epsilon));
  }
  Tensor add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                      float epsilon) override {
    return rounded(other().add_rms_norm(residual, x, weight, epsilon));
  }
  Tensor linear(const Tensor& x, const LinearWeight& weight) override {
    return rounded(other().linear(x, weight));
  }
  Tensor linear_add(Tensor& /*residual*/, const Tensor& x, const LinearWeight& weight) override {
    return linear(x, weight);  // the branch has a rounding of its own
  }
  Tensor causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            Tensor& state, const Sequences& sequences) override {
    return rounded(other().causal_conv1d_silu(x, weight, bias, state, sequences));
  }
  Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) override {
    return rounded(other().ssd(input, state, sequences));
  }
  Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                        const Sequences& sequences) override {
    return rounded(other().selective_scan(input, state, sequences));
  }
  Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                        const GatedNormOptions& options) override {
    return rounded(other().gated_rms_norm(y, z, weight, options));
  }
  Tensor gated_mlp(const Tensor& x, const Tensor& gate) override {
    return rounded(other().gated_mlp(x, gate));
  }

 private:
  Tensor rounded(Tensor x) const {
    const std::span<float> values = x.span<float>();
    const std::vector<float> out = test::rounded(values, dtype_);
    std::copy(out.begin(), out.end(), values.begin());
    return x;
  }

  DType dtype_;
};

}  // namespace adder::test
