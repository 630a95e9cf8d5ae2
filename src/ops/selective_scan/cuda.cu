#include "cuda/launch.cuh"
#include "ops/selective_scan/cuda_scan.cuh"

// A pass over the tokens of all segments but each sequence's last leaves what they make of a state
// of zeros; combine_kernel makes of that the states before the segments; then all segments are
// scanned again, now with y. A sequence of one segment needs the last pass alone. The first pass
// has no y, no C and no gate and takes about three quarters of the last one's time.

namespace adder::cuda {
namespace {

constexpr int kCombineThreads = 128;

/// Replaces what each segment leaves by the state before the next one. A thread has one state of
/// one channel; memory-bound, 8 bytes a segment, of which it asks for kAhead at once.
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const __grid_constant__ ScanParams p) {
  constexpr int kAhead = 8;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kCombineThreads + threadIdx.x;
  const std::int64_t size = p.d_inner * p.dstate;
  if (thread >= p.nsequences * size) return;
  const std::int64_t sequence = thread / size;
  const std::int64_t d = thread % size / p.dstate;
  const std::int64_t n = thread % p.dstate;
  const std::int64_t slot = sequence * p.nsegments;
  float* states = p.segment_states + slot * size + thread % size;
  const float* steps = p.segment_steps + slot * p.d_inner + d;
  const SegmentMarks* marks = p.seq_idx == nullptr ? nullptr : p.segment_marks + slot;
  const float A = scan_rate(p.A[d * p.A_stride + n]);
  float h = p.initial.data == nullptr
                ? 0.0F
                : p.initial.data[sequence * p.initial.sequence + d * p.initial.channel + n];
  states[0] = h;
  states += size;
  const std::int64_t ends = p.nsegments - 1;
  std::int32_t last = -1;
  for (std::int64_t first = 0; first < ends; first += kAhead) {
    float added[kAhead];
    float dt[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool exists = first + i < ends;
      added[i] = exists ? states[(first + i) * size] : 0.0F;
      dt[i] = exists ? steps[(first + i) * p.d_inner] : 0.0F;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= ends) break;
      bool forgets = false;
      if (marks != nullptr) {
        const SegmentMarks segment = marks[first + i];
        forgets =
            segment.restarts != 0 || (segment.first >= 0 && last >= 0 && segment.first != last);
        if (segment.last >= 0) last = segment.last;
      }
      h = forgets ? added[i] : fmaf(expf(A * dt[i]), h, added[i]);
      states[(first + i) * size] = h;
    }
  }
}

template <typename T, int kLanes, int kStates, bool kVectors>
void launch_passes(const ScanParams& p, Stream stream) {
  constexpr std::int64_t kChannels = kScanThreads / kLanes;
  const std::int64_t blocks = p.nsequences * p.ngroups * ceil_div(p.d_inner / p.ngroups, kChannels);
  if (p.nsegments > 1) {
    launch("to launch the segments of selective_scan",
           scan_kernel<T, kLanes, kStates, false, kVectors>, blocks * (p.nsegments - 1),
           kScanThreads, 0, stream, p);
    launch("to launch selective_scan between segments", combine_kernel,
           ceil_div(p.nsequences * p.d_inner * p.dstate, kCombineThreads), kCombineThreads, 0,
           stream, p);
  }
  launch("to launch selective_scan", scan_kernel<T, kLanes, kStates, true, kVectors>,
         blocks * p.nsegments, kScanThreads, 0, stream, p);
}

}  // namespace

template <typename T>
void launch_scan(const ScanParams& p, Stream stream) {
  const ScanLanes shape(p.dstate);
  if (shape.states == 16) {
    if (shape.lanes == 8) return launch_passes<T, 8, 16, false>(p, stream);
    return launch_passes<T, 16, 16, false>(p, stream);
  }
  switch (shape.lanes) {
    case 1:
      return launch_passes<T, 1, 8, false>(p, stream);
    case 2:
      // The models' 16 states: not to ask at every access is 4% of the instructions.
      if (p.channel_vectors && p.state_vectors) return launch_passes<T, 2, 8, true>(p, stream);
      return launch_passes<T, 2, 8, false>(p, stream);
    case 4:
      return launch_passes<T, 4, 8, false>(p, stream);
    default:
      return launch_passes<T, 8, 8, false>(p, stream);
  }
}

template void launch_scan<float>(const ScanParams&, Stream);
template void launch_scan<bf16>(const ScanParams&, Stream);
template void launch_scan<f16>(const ScanParams&, Stream);

}  // namespace adder::cuda
