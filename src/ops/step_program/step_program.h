#pragma once

// The operations of a decode step, one after another, in one kernel: what follows does not wait for
// the device to be empty and full again, and the weights of projections stream from memory all the
// while. For a token each of a few sequences, with bf16 weights.

#include <cstdint>
#include <memory>

#include "adder/cuda_stream.h"
#include "adder/dtype.h"

namespace adder {

struct LinearStepArgs;
struct SelectiveScanStepArgs;
struct SsdStepArgs;

namespace cuda {

inline constexpr std::int64_t kMaxStepProgramBatch = 4;

/// Operations as one kernel of the device that was the current one; whatever the operations read
/// and write must live as long.
class StepKernel {
 public:
  virtual ~StepKernel() = default;
  /// Instructions, and those of them that end with a meeting of all of the device: the last, and
  /// where the next one reads from memory what this one, or one before, has written.
  virtual int phases() const = 0;
  virtual int meetings() const = 0;
  /// Puts them on the stream. Launches of the same object must not run at the same time. In a
  /// graph, which must not outlive this object, too.
  virtual void launch(Stream stream) const = 0;
};

/// A list of operations for the current device.
///
///   StepProgram program;
///   if (!program.add(linear_args)) ...  // what there is first, then linear_step(linear_args, ...)
///   ...
///   const auto kernel = program.compile();
///   kernel->launch(stream);
///
/// Results are those of the operations in the order in which they were added, but for rounding:
/// what a projection multiplies is kept to 16 bits in place of 24 where x has 16.
///
/// A layer of Mamba-2, the projection with convolution, the step of the heads whose x, B, C and dt
/// it makes, and the projection with the gate of their y by its z, writes none of these; nor is y
/// of a projection written that is x of the norm of the next, and the new residual that only a
/// later one of these reads: they are given from multiprocessor to multiprocessor.
class StepProgram {
 public:
  StepProgram();
  ~StepProgram();
  StepProgram(const StepProgram&) = delete;
  StepProgram& operator=(const StepProgram&) = delete;

  /// Adds an operation, or says that it is none for a program, or not for this one: then the
  /// operation is to be run by itself after what was added before. Throws adder::Error for
  /// arguments that are not valid. Weights and states are read before the operation is due: nothing
  /// else on the stream right before a launch may write them, and no two operations of a program
  /// have the same states.
  bool add(const LinearStepArgs& args);
  bool add(const SsdStepArgs& args);
  bool add(const SelectiveScanStepArgs& args);
  bool is_empty() const;

  /// What was added, at least one operation; begins anew. While a stream is captured in relaxed
  /// mode, too.
  std::unique_ptr<const StepKernel> compile();

 private:
  struct Operations;

  template <typename Args>
  bool add_any(const Args& args, DType x_dtype);

  std::unique_ptr<Operations> operations_;
};

}  // namespace cuda
}  // namespace adder
