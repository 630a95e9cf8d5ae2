// The launches of the fused Hopper kernel.

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/ceil_div.h"
#include "cuda/check.h"
#include "cuda/overlap.cuh"
#include "cuda/tensor_map.h"
#include "ops/ssd_forward/hopper_kernel.cuh"
#include "ops/ssd_forward/hopper_launch.h"

namespace adder::cuda::hopper {
namespace {

Strides strides_of(const ConstTensorView& view) {
  if (!view.defined()) return {};
  return {view.stride(0), view.stride(1), view.stride(2)};
}

// (sequence, head, channel, n), of which the kernel calls the channel a token.
Strides state_strides(const ConstTensorView& view) {
  if (!view.defined()) return {};
  return {view.stride(0), view.stride(2), view.stride(1)};
}

bool in_pairs(const ConstTensorView& states) {
  if (!states.defined()) return false;
  bool even = states.dim(3) % 2 == 0 && reinterpret_cast<std::uintptr_t>(states.data) % 8 == 0;
  for (int d = 0; d < 3; ++d) even = even && states.stride(d) % 2 == 0;
  return even;
}

// (batch, token, head or group, channel) as the copy engine counts it, fastest first.
CUtensorMap map_of(std::string_view name, const ConstTensorView& view) {
  return make_tensor_map(name, {view.data,
                                view.dtype,
                                {view.dim(3), view.dim(2), view.dim(1), view.dim(0)},
                                {view.stride(2), view.stride(1), view.stride(0)},
                                {64, 1, kChunk, 1}});
}

Params params_of(const Call& call) {
  Params p{};
  p.x = map_of("x", call.x);
  p.y = map_of("y", call.y);
  p.B = map_of("B", call.B);
  p.C = map_of("C", call.C);
  p.dt = call.dt.data;
  p.dt_strides = strides_of(call.dt);
  p.dt_is_float = call.dt.dtype == DType::f32;
  p.dt_options = call.dt_options;
  p.A = static_cast<const float*>(call.A.data);
  p.dt_bias = static_cast<const float*>(call.dt_bias.data);
  p.D = static_cast<const float*>(call.D.data);
  p.D_per_channel = call.D.rank == 2;
  p.z = call.z.data;
  p.z_strides = strides_of(call.z);
  p.add_to_y = call.add_to_y;
  p.initial_states = static_cast<const float*>(call.initial_states.data);
  p.initial_strides = state_strides(call.initial_states);
  p.final_states = static_cast<float*>(call.final_states.data);
  p.final_strides = state_strides(call.final_states);
  p.final_states_in_pairs = in_pairs(call.final_states);
  p.segment_states = static_cast<float4*>(call.segment_states);
  p.segment_decays = call.segment_decays;
  p.batch = static_cast<int>(call.x.dim(0));
  p.seqlen = static_cast<int>(call.x.dim(1));
  p.nsegments = static_cast<int>(call.segments);
  p.segment_tokens = static_cast<int>(call.segment_tokens);
  p.headdim = static_cast<int>(call.x.dim(3));
  p.dstate = static_cast<int>(call.B.dim(3));
  p.heads_per_group = static_cast<int>(call.heads_per_group);
  p.parts_per_head = static_cast<int>(call.parts_per_head);
  p.blocks_per_group = static_cast<int>(call.blocks_per_group);
  p.start = call.start;
  p.ngroups = static_cast<int>(call.groups());
  p.cuts = static_cast<unsigned*>(call.cuts);
  p.tickets = p.cuts + p.batch * call.groups() * call.units_per_group();
  if (call.parts > 0) {
    const std::int64_t chunks = ceil_div(call.x.dim(1), kChunk);
    p.part_chunks = static_cast<int>(
        ceil_div(call.x.dim(0) * call.groups() * call.blocks_per_group * chunks, call.parts));
  }
  return p;
}

/// The kernel, once it may have so much shared memory on the device.
template <auto kKernel>
auto allowed(int device, std::size_t shared_bytes) {
  // Once per device; doing it twice at the same time does no harm.
  static std::array<std::atomic<bool>, 64> known{};
  if (device >= static_cast<int>(known.size()) || !known[device]) {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "to allow ssd_forward its shared memory");
    if (device < static_cast<int>(known.size())) known[device] = true;
  }
  return kKernel;
}

template <typename T, int kSlices, bool kExtras>
void launch_outputs(const Params& p, const Call& call, bool overlap, Stream stream) {
  constexpr int kThreads = Layout<kSlices, true>::kThreads;
  constexpr std::size_t kBytes = sizeof(Shared<kSlices, true>);
  constexpr std::string_view kName = "to launch ssd_forward";
  const int device = call.x.device.index;
  if (call.parts > 0) {
    const std::int64_t units = p.batch * call.groups() * call.units_per_group();
    check(cudaMemsetAsync(call.cuts, 0, static_cast<std::size_t>(units + 1) * sizeof(unsigned),
                          stream),
          "to clear the cuts of ssd_forward");
    const auto kernel = allowed<ssd_forward_end_to_end_kernel<T, kSlices, kExtras>>(device, kBytes);
    return launch_overlapping(kName, kernel, dim3(static_cast<unsigned>(call.parts)), kThreads,
                              kBytes, /*overlap=*/false, stream, p);
  }
  const dim3 grid(static_cast<unsigned>(call.groups() * call.blocks_per_group),
                  static_cast<unsigned>(p.nsegments), static_cast<unsigned>(p.batch));
  launch_overlapping(kName, allowed<ssd_forward_kernel<T, kSlices, true, kExtras>>(device, kBytes),
                     grid, kThreads, kBytes, overlap, stream, p);
}

template <typename T, int kSlices>
void launch_kernels(const Params& p, const Call& call, Stream stream) {
  const auto batch = static_cast<unsigned>(p.batch);
  const auto segments = static_cast<unsigned>(p.nsegments);
  const bool handed_over = segments > 1 && p.start != SegmentStart::walked;
  if (handed_over) {
    const auto blocks = static_cast<unsigned>(call.groups() * call.blocks_per_group);
    const unsigned units = batch * static_cast<unsigned>(call.groups() * call.units_per_group());
    constexpr std::size_t kBytes = sizeof(Shared<kSlices, false>);
    launch_overlapping(
        "to launch ssd_forward's end states",
        allowed<ssd_forward_kernel<T, kSlices, false, false>>(call.x.device.index, kBytes),
        dim3(blocks, segments - 1, batch), Layout<kSlices, false>::kThreads, kBytes,
        /*overlap=*/false, stream, p);
    launch_overlapping("to launch ssd_forward's combination of segments", combine_segments_kernel,
                       dim3(8 * kSlices, units), kCombineThreads, 0, /*overlap=*/true, stream, p);
  }
  const bool overlap = handed_over || call.add_to_y;
  if (p.D_per_channel || p.z != nullptr) {
    launch_outputs<T, kSlices, true>(p, call, overlap, stream);
  } else {
    launch_outputs<T, kSlices, false>(p, call, overlap, stream);
  }
}

template <typename T>
void launch_slices(const Params& p, const Call& call, Stream stream) {
  switch (call.slices) {
    case 1:
      return launch_kernels<T, 1>(p, call, stream);
    case 2:
      return launch_kernels<T, 2>(p, call, stream);
    case 3:
      return launch_kernels<T, 3>(p, call, stream);
    default:
      return launch_kernels<T, 4>(p, call, stream);
  }
}

}  // namespace

void launch(const Call& call, Stream stream) {
  const Params p = params_of(call);
  if (call.x.dtype == DType::bf16) {
    launch_slices<__nv_bfloat16>(p, call, stream);
  } else {
    launch_slices<__half>(p, call, stream);
  }
}

}  // namespace adder::cuda::hopper
