#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "cuda/device.h"
#include "ops/linear_step/linear_step.h"
#include "ops/step_program/step_program.h"

namespace adder {

/// Operations of a recorded step that go into one kernel with the next: each is held back until it
/// is known what comes after it,
///
///   norm or gated norm  →  linear  →  convolution of some of its columns
///
/// and then becomes part of a program (see step_program.h), which runs when something comes that it
/// cannot take. It must outlive what is recorded.
///
/// What a held operation was to write is not written once it is part of a larger one: the output of
/// a norm that a linear took in, the columns that a convolution took in, and those that the step of
/// heads reads. Models read none of them again, but for the last norm's.
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
  /// False if the kernel does not take it: then what was held back has been run. `keeps_x`: x is
  /// written even if it is the output of a norm that is taken in.
  bool linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
              bool keeps_x);
  /// False if the program does not take it: then what was held back has been run.
  bool ssd_step(const SsdStepArgs& args);
  bool selective_scan_step(const SelectiveScanStepArgs& args);
  /// False unless x is columns of what a linear is to write.
  bool convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& state,
                   const Tensor& y);

 private:
  void run_program();
  /// Puts what is held back into the program, or, if that does not take it, runs both.
  void append_held();
  template <typename Args>
  bool append(const Args& args);

  /// A norm that is held back: how it is run alone, and how it is part of a linear.
  struct Norm {
    std::function<void()> run;
    Tensor output;
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
  /// Of the last linear: not given back before the next, so that what comes between writes
  /// elsewhere, whatever becomes one instruction.
  std::vector<Tensor> read_last_;
  cuda::StepProgram program_;
  std::vector<std::unique_ptr<const cuda::StepKernel>> kernels_;  ///< all that have run
};

}  // namespace adder
