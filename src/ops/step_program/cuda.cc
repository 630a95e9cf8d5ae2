#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "cuda/timing.h"
#include "ops/step_program/assemble.h"
#include "ops/step_program/layout.h"
#include "ops/step_program/step_program.h"

namespace adder::cuda {
namespace {

constexpr int kCapability = 90;

DType x_dtype_of(const LinearStepArgs& args) {
  return args.x.defined() ? args.x.dtype : args.y.dtype;
}

// Whether all offsets are 32-bit numbers.
bool is_small(const ConstTensorView& view) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (!view.defined()) return true;
  std::int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.stride(i) < 0 || view.stride(i) > kMost || view.dim(i) > kMost) return false;
    last += view.stride(i) * view.dim(i);
    if (last > kMost) return false;
  }
  return true;
}

template <typename... Views>
bool are_small(const Views&... views) {
  return (is_small(views) && ...);
}

int multiprocessors() { return properties(current_device()).multiprocessors; }
std::int64_t shared_bytes() { return properties(current_device()).shared_bytes_per_block; }

bool is_for_program(const LinearStepArgs& args) {
  if (!can_linear_step(args) || args.y.dim(0) > kMaxStepProgramBatch) return false;
  if (args.weight.dim(1) % program::kStep != 0) return false;
  if (args.weight.dtype != DType::bf16 || !are_small(args.x, args.weight, args.y)) return false;
  if (const auto& norm = args.norm) {
    if (!are_small(norm->residual, norm->new_residual, norm->y)) return false;
  }
  if (const auto& norm = args.gated_norm) {
    if (!is_small(norm->z)) return false;
  }
  if (const auto& conv = args.conv) {
    return conv->weight.dim(1) <= program::kConvWidth &&
           are_small(conv->weight, conv->state, conv->y);
  }
  return true;
}

bool is_for_program(const SsdStepArgs& args) {
  validate(args);
  const std::int64_t dstate = args.B.dim(2);
  return args.state.dtype == DType::f32 && args.x.dim(0) <= kMaxStepProgramBatch &&
         args.x.numel() > 0 && dstate > 0 && dstate <= program::kMostColumns && dstate % 4 == 0 &&
         rows_aligned(args.state) && rows_aligned(args.B) && rows_aligned(args.C) &&
         are_small(args.x, args.B, args.C, args.z, args.dt, args.y, args.state);
}

bool is_for_program(const SelectiveScanStepArgs& args) {
  validate(args);
  return args.state.dtype == DType::f32 && args.x.dim(0) <= kMaxStepProgramBatch &&
         args.x.numel() > 0 && args.A.dim(1) > 0 && args.A.dim(1) % 4 == 0 &&
         rows_aligned(args.A) && rows_aligned(args.state) &&
         are_small(args.x, args.B, args.C, args.z, args.dt, args.y, args.state, args.A);
}

// The bytes from the first element to after the last.
struct Span {
  const std::byte *begin, *end;

  explicit Span(const TensorView& view)
      : begin(static_cast<const std::byte*>(view.data)), end(begin) {
    std::int64_t last = 0;
    for (int i = 0; i < view.rank; ++i) last += (view.dim(i) - 1) * view.stride(i);
    end += (last + 1) * static_cast<std::int64_t>(size_of(view.dtype));
  }
  bool meets(const Span& other) const { return begin < other.end && other.begin < end; }
};

template <typename X>
class Kernel final : public StepKernel {
 public:
  Kernel(std::span<const program::Operation> operations, int batch, int in)
      : batch_(batch), blocks_(multiprocessors()) {
    shared_bytes_ = shared_bytes() - program::kStaticBytes;
    const program::Layout layout = program::layout_of<X>(batch, in, shared_bytes());
    const program::Assembled<X> assembled = program::assemble<X>(operations, layout, blocks_);

    // The counter and the exchange, which begin with zeros, residuals, instructions. By a stream of
    // its own, which nothing is captured from.
    constexpr std::size_t kCounterBytes = 128;
    const OwnedStream stream;
    const auto number = [](auto n) { return static_cast<std::size_t>(n); };
    const std::size_t zeros = kCounterBytes + number(round_up(assembled.exchange_size, 32)) *
                                                  sizeof(program::ExchangedNumber<X>);
    const std::size_t residuals =
        number(blocks_) * number(round_up(assembled.residual_size, 32)) * sizeof(float);
    const std::size_t bytes = assembled.instructions.size() * sizeof(assembled.instructions[0]);
    memory_ = allocate(zeros + residuals + bytes);
    std::byte* at = memory_.get();
    fill_bytes(at, 0, zeros, stream);
    copy_to_device(at + zeros + residuals, assembled.instructions.data(), bytes, stream);
    params_ = {
        .instructions = reinterpret_cast<const program::Instruction<X>*>(at + zeros + residuals),
        .count = static_cast<int>(assembled.instructions.size()),
        .arrivals = reinterpret_cast<unsigned long long*>(at),
        .meetings = assembled.meetings,
        .is_linked = assembled.is_linked,
        .exchange = reinterpret_cast<program::ExchangedNumber<X>*>(at + kCounterBytes),
        .residuals = reinterpret_cast<float*>(at + zeros),
        .residual_size = static_cast<int>(round_up(assembled.residual_size, 32)),
        .layout = layout};
  }

  int phases() const override { return params_.count; }
  int meetings() const override { return params_.meetings; }

  void launch(Stream stream) const override {
    program::launch(params_, batch_, blocks_, shared_bytes_, stream);
  }

 private:
  int batch_, blocks_;
  std::int64_t shared_bytes_;
  std::shared_ptr<std::byte> memory_;
  program::Params<X> params_;
};

}  // namespace

struct StepProgram::Operations {
  std::vector<program::Operation> all;
  DType x_dtype = DType::f32;  ///< of all of them, which the first decides
  int batch = 1;
  int in = program::kStep;
  std::vector<Span> states;

  bool takes(DType dtype) const {
    return all.empty() ? dtype == DType::f32 || dtype == DType::bf16 : dtype == x_dtype;
  }

  // Whether shared memory is enough with this operation, and its states are no other's: they are
  // asked for long before they are due. Then it is one of the program's.
  bool make_room(const LinearStepArgs& args) {
    const int batch_then = std::max(batch, static_cast<int>(args.y.dim(0)));
    const int in_then = std::max(in, static_cast<int>(args.weight.dim(1)));
    // Float32 takes more.
    const program::Layout most = program::layout_of<float>(batch_then, in_then, shared_bytes());
    if (most.round_tiles == 0 || most.nstages < program::kFewestStages ||
        (args.conv && !has_alone(args.conv->state))) {
      return false;
    }
    batch = batch_then;
    in = in_then;
    return true;
  }
  bool make_room(const SsdStepArgs& args) { return has_alone(args.state); }
  bool make_room(const SelectiveScanStepArgs& args) { return has_alone(args.state); }

 private:
  bool has_alone(const TensorView& view) {
    const Span state(view);
    for (const Span& other : states) {
      if (state.meets(other)) return false;
    }
    states.push_back(state);
    return true;
  }
};

StepProgram::StepProgram() : operations_(std::make_unique<Operations>()) {}
StepProgram::~StepProgram() = default;

bool StepProgram::is_empty() const { return operations_->all.empty(); }

template <typename Args>
bool StepProgram::add_any(const Args& args, DType x_dtype) {
  const bool is_right_device =
      properties(current_device()).compute_capability == kCapability && operations_->takes(x_dtype);
  if (!is_right_device || !is_for_program(args) || !operations_->make_room(args)) return false;
  operations_->x_dtype = x_dtype;
  operations_->all.emplace_back(args);
  return true;
}

bool StepProgram::add(const LinearStepArgs& args) { return add_any(args, x_dtype_of(args)); }
bool StepProgram::add(const SsdStepArgs& args) { return add_any(args, args.x.dtype); }
bool StepProgram::add(const SelectiveScanStepArgs& args) { return add_any(args, args.x.dtype); }

std::unique_ptr<const StepKernel> StepProgram::compile() {
  check(!is_empty(), "step program: it has no operations, expected one at least");
  const Operations now = std::exchange(*operations_, {});
  if (now.x_dtype == DType::f32) {
    return std::make_unique<Kernel<float>>(now.all, now.batch, now.in);
  }
  return std::make_unique<Kernel<bf16>>(now.all, now.batch, now.in);
}

}  // namespace adder::cuda
