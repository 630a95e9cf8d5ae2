// The host's side of the fused Hopper kernel (hopper_kernel.cuh): which calls it takes, how they
// are cut into blocks, and its launches.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/workspace.h"
#include "cuda/device.h"
#include "cuda/tensor_map_shape.h"
#include "ops/ssd_forward/cuda_variants.h"
#include "ops/ssd_forward/hopper_launch.h"

namespace adder::cuda::hopper {
namespace {

constexpr std::int64_t kMaxHeaddim = 256;
/// States of up to kPassDstate are computed in one pass. Larger ones in two, since the parts of y
/// that come from parts of dstate add up: the second pass adds to y.
constexpr std::int64_t kPassDstate = 256;
constexpr std::int64_t kMaxDstate = 2 * kPassDstate;

/// How a call falls into units (heads, or halves of wide ones) and blocks.
struct Shape {
  std::int64_t batch, seqlen, nheads, headdim, ngroups, dstate;
  std::int64_t parts_per_head, units_per_group, blocks_per_group, nchunks;
  int slices;  ///< 64 elements of dstate each, of the larger pass

  std::int64_t units() const { return batch * ngroups * units_per_group; }
  std::int64_t blocks() const { return batch * ngroups * blocks_per_group; }
  /// Of a unit, whose state is kept as the kernel's fragments: 64 × 64 a slice.
  std::int64_t state_size() const { return std::int64_t{64} * 64 * slices; }
};

Shape shape_of(const SsdForwardArgs& args) {
  Shape s{};
  s.batch = args.x.dim(0);
  s.seqlen = args.x.dim(1);
  s.nheads = args.x.dim(2);
  s.headdim = args.x.dim(3);
  s.ngroups = args.B.dim(2);
  s.dstate = args.B.dim(3);
  s.parts_per_head = ceil_div(s.headdim, kColumns);
  s.units_per_group = s.nheads / s.ngroups * s.parts_per_head;
  s.blocks_per_group = ceil_div(s.units_per_group, kHeads);
  s.nchunks = ceil_div(s.seqlen, kChunk);
  s.slices = static_cast<int>(ceil_div(std::min(s.dstate, kPassDstate), 64));
  return s;
}

// ---- the cost of a choice -----------------------------------------------------------------------

/// Microseconds of a block per chunk and per launch on an H200, measured at 16,384 to 262,144
/// tokens of 32 heads and 4,096 of 640.
struct Costs {
  double end_state;  // a chunk of the first kernel
  double outputs;    // a chunk of the second
};
constexpr std::array<Costs, 4> kCosts{{{0.74, 1.50}, {0.83, 1.90}, {0.95, 2.60}, {1.08, 3.30}}};
constexpr double kSegmentsOverhead = 4;  // the first kernel's fill, and the combining
/// Of so many blocks of the first kernel that the second can begin nowhere before it ends; and per
/// slice of the states that all its blocks then load at once.
constexpr double kCrowdedOverhead = 4;
constexpr double kCrowdedOverheadPerSlice = 0.5;

double cost(const Shape& s, std::int64_t segments, std::int64_t multiprocessors) {
  const Costs& costs = kCosts[static_cast<std::size_t>(s.slices - 1)];
  const auto chunks = static_cast<double>(ceil_div(s.nchunks, segments));
  const auto waves = [&](std::int64_t blocks) {
    return static_cast<double>(ceil_div(blocks, multiprocessors));
  };
  const double outputs = waves(s.blocks() * segments) * chunks * costs.outputs;
  if (segments == 1) return outputs;
  const std::int64_t ends = s.blocks() * (segments - 1);
  const bool crowded = 4 * ends > 3 * multiprocessors;
  return outputs + waves(ends) * chunks * costs.end_state + kSegmentsOverhead +
         (crowded ? kCrowdedOverhead + kCrowdedOverheadPerSlice * s.slices : 0.0);
}

/// Segments of equal length, the last perhaps shorter, none empty.
std::int64_t without_empty(std::int64_t nchunks, std::int64_t segments) {
  return ceil_div(nchunks, ceil_div(nchunks, segments));
}

struct Workspace {
  float* segment_states;
  float* segment_decays;
};

Workspace take_workspace(WorkspaceCutter& cutter, const Shape& s, std::int64_t segments) {
  const std::int64_t count = segments > 1 ? s.units() * segments : 0;
  if (count == 0) return {};
  return {cutter.take<float>(count * s.state_size()), cutter.take<float>(count)};
}

std::string refuses_map(std::string_view name, const ConstTensorView& view) {
  if (can_map({view.data,
               view.dtype,
               {view.dim(3), view.dim(2), view.dim(1), view.dim(0)},
               {view.stride(2), view.stride(1), view.stride(0)},
               {}})) {
    return {};
  }
  return fmt::format("{} has an address or strides that are not multiples of 16 bytes", name);
}

}  // namespace

std::string refuses(const SsdForwardArgs& args, const SsdForwardChoice& choice) {
  const Shape s = shape_of(args);
  const int capability = properties(args.x.device.index).compute_capability;
  if (capability != 90) {
    return fmt::format("the device has compute capability {}.{}, expected 9.0", capability / 10,
                       capability % 10);
  }
  if (args.x.dtype == DType::f32) return "x is f32, expected bf16 or f16";
  if (s.batch == 0 || s.seqlen == 0) return "there are no tokens";
  if (args.cu_seqlens.defined() || args.seq_idx.defined()) return "sequences are packed";
  if (s.headdim > kMaxHeaddim) {
    return fmt::format("headdim is {}, expected at most {}", s.headdim, kMaxHeaddim);
  }
  if (s.dstate > kMaxDstate) {
    return fmt::format("dstate is {}, expected at most {}", s.dstate, kMaxDstate);
  }
  if (s.dstate > kPassDstate && (args.y.data == args.x.data || args.y.data == args.z.data)) {
    return fmt::format("y takes the place of x or z, and dstate is {}, more than {}", s.dstate,
                       kPassDstate);
  }
  constexpr std::int64_t kMaxGrid = 65535;
  if (s.seqlen > std::numeric_limits<int>::max() - kChunk || s.batch > kMaxGrid ||
      s.units() > kMaxGrid) {
    return "there are too many tokens, sequences or heads for its grid";
  }
  if (choice.variant == SsdForwardVariant::hopper) {
    if (choice.segments < 1 || choice.segments > s.nchunks ||
        without_empty(s.nchunks, choice.segments) != choice.segments) {
      return fmt::format("segments is {}, expected a count that cuts {} chunks without a rest",
                         choice.segments, s.nchunks);
    }
    const bool known = choice.cluster == 1 || choice.cluster == 2 || choice.cluster == 4;
    if (!known || s.blocks_per_group % choice.cluster != 0) {
      return fmt::format("cluster is {}, expected 1, 2 or 4 and a divisor of {}", choice.cluster,
                         s.blocks_per_group);
    }
  }
  for (std::string reason : {refuses_map("x", args.x), refuses_map("B", args.B),
                             refuses_map("C", args.C), refuses_map("y", args.y)}) {
    if (!reason.empty()) return reason;
  }
  return {};
}

SsdForwardChoice choose(const SsdForwardArgs& args) {
  const Shape s = shape_of(args);
  const std::int64_t multiprocessors = properties(args.x.device.index).multiprocessors;
  SsdForwardChoice best{.variant = SsdForwardVariant::hopper};
  // More segments than fill the device once only add work.
  const std::int64_t most = std::min(s.nchunks, ceil_div(multiprocessors, s.blocks()) + 1);
  for (std::int64_t segments = 2; segments <= most; ++segments) {
    const std::int64_t used = without_empty(s.nchunks, segments);
    if (cost(s, used, multiprocessors) < cost(s, best.segments, multiprocessors)) {
      best.segments = used;
    }
  }
  return best;
}

std::size_t workspace_bytes(const SsdForwardArgs& args, const SsdForwardChoice& choice) {
  WorkspaceCutter cutter;
  take_workspace(cutter, shape_of(args), choice.segments);
  return cutter.bytes();
}

void run(const SsdForwardArgs& args, const SsdForwardChoice& choice, std::span<std::byte> workspace,
         Stream stream) {
  const Shape s = shape_of(args);
  WorkspaceCutter cutter(workspace);
  const Workspace w = take_workspace(cutter, s, choice.segments);
  for (std::int64_t n = 0; n < s.dstate; n += kPassDstate) {
    const std::int64_t count = std::min(kPassDstate, s.dstate - n);
    const bool first = n == 0;
    const bool last = n + count == s.dstate;
    const auto part = [&]<typename View>(const View& view) {
      return view.defined() ? view.narrow(3, n, count) : view;
    };
    launch({.x = args.x,
            .dt = args.dt,
            .A = args.A,
            .B = part(args.B),
            .C = part(args.C),
            .D = first ? args.D : ConstTensorView{},
            .z = last ? args.z : ConstTensorView{},
            .dt_bias = args.dt_bias,
            .initial_states = part(args.initial_states),
            .y = args.y,
            .final_states = part(args.final_states),
            .add_to_y = !first,
            .dt_options = {args.dt_softplus, args.dt_min, args.dt_max},
            .heads_per_group = s.nheads / s.ngroups,
            .parts_per_head = s.parts_per_head,
            .blocks_per_group = s.blocks_per_group,
            .slices = static_cast<int>(ceil_div(count, 64)),
            .segments = choice.segments,
            .segment_tokens = ceil_div(s.nchunks, choice.segments) * kChunk,
            .cluster = choice.cluster,
            .segment_states = w.segment_states,
            .segment_decays = w.segment_decays},
           stream);
  }
}

std::vector<SsdForwardChoice> candidates(const SsdForwardArgs& args) {
  if (!refuses(args, SsdForwardChoice{}).empty()) return {};
  const Shape s = shape_of(args);
  const std::int64_t multiprocessors = properties(args.x.device.index).multiprocessors;
  const std::int64_t most = std::clamp<std::int64_t>(multiprocessors / s.blocks(), 1, s.nchunks);
  std::vector<SsdForwardChoice> out;
  // Every count up to 8, then in steps of an eighth: of many segments one more changes little.
  for (std::int64_t segments = 1; segments <= most;
       segments += std::max<std::int64_t>(1, segments / 8)) {
    for (int cluster : {1, 2, 4}) {
      out.push_back(
          {.variant = SsdForwardVariant::hopper, .segments = segments, .cluster = cluster});
    }
  }
  return out;
}

}  // namespace adder::cuda::hopper
