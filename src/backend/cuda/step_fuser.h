#pragma once

#include <functional>
#include <optional>

#include "backend/backend.h"
#include "cuda/device.h"
#include "ops/linear_step/linear_step.h"

namespace adder {

/// Operations of a recorded step that go into one kernel with the next: each is held back until it
/// is known what comes after it.
///
///   norm or gated norm  →  linear  →  convolution of some of its columns
///
/// What a held operation was to write is not written once it is part of a larger one: the output of
/// a norm that a linear took in, and the columns that a convolution took in. Models read neither
/// again.
class StepFuser {
 public:
  explicit StepFuser(cuda::Stream stream) : stream_(stream) {}

  /// Runs what is held back. Before every operation that is not taken in here.
  void flush();

  /// residual + x (may be undefined: residual alone), then the norm to y; new_residual with x.
  void norm(const Tensor& residual, const Tensor& x, const Tensor& new_residual,
            const Tensor& weight, float epsilon, const Tensor& y);
  void gated_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                  const GatedNormOptions& options, const Tensor& out);
  /// False if the kernel does not take it: then what was held back has been run.
  bool linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
  /// False unless x is columns of what a linear is to write.
  bool convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& state,
                   const Tensor& y);

 private:
  /// A norm that is held back: how it is run alone, and how it is part of a linear.
  struct Norm {
    std::function<void()> run;
    const void* output;
    LinearStepArgs args;
    std::vector<Tensor> keep;
  };
  struct Linear {
    LinearStepArgs args;
    std::vector<Tensor> keep;
  };

  const cuda::Stream stream_;
  std::optional<Norm> norm_;
  std::optional<Linear> linear_;
};

}  // namespace adder
