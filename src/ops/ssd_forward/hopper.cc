// The host's side of the fused Hopper kernel (hopper_kernel.cuh): which calls it takes, how they
// are cut into blocks, and its launches.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/ceil_div.h"
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

/// How a call falls into units (heads, or parts of wide ones) and blocks.
struct Shape {
  std::int64_t batch, seqlen, nheads, headdim, ngroups, dstate;
  std::int64_t parts_per_head, units_per_group, nchunks;
  int slices;     ///< 64 elements of dstate each, of the first pass
  bool in_place;  ///< y takes the place of x, or final states that of initial ones

  std::int64_t units() const { return batch * ngroups * units_per_group; }
  std::int64_t blocks_per_group(int slices_of_pass) const {
    return ceil_div(units_per_group, heads_of_block(slices_of_pass));
  }
  /// Of a segment, in the first pass.
  std::int64_t blocks() const { return batch * ngroups * blocks_per_group(slices); }
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
  s.nchunks = ceil_div(s.seqlen, kChunk);
  s.slices = static_cast<int>(ceil_div(std::min(s.dstate, kPassDstate), 64));
  s.in_place = args.y.data == args.x.data || (args.initial_states.defined() &&
                                              args.final_states.data == args.initial_states.data);
  return s;
}

// ---- the cost of a choice -----------------------------------------------------------------------

// Heads remember what the data say, which is not known here. The costs are those of short memory;
// long ones add a pass over all but the last segment, or the tokens before each of them.

/// Microseconds on an H200, measured at 4,096 to 262,144 tokens of 32 heads: of a block per chunk,
/// and what it takes longer with a pass before where hardly a multiprocessor is left idle.
struct Costs {
  double without_outputs;
  double with_outputs;
  double crowded;
};
constexpr std::array<Costs, 4> kCosts{
    {{1.0, 2.7, 5.0}, {1.0, 2.9, 0.0}, {1.0, 3.0, 0.0}, {1.1, 3.5, 0.0}}};
constexpr double kCrowd = 0.85;    // of the multiprocessors
constexpr double kPassBefore = 6;  // its launch and that of the combination
constexpr double kMemory = 3;      // chunks
constexpr double kPieces = 8;      // between pieces of a part
/// Chunks of a sequence: up to here a warm-up over all of it costs no more than a pass before.
constexpr std::int64_t kMostWarmUp = 32;

/// Whether no sequence is longer than a part of all of them laid end to end, in every pass.
bool fits_end_to_end(const Shape& s, std::int64_t multiprocessors) {
  const std::int64_t rest = s.dstate > kPassDstate ? s.dstate - kPassDstate : s.dstate;
  const auto last_slices = static_cast<int>(ceil_div(std::min(rest, kPassDstate), 64));
  return s.batch * s.ngroups * s.blocks_per_group(last_slices) >= multiprocessors;
}

double cost(const Shape& s, const SsdForwardChoice& choice, std::int64_t multiprocessors) {
  const Costs& costs = kCosts[static_cast<std::size_t>(s.slices - 1)];
  if (choice.end_to_end) {
    return static_cast<double>(ceil_div(s.blocks() * s.nchunks, multiprocessors)) *
               costs.with_outputs +
           kPieces;
  }
  const auto chunks = static_cast<double>(ceil_div(s.nchunks, choice.segments));
  const auto waves = static_cast<double>(ceil_div(s.blocks() * choice.segments, multiprocessors));
  const double outputs = waves * chunks * costs.with_outputs;
  if (choice.segments == 1) return outputs;
  const double memory = waves * kMemory * costs.without_outputs;
  if (choice.warm_up) return outputs + memory;
  const bool is_crowded = static_cast<double>(s.blocks() * choice.segments) >
                          kCrowd * static_cast<double>(multiprocessors);
  return outputs + memory + kPassBefore + (is_crowded ? costs.crowded : 0.0);
}

/// Segments of equal length, the last perhaps shorter, none empty.
std::int64_t without_empty(std::int64_t nchunks, std::int64_t segments) {
  return ceil_div(nchunks, ceil_div(nchunks, segments));
}

struct Workspace {
  float* segment_states;
  float* segment_decays;
  std::uint32_t* cuts;
};

Workspace take_workspace(WorkspaceCutter& cutter, const Shape& s, const SsdForwardChoice& choice) {
  Workspace w{};
  if (choice.end_to_end) {
    w.segment_states = cutter.take<float>(s.units() * s.state_size());
    w.cuts = cutter.take<std::uint32_t>(s.units() + 1);
  } else if (choice.segments > 1 && !choice.warm_up) {
    w.segment_states = cutter.take<float>(s.units() * choice.segments * s.state_size());
    w.segment_decays = cutter.take<float>(s.units() * choice.segments);
  }
  return w;
}

SegmentStart start_of_segments(const Shape& s, const SsdForwardChoice& choice) {
  if (choice.warm_up) return SegmentStart::walked;
  return s.in_place ? SegmentStart::handed_over : SegmentStart::walked_if_short;
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
  // Tokens, and some chunks beyond, are counted in int.
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
  if (s.seqlen > kMaxTokens || s.batch > kMaxGrid || s.units() > kMaxGrid) {
    return "there are too many tokens, sequences or heads for its grid";
  }
  if (choice.variant == SsdForwardVariant::hopper) {
    if (choice.segments < 1 || choice.segments > std::min(s.nchunks, kMaxGrid) ||
        without_empty(s.nchunks, choice.segments) != choice.segments) {
      return fmt::format("segments is {}, expected a count that cuts {} chunks without a rest",
                         choice.segments, s.nchunks);
    }
    if (choice.warm_up && s.in_place) {
      return "warm_up needs x and initial states where y or final states take their place";
    }
    if (choice.end_to_end && (choice.segments != 1 || choice.warm_up)) {
      return "end_to_end is for one segment without warm_up";
    }
    const std::int64_t multiprocessors = properties(args.x.device.index).multiprocessors;
    if (choice.end_to_end && !fits_end_to_end(s, multiprocessors)) {
      return fmt::format("end_to_end needs a block of heads for each of {} multiprocessors",
                         multiprocessors);
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
  if (fits_end_to_end(s, multiprocessors)) {
    const SsdForwardChoice choice{.variant = SsdForwardVariant::hopper, .end_to_end = true};
    if (cost(s, choice, multiprocessors) < cost(s, best, multiprocessors)) best = choice;
  }
  const bool may_warm_up = s.nchunks <= kMostWarmUp && !s.in_place;
  for (std::int64_t segments = 2; segments <= most; ++segments) {
    const SsdForwardChoice choice{.variant = SsdForwardVariant::hopper,
                                  .segments = without_empty(s.nchunks, segments),
                                  .warm_up = may_warm_up};
    if (cost(s, choice, multiprocessors) < cost(s, best, multiprocessors)) best = choice;
  }
  return best;
}

std::size_t workspace_bytes(const SsdForwardArgs& args, const SsdForwardChoice& choice) {
  WorkspaceCutter cutter;
  take_workspace(cutter, shape_of(args), choice);
  return cutter.bytes();
}

void run(const SsdForwardArgs& args, const SsdForwardChoice& choice, std::span<std::byte> workspace,
         Stream stream) {
  const Shape s = shape_of(args);
  WorkspaceCutter cutter(workspace);
  const Workspace w = take_workspace(cutter, s, choice);
  const std::int64_t multiprocessors = properties(args.x.device.index).multiprocessors;
  for (std::int64_t n = 0; n < s.dstate; n += kPassDstate) {
    const std::int64_t count = std::min(kPassDstate, s.dstate - n);
    const bool first = n == 0;
    const auto part = [&]<typename View>(const View& view) {
      return view.defined() ? view.narrow(3, n, count) : view;
    };
    const int slices = static_cast<int>(ceil_div(count, 64));
    launch({.x = args.x,
            .dt = args.dt,
            .A = args.A,
            .B = part(args.B),
            .C = part(args.C),
            .D = first ? args.D : ConstTensorView{},
            .z = args.z,
            .dt_bias = args.dt_bias,
            .initial_states = part(args.initial_states),
            .y = args.y,
            .final_states = part(args.final_states),
            .add_to_y = !first,
            .dt_options = {args.dt_softplus, args.dt_min, args.dt_max},
            .heads_per_group = s.nheads / s.ngroups,
            .parts_per_head = s.parts_per_head,
            .blocks_per_group = s.blocks_per_group(slices),
            .slices = slices,
            .segments = choice.segments,
            .segment_tokens = ceil_div(s.nchunks, choice.segments) * kChunk,
            .start = start_of_segments(s, choice),
            .segment_states = w.segment_states,
            .segment_decays = w.segment_decays,
            .parts = choice.end_to_end ? multiprocessors : 0,
            .cuts = w.cuts},
           stream);
  }
}

std::vector<SsdForwardChoice> candidates(const SsdForwardArgs& args) {
  if (!refuses(args, SsdForwardChoice{}).empty()) return {};
  const Shape s = shape_of(args);
  const std::int64_t multiprocessors = properties(args.x.device.index).multiprocessors;
  const std::int64_t most = std::clamp<std::int64_t>(multiprocessors / s.blocks(), 1, s.nchunks);
  std::vector<SsdForwardChoice> out;
  if (fits_end_to_end(s, multiprocessors)) {
    out.push_back({.variant = SsdForwardVariant::hopper, .end_to_end = true});
  }
  // Every count up to 8, then in steps of an eighth: of many segments one more changes little.
  for (std::int64_t segments = 1; segments <= most;
       segments += std::max<std::int64_t>(1, segments / 8)) {
    for (const bool warm_up : {false, true}) {
      if (warm_up && (segments == 1 || s.nchunks > kMostWarmUp || s.in_place)) continue;
      out.push_back(
          {.variant = SsdForwardVariant::hopper, .segments = segments, .warm_up = warm_up});
    }
  }
  return out;
}

}  // namespace adder::cuda::hopper
