#include <algorithm>

#include "core/ceil_div.h"
#include "core/dispatch.h"
#include "core/workspace.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/selective_scan/cuda_kernel.h"
#include "ops/selective_scan/selective_scan.h"

namespace adder::cuda {
namespace {

constexpr auto kOp = "selective_scan";

std::int64_t count_sequences(const SelectiveScanArgs& args) {
  return args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.x.dim(0);
}

// One segment is one pass over the tokens. More take almost two passes, so they pay only where one
// pass would leave a third of the multiprocessors without a block.
std::int64_t choose_segments(const SelectiveScanArgs& args) {
  constexpr std::int64_t kResidentBlocks = 5;  // of a multiprocessor
  constexpr std::int64_t kLeastTokens = 128;   // of a segment
  constexpr std::int64_t kMostSegments = 128;
  const std::int64_t nsequences = count_sequences(args);
  const std::int64_t ngroups = args.B.dim(2);
  const std::int64_t blocks =
      nsequences * ngroups *
      ceil_div(args.x.dim(2) / ngroups, ScanLanes(args.A.dim(1)).channels_per_block());
  if (blocks == 0) return 1;
  const std::int64_t multiprocessors = properties(args.x.device.index).multiprocessors;
  if (3 * blocks > 2 * multiprocessors) return 1;
  const std::int64_t tokens = args.cu_seqlens.defined() ? args.x.dim(1) / nsequences  // on average
                                                        : args.x.dim(1);
  const std::int64_t fit = kResidentBlocks * multiprocessors / blocks;
  return std::clamp<std::int64_t>(std::min(fit, tokens / kLeastTokens), 1, kMostSegments);
}

// The arrays between segments.
void take_workspace(WorkspaceCutter& cutter, const SelectiveScanArgs& args, ScanParams& p) {
  const std::int64_t segments = count_sequences(args) * p.nsegments;
  p.segment_states = cutter.take<float>(segments * args.x.dim(2) * args.A.dim(1));
  p.segment_steps = cutter.take<float>(segments * args.x.dim(2));
  p.segment_marks = cutter.take<SegmentMarks>(args.seq_idx.defined() ? segments : 0);
}

template <typename Void>
ScanTensor<Void> scan_tensor(const BasicTensorView<Void>& view) {
  if (!view.defined()) return {};
  return {view.data, view.stride(0), view.stride(1), view.rank == 4 ? view.stride(2) : 0};
}

bool aligned(const ConstTensorView& view) { return !view.defined() || rows_aligned(view); }

ScanParams make_params(const SelectiveScanArgs& args) {
  constexpr std::int64_t kVector = 4;
  ScanParams p{};
  p.x = scan_tensor(args.x);
  p.dt = scan_tensor(args.dt);
  p.z = scan_tensor(args.z);
  p.B = scan_tensor(args.B);
  p.C = scan_tensor(args.C);
  p.y = scan_tensor(args.y);
  p.A = args.A.as<float>();
  p.A_stride = args.A.stride(0);
  if (args.D.defined()) p.D = args.D.as<float>();
  if (args.dt_bias.defined()) p.dt_bias = args.dt_bias.as<float>();
  if (args.initial_states.defined()) {
    const ConstTensorView& view = args.initial_states;
    p.initial = {view.as<float>(), view.stride(0), view.stride(1)};
  }
  if (args.final_states.defined()) {
    const TensorView& view = args.final_states;
    p.final = {view.as<float>(), view.stride(0), view.stride(1)};
  }
  if (args.cu_seqlens.defined()) p.cu_seqlens = args.cu_seqlens.as<std::int32_t>();
  if (args.seq_idx.defined()) {
    p.seq_idx = args.seq_idx.as<std::int32_t>();
    p.seq_idx_row = args.seq_idx.stride(0);
  }
  p.nsequences = count_sequences(args);
  p.seqlen = args.x.dim(1);
  p.d_inner = args.x.dim(2);
  p.ngroups = args.B.dim(2);
  p.dstate = args.A.dim(1);
  p.dt_softplus = args.dt_softplus;
  p.channel_vectors = p.d_inner / p.ngroups % kVector == 0 && aligned(args.x) && aligned(args.dt) &&
                      aligned(args.z) && aligned(args.y);
  p.state_vectors = p.dstate % kVector == 0 && aligned(args.B) && aligned(args.C);
  p.nsegments = choose_segments(args);
  return p;
}

}  // namespace

std::size_t selective_scan_workspace_bytes(const SelectiveScanArgs& args) {
  validate(args);
  check(args.x.device.type == DeviceType::cuda,
        "selective_scan: x is in {}, expected it in memory of a CUDA device",
        place_string(args.x.device));
  ScanParams p = make_params(args);
  if (p.nsegments == 1) return 0;
  WorkspaceCutter cutter;
  take_workspace(cutter, args, p);
  return cutter.bytes();
}

void selective_scan(const SelectiveScanArgs& args, std::span<std::byte> workspace, Stream stream) {
  validate(args);
  check_current(kOp, "x", args.x);
  ScanParams p = make_params(args);
  if (p.nsegments > 1) {
    check_workspace(kOp, workspace, selective_scan_workspace_bytes(args));
    WorkspaceCutter cutter(workspace);
    take_workspace(cutter, args, p);
  }
  visit_float(args.x.dtype, [&]<typename T>(TypeTag<T>) { launch_scan<T>(p, stream); });
}

}  // namespace adder::cuda
