#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/ceil_div.h"
#include "core/check.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "cuda/memory.h"
#include "cuda/timing.h"
#include "ops/linear_step/linear_step.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/ssd_step/ssd_step.h"
#include "ops/step_program/cuda_kernel.h"
#include "ops/step_program/step_program.h"

namespace adder::cuda {
namespace program {
namespace {

// What the kernel has besides: barriers and two instructions.
constexpr std::int64_t kStaticBytes = 2048;

constexpr int align(int bytes) { return static_cast<int>(round_up(bytes, 128)); }

// For sequences of rows of at most `in` elements; nstages is below kFewestStages if `shared_bytes`
// are too few.
template <typename X>
Layout layout_of(int batch, int in, std::int64_t shared_bytes) {
  constexpr int kMostSlotBytes = 24 * 1024;
  const int rows = kParts<X> * kernel_batch(batch);
  const int tile_bytes = slots_of_tile(rows) * static_cast<int>(sizeof(float));
  Layout out{};
  out.round_tiles = std::min(kMostSlotBytes / tile_bytes, kMostRoundTiles);
  out.slots = out.sums + align(kWarps * static_cast<int>(sizeof(float)));
  out.v = out.slots + align(out.round_tiles * tile_bytes);
  out.v_row = row_bytes(in);
  out.stages = out.v + align(rows * out.v_row);
  const std::int64_t room = shared_bytes - kStaticBytes - out.stages;
  out.nstages = static_cast<int>(std::clamp<std::int64_t>(room / kStageBytes, 0, kMaxStages));
  return out;
}

std::int32_t stride(const ConstTensorView& view, int dimension) {
  return static_cast<std::int32_t>(view.stride(dimension));
}

template <typename T>
Rows<T> rows(const TensorView& view) {
  if (!view.defined()) return {};
  return {static_cast<T*>(view.data), stride(view, 0)};
}
template <typename T>
Rows<const T> rows(const ConstTensorView& view) {
  if (!view.defined()) return {};
  return {static_cast<const T*>(view.data), stride(view, 0)};
}

const float* floats(const ConstTensorView& view) {
  return view.defined() ? view.as<float>() : nullptr;
}

Before before_of(const LinearStepArgs& args) {
  if (args.norm) return Before::norm;
  if (!args.gated_norm) return Before::nothing;
  const LinearStepGatedNorm& norm = *args.gated_norm;
  if (!norm.normalize) return Before::gate;
  if (norm.norm_before_gate) return Before::norm_gate;
  return norm.ngroups > 1 ? Before::grouped_norm : Before::gate;
}

template <typename X>
void cut_rows(Linear<X>& p) {
  const std::int64_t pieces = ceil_div(p.in, kMostPiece);
  p.piece = static_cast<int>(round_up(ceil_div(p.in, pieces), kStep));
  p.stage_row = row_bytes(p.piece);
  int rows = kStageRows;
  while (rows < kTileRows && 2 * rows * p.stage_row <= kStageBytes) rows *= 2;
  p.log2_stage_rows = std::countr_zero(static_cast<unsigned>(rows));
}

template <typename X>
Linear<X> linear_of(const LinearStepArgs& args, int blocks) {
  Linear<X> p{};
  p.weight = args.weight.as<bf16>();
  p.weight_row = stride(args.weight, 0);
  p.batch = static_cast<int>(args.y.dim(0));
  p.in = static_cast<int>(args.weight.dim(1));
  p.rows = static_cast<int>(args.weight.dim(0)) / blocks;
  p.extra = static_cast<int>(args.weight.dim(0)) % blocks;
  cut_rows(p);
  p.before = before_of(args);
  p.is_scaled =
      p.before == Before::norm || (p.before == Before::gate && args.gated_norm->normalize);
  p.x = rows<X>(args.x);
  p.group_size = p.in;
  if (const auto& norm = args.norm) {
    p.epsilon = norm->epsilon;
    p.residual = rows<float>(norm->residual);
    p.new_residual = rows<float>(norm->new_residual);
    p.norm_y = rows<X>(norm->y);
    p.norm_weight = floats(norm->weight);
  }
  if (const auto& norm = args.gated_norm) {
    p.epsilon = norm->epsilon;
    p.z = rows<X>(norm->z);
    p.norm_weight = floats(norm->weight);
    if (p.before != Before::gate) p.group_size = p.in / static_cast<int>(norm->ngroups);
  }
  p.inverse_size = 1.0F / static_cast<float>(p.group_size);
  p.bias = floats(args.bias);
  p.y = {args.y.data, stride(args.y, 0)};
  p.y_is_float = args.y.dtype == DType::f32;
  if (const auto& conv = args.conv) {
    p.conv_begin = static_cast<int>(conv->begin);
    p.conv_channels = static_cast<int>(conv->weight.dim(0));
    p.conv_width = static_cast<int>(conv->weight.dim(1));
    p.conv_channel_stride = stride(conv->weight, 0);
    p.conv_tap_stride = stride(conv->weight, 1);
    p.conv_weight = floats(conv->weight);
    p.conv_bias = floats(conv->bias);
    p.conv_state = rows<float>(conv->state);
    p.conv_state_row = stride(conv->state, 1);
    p.conv_y = rows<X>(conv->y);
  }
  return p;
}

Heads heads_of(const SsdStepArgs& args) {
  const auto input = [](const ConstTensorView& view) {
    return view.defined() ? Heads::Input{view.data, stride(view, 0), stride(view, 1)}
                          : Heads::Input{};
  };
  Heads p{};
  p.x = input(args.x);
  p.B = input(args.B);
  p.C = input(args.C);
  p.z = input(args.z);
  p.dt = input(args.dt);
  p.y = args.y.data;
  p.y_row = stride(args.y, 0);
  p.y_column = stride(args.y, 1);
  p.A = floats(args.A);
  p.dt_bias = floats(args.dt_bias);
  p.D = floats(args.D);
  p.state = args.state.as<float>();
  p.state_sequence = stride(args.state, 0);
  p.state_head = stride(args.state, 1);
  p.state_channel = stride(args.state, 2);
  p.nheads = static_cast<int>(args.x.dim(1));
  p.heads_per_group = static_cast<int>(args.x.dim(1) / args.B.dim(1));
  p.headdim = static_cast<int>(args.x.dim(2));
  p.dstate = static_cast<int>(args.B.dim(2));
  p.rows = static_cast<int>(args.x.numel());
  p.dt_options = {args.dt_softplus, args.dt_min, args.dt_max};
  p.dt_is_float = args.dt.dtype == DType::f32;
  p.D_has_headdim = args.D.rank == 2;
  return p;
}

template <typename X>
Channels<X> channels_of(const SelectiveScanStepArgs& args) {
  Channels<X> p{};
  p.x = rows<X>(args.x);
  p.dt = rows<X>(args.dt);
  p.z = rows<X>(args.z);
  p.B = rows<X>(args.B);
  p.C = rows<X>(args.C);
  p.B_column = stride(args.B, 1);
  p.C_column = stride(args.C, 1);
  p.y = rows<X>(args.y);
  p.A = floats(args.A);
  p.D = floats(args.D);
  p.dt_bias = floats(args.dt_bias);
  p.state = rows<float>(args.state);
  p.A_row = stride(args.A, 0);
  p.state_channel = stride(args.state, 1);
  p.batch = static_cast<int>(args.x.dim(0));
  p.d_inner = static_cast<int>(args.x.dim(1));
  p.group_size = static_cast<int>(args.x.dim(1) / args.B.dim(1));
  p.dstate = static_cast<int>(args.A.dim(1));
  p.dt_softplus = args.dt_softplus;
  p.group_vectors = rows_aligned(args.B) && rows_aligned(args.C);
  return p;
}

}  // namespace
}  // namespace program

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
  return args.x.dim(0) <= kMaxStepProgramBatch && args.x.numel() > 0 && dstate > 0 &&
         dstate <= program::kMostColumns && dstate % 4 == 0 && rows_aligned(args.state) &&
         rows_aligned(args.B) && rows_aligned(args.C) &&
         are_small(args.x, args.B, args.C, args.z, args.dt, args.y, args.state);
}

bool is_for_program(const SelectiveScanStepArgs& args) {
  validate(args);
  return args.x.dim(0) <= kMaxStepProgramBatch && args.x.numel() > 0 && args.A.dim(1) > 0 &&
         args.A.dim(1) % 4 == 0 && rows_aligned(args.A) && rows_aligned(args.state) &&
         are_small(args.x, args.B, args.C, args.z, args.dt, args.y, args.state, args.A);
}

template <typename X>
class Kernel final : public StepKernel {
 public:
  Kernel(const std::vector<program::Instruction<X>>& instructions, int batch, int in)
      : batch_(batch) {
    const DeviceProperties& device = properties(current_device());
    blocks_ = device.multiprocessors;
    shared_bytes_ = device.shared_bytes_per_block - program::kStaticBytes;
    // Instructions, then the counter. By a stream of its own, which nothing is captured from.
    const OwnedStream stream;
    const std::size_t bytes = instructions.size() * sizeof(instructions[0]);
    memory_ = allocate(bytes + sizeof(unsigned long long));
    fill_bytes(memory_.get() + bytes, 0, sizeof(unsigned long long), stream);
    copy_to_device(memory_.get(), instructions.data(), bytes, stream);
    params_ = {.instructions = reinterpret_cast<const program::Instruction<X>*>(memory_.get()),
               .count = static_cast<int>(instructions.size()),
               .arrivals = reinterpret_cast<unsigned long long*>(memory_.get() + bytes),
               .layout = program::layout_of<X>(batch, in, device.shared_bytes_per_block)};
  }

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

// Of one type of x, which the first operation decides.
struct StepProgram::Instructions {
  template <typename X>
  using Of = std::vector<program::Instruction<X>>;

  std::variant<std::monostate, Of<float>, Of<bf16>> all;
  int batch = 1;
  int in = program::kStep;

  bool takes(DType x_dtype) const {
    if (std::holds_alternative<Of<float>>(all)) return x_dtype == DType::f32;
    if (std::holds_alternative<Of<bf16>>(all)) return x_dtype == DType::bf16;
    return x_dtype == DType::f32 || x_dtype == DType::bf16;
  }

  // Whether shared memory is enough with this operation, which is then one of the program's.
  bool make_room(int batch_then, int in_then) {
    batch_then = std::max(batch, batch_then);
    in_then = std::max(in, in_then);
    const std::int64_t shared = properties(current_device()).shared_bytes_per_block;
    // Float32 takes more.
    if (program::layout_of<float>(batch_then, in_then, shared).nstages < program::kFewestStages) {
      return false;
    }
    batch = batch_then;
    in = in_then;
    return true;
  }
  bool make_room(const LinearStepArgs& args) {
    return make_room(static_cast<int>(args.y.dim(0)), static_cast<int>(args.weight.dim(1)));
  }
  bool make_room(const SsdStepArgs& /*args*/) { return true; }
  bool make_room(const SelectiveScanStepArgs& /*args*/) { return true; }

  template <typename X>
  void add(const LinearStepArgs& args) {
    std::get<Of<X>>(all).emplace_back(program::linear_of<X>(args, multiprocessors()));
  }
  template <typename X>
  void add(const SsdStepArgs& args) {
    std::get<Of<X>>(all).emplace_back(program::heads_of(args));
  }
  template <typename X>
  void add(const SelectiveScanStepArgs& args) {
    std::get<Of<X>>(all).emplace_back(program::channels_of<X>(args));
  }
};

StepProgram::StepProgram() : instructions_(std::make_unique<Instructions>()) {}
StepProgram::~StepProgram() = default;

bool StepProgram::is_empty() const {
  return std::holds_alternative<std::monostate>(instructions_->all);
}

template <typename Args>
bool StepProgram::add_any(const Args& args, DType x_dtype) {
  Instructions& to = *instructions_;
  const bool is_right_device =
      properties(current_device()).compute_capability == kCapability && to.takes(x_dtype);
  if (!is_right_device || !is_for_program(args) || !to.make_room(args)) return false;
  if (x_dtype == DType::f32) {
    if (is_empty()) to.all.emplace<Instructions::Of<float>>();
    to.add<float>(args);
  } else {
    if (is_empty()) to.all.emplace<Instructions::Of<bf16>>();
    to.add<bf16>(args);
  }
  return true;
}

bool StepProgram::add(const LinearStepArgs& args) { return add_any(args, x_dtype_of(args)); }
bool StepProgram::add(const SsdStepArgs& args) { return add_any(args, args.x.dtype); }
bool StepProgram::add(const SelectiveScanStepArgs& args) { return add_any(args, args.x.dtype); }

std::unique_ptr<const StepKernel> StepProgram::compile() {
  const Instructions now = std::exchange(*instructions_, {});
  check(!std::holds_alternative<std::monostate>(now.all),
        "step program: it has no operations, expected one at least");
  return std::visit(
      [&]<typename All>(const All& all) -> std::unique_ptr<const StepKernel> {
        if constexpr (std::is_same_v<All, Instructions::Of<float>>) {
          return std::make_unique<Kernel<float>>(all, now.batch, now.in);
        } else if constexpr (std::is_same_v<All, Instructions::Of<bf16>>) {
          return std::make_unique<Kernel<bf16>>(all, now.batch, now.in);
        } else {
          return nullptr;
        }
      },
      now.all);
}

}  // namespace adder::cuda
