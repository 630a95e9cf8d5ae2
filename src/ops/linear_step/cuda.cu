// Work per weight: one multiply-add for each sequence. Bound: device memory, which the weight is
// read from once; 27 M weights of bf16 (in_proj of mamba2-2.7b) take 12.7 µs at the 4.28 TB/s of an
// H200. The norm before it and the convolution after it are a few microseconds each as kernels of
// their own, and nothing here: blocks make v each for itself while the first weights are on their
// way, and the thread that has a column of y has all that its convolution needs.
//
// Map: a block per multiprocessor, few enough registers that the next kernel's blocks fit beside it
// and begin with their weights while the last of this one's arrive. A block has an equal share of
// the rows, cut into groups of kRows rows; a group is as many steps as a row has warps' vectors
// (32 · V elements). All steps of a block are laid end to end and cut into equal spans, one a warp,
// so that no warp waits for another at the end. What a warp has of a group at the ends of its span
// goes to slots of its own and is summed by whoever finishes the column, in a fixed order.
//
// Shared memory: v in float32, the sums. Arithmetic: float32.

#include <algorithm>
#include <type_traits>

#include "core/ceil_div.h"
#include "cuda/check.h"
#include "cuda/math.cuh"
#include "cuda/overlap.cuh"
#include "cuda/rows.cuh"
#include "cuda/vector.cuh"
#include "ops/linear_step/cuda_kernel.h"
#include "ops/linear_step/linear_step.h"

namespace adder::cuda::step {
namespace {

// Kernels are for 1, 2, 4 or 8 sequences, of which some may not exist.
constexpr int kernel_batch(int batch) { return batch <= 2 ? batch : batch <= 4 ? 4 : 8; }
// More sequences share a weight in registers, and need more of them.
constexpr int warps_of(int batch) { return batch <= 2 ? 16 : 8; }
constexpr int rows_of(int batch) { return batch <= 2 ? 1 : 4; }
// Steps whose weights a warp asks for at once.
constexpr int ahead_of(int batch) { return batch <= 2 ? 8 : 2; }

// ---- v ------------------------------------------------------------------------------------------

// The block's threads, divided among sequences.
template <int kBatch>
struct RowOfBatch {
  static constexpr int kWarps = warps_of(kBatch) / kBatch;  // of a sequence
  int sequence, index;
  bool exists;

  __device__ explicit RowOfBatch(int batch)
      : sequence(static_cast<int>(threadIdx.x) / (kWarps * kWarpSize)),
        index(static_cast<int>(threadIdx.x) % (kWarps * kWarpSize)),
        exists(sequence < batch) {}

  /// The sum over the threads of a sequence, the same in each; all threads of the block take part.
  __device__ float sum(float v, float* shared) const {
    v = warp_sum(v);
    __syncthreads();  // everyone is done with the sums before
    if (threadIdx.x % kWarpSize == 0) shared[threadIdx.x / kWarpSize] = v;
    __syncthreads();
    float total = 0;
    if (exists) {
      for (int i = 0; i < kWarps; ++i) total += shared[sequence * kWarps + i];
    }
    return total;
  }

  /// Calls visit(i) for columns i, i + 1, i + 2 and i + 3 of [begin, end), multiples of 4.
  template <typename Visit>
  __device__ void each_four(int begin, int end, Visit&& visit) const {
    if (!exists) return;
    for (int i = begin + 4 * index; i < end; i += 4 * kWarps * kWarpSize) visit(i);
  }
};

template <int kBatch, typename X, typename P>
__device__ void norm_of_residual(const P& p, float* v, float* sums) {
  const RowOfBatch<kBatch> row(p.batch);
  const std::int64_t s = row.sequence;
  float* mine = v + s * p.in;
  float sum = 0;
  row.each_four(0, p.in, [&](int i) {
    float r[4];
    load_floats(p.residual + s * p.residual_stride + i, true, r);
    if (p.x != nullptr) {
      float x[4];
      to_floats(load<4>(p.x + s * p.x_stride + i), x);
      for (int k = 0; k < 4; ++k) r[k] += x[k];
    }
    if (p.new_residual != nullptr && blockIdx.x == 0) {
      store_floats(p.new_residual + s * p.new_residual_stride + i, r);
    }
    sum = add_squares(sum, r);
    store_floats(mine + i, r);
  });
  const float scale = inverse_rms(row.sum(sum, sums), p.in, p.epsilon);
  row.each_four(0, p.in, [&](int i) {
    float r[4];
    load_floats(mine + i, true, r);
    apply_scale(r, scale, p.norm_weight == nullptr ? nullptr : p.norm_weight + i);
    store_floats(mine + i, r);
    if (p.norm_y != nullptr && blockIdx.x == 0)
      store(p.norm_y + s * p.norm_y_stride + i, from_floats<X>(r));
  });
}

template <int kBatch, typename X, typename P>
__device__ void gated_norm_of_x(const P& p, float* v, float* sums) {
  const RowOfBatch<kBatch> row(p.batch);
  const std::int64_t s = row.sequence;
  float* mine = v + s * p.in;
  const bool gate_first = !p.norm_before_gate || !p.normalize;
  const auto gate = [&](float(&values)[4], int i) {
    float z[4];
    to_floats(load<4>(p.z + s * p.z_stride + i), z);
    for (int k = 0; k < 4; ++k) values[k] *= silu<X>(z[k]);
  };
  const int size = p.in / p.ngroups;
  for (int begin = 0; begin < p.in; begin += size) {
    float sum = 0;
    row.each_four(begin, begin + size, [&](int i) {
      float values[4];
      to_floats(load<4>(p.x + s * p.x_stride + i), values);
      if (gate_first) gate(values, i);
      sum = add_squares(sum, values);
      store_floats(mine + i, values);
    });
    if (!p.normalize) continue;
    const float scale = inverse_rms(row.sum(sum, sums), size, p.epsilon);
    row.each_four(begin, begin + size, [&](int i) {
      float values[4];
      load_floats(mine + i, true, values);
      apply_scale(values, scale, p.norm_weight == nullptr ? nullptr : p.norm_weight + i);
      if (!gate_first) gate(values, i);
      store_floats(mine + i, values);
    });
  }
}

template <int kBatch, typename X, typename P>
__device__ void make_v(const P& p, float* v, float* sums) {
  if (p.residual != nullptr) {
    norm_of_residual<kBatch, X>(p, v, sums);
  } else if (p.z != nullptr) {
    gated_norm_of_x<kBatch, X>(p, v, sums);
  } else {
    const RowOfBatch<kBatch> row(p.batch);
    row.each_four(0, p.in, [&](int i) {
      float values[4];
      to_floats(load<4>(p.x + row.sequence * p.x_stride + i), values);
      store_floats(v + row.sequence * p.in + i, values);
    });
  }
  __syncthreads();
}

// ---- the product --------------------------------------------------------------------------------

// A block's rows and shared memory.
template <int kBatch>
struct Share {
  static constexpr int kWarps = warps_of(kBatch);
  static constexpr int kRows = rows_of(kBatch);
  static constexpr int kSums = kRows * kBatch;  // of a group

  int first, rows, groups;

  __device__ Share(int out) {
    const std::int64_t blocks = gridDim.x;
    first = static_cast<int>(out * std::int64_t{blockIdx.x} / blocks);
    rows = static_cast<int>(out * (std::int64_t{blockIdx.x} + 1) / blocks) - first;
    groups = (rows + kRows - 1) / kRows;
  }
};

// Where a warp's part of a group goes.
struct Slots {
  float* whole;  ///< (groups, kSums): of a warp that has all of a group
  float* ends;   ///< (warps, 2, kSums): of the first and the last group of a span, in part
};

// The steps of a warp: those of its span.
struct Span {
  int begin, end;
  int steps;  // of a group

  __device__ Span(int groups, int steps_of_group, int warp, int warps) : steps(steps_of_group) {
    const std::int64_t all = std::int64_t{groups} * steps;
    begin = static_cast<int>(all * warp / warps);
    end = static_cast<int>(all * (warp + 1) / warps);
  }
  __device__ bool is_empty() const { return begin == end; }
  __device__ int first_group() const { return begin / steps; }
  __device__ int last_group() const { return (end - 1) / steps; }
  /// Whether the span has all steps of a group.
  __device__ bool has_all_of(int group) const {
    return group * steps >= begin && (group + 1) * steps <= end;
  }
};

template <int kBatch, int V, typename X, typename W, typename Y>
class Product {
  using S = Share<kBatch>;
  static constexpr int kRows = S::kRows;
  static constexpr int kAhead = ahead_of(kBatch);
  static constexpr int kStep = V * kWarpSize;  // elements of a row

 public:
  __device__ Product(const Params<X, W, Y>& p, const float* v, const Slots& slots)
      : p_(p),
        v_(v),
        slots_(slots),
        share_(p.out),
        lane_(static_cast<int>(threadIdx.x) % kWarpSize),
        warp_(static_cast<int>(threadIdx.x) / kWarpSize),
        span_(share_.groups, (p.in + kStep - 1) / kStep, warp_, S::kWarps) {}

  /// Asks for the first weights of the warp, as far as the L2 cache.
  __device__ void prefetch() const {
    for (int i = 0; i < kAhead; ++i) {
      const Place place(*this, span_.begin + i);
      if (!place.exists) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) prefetch_l2(weight(place, r));
    }
  }

  __device__ void run() {
    int group = span_.is_empty() ? 0 : span_.first_group();
    for (int step = span_.begin; step < span_.end; step += kAhead) {
      Pack<W, V> packs[kAhead][kRows];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const Place place(*this, step + i);
        if (!place.exists) continue;
#pragma unroll
        for (int r = 0; r < kRows; ++r) packs[i][r] = load_once<V>(weight(place, r));
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (step + i >= span_.end) break;
        const int of = (step + i) / span_.steps;
        if (of != group) {
          hand_in(group);
          group = of;
        }
        const Place place(*this, step + i);
        if (place.exists) add(packs[i], place.k);
      }
    }
    if (!span_.is_empty()) hand_in(group);
  }

  /// The sum of a row of the block and a sequence, once all warps have handed in.
  __device__ float sum_of(int row, int sequence) const {
    const int group = row / kRows;
    const int at = row % kRows * kBatch + sequence;
    float sum = 0;
    for (int warp = 0; warp < S::kWarps; ++warp) {
      const Span span(share_.groups, span_.steps, warp, S::kWarps);
      if (span.is_empty() || group < span.first_group() || group > span.last_group()) continue;
      if (span.has_all_of(group)) return slots_.whole[group * S::kSums + at];
      const int end = group == span.first_group() ? 0 : 1;
      sum += slots_.ends[(2 * warp + end) * S::kSums + at];
    }
    return sum;
  }

  __device__ const S& share() const { return share_; }

 private:
  // A lane's elements in a step.
  struct Place {
    int group, k;
    bool exists;

    __device__ Place(const Product& product, int step)
        : group(step / product.span_.steps),
          k(step % product.span_.steps * kStep + product.lane_ * V),
          exists(step < product.span_.end && k < product.p_.in) {}
  };

  __device__ const W* weight(const Place& place, int r) const {
    const int row = share_.first + min(place.group * kRows + r, share_.rows - 1);
    return p_.weight + row * p_.weight_stride + place.k;
  }

  __device__ void add(const Pack<W, V> (&packs)[kRows], int k) {
    float weights[kRows][V];
#pragma unroll
    for (int r = 0; r < kRows; ++r) to_floats(packs[r], weights[r]);
#pragma unroll
    for (int t = 0; t < kBatch; ++t) {
      float v[V];
      load_floats(v_ + t * p_.in + k, true, v);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < V; ++i) sums_[r][t] = fmaf(weights[r][i], v[i], sums_[r][t]);
      }
    }
  }

  // The group's sums go to their slots and begin anew.
  __device__ void hand_in(int group) {
    float* to = slots_.whole + group * S::kSums;
    if (!span_.has_all_of(group)) {
      to = slots_.ends + (2 * warp_ + (group == span_.first_group() ? 0 : 1)) * S::kSums;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int t = 0; t < kBatch; ++t) {
        const float sum = warp_sum(sums_[r][t]);
        if (lane_ == 0) to[r * kBatch + t] = sum;
        sums_[r][t] = 0;
      }
    }
  }

  const Params<X, W, Y>& p_;
  const float* v_;
  Slots slots_;
  S share_;
  int lane_, warp_;
  Span span_;
  float sums_[kRows][kBatch] = {};
};

// ---- y ------------------------------------------------------------------------------------------

// Channel c of a sequence, whose newest input is `x`.
template <typename X, typename P>
__device__ void convolve(const P& p, int c, int sequence, float x) {
  float* state = p.conv_state + sequence * p.conv_sequence_stride + c;
  const float* weight = p.conv_weight + c * p.conv_channel_stride;
  float sum = p.conv_bias == nullptr ? 0.0F : p.conv_bias[c];
  for (int k = 0; k + 1 < p.conv_width; ++k) {
    const float before = state[k * p.conv_row_stride];
    sum = fmaf(weight[k * p.conv_tap_stride], before, sum);
    if (k > 0) state[(k - 1) * p.conv_row_stride] = before;
  }
  state[(p.conv_width - 2) * p.conv_row_stride] = x;
  sum = fmaf(weight[(p.conv_width - 1) * p.conv_tap_stride], x, sum);
  write(p.conv_y + sequence * p.conv_y_stride + c, silu<X>(sum));
}

template <typename X, typename P>
__device__ void finish(const P& p, int row, int sequence, float sum) {
  using Y = std::remove_pointer_t<decltype(p.y)>;
  if (p.bias != nullptr) sum += p.bias[row];
  const int channel = row - p.conv_begin;
  if (channel < 0 || channel >= p.conv_channels) {
    return write(p.y + sequence * p.y_stride + row, sum);
  }
  // As the product would have been stored and read again.
  const Pack<Y, 1> rounded = from_floats<Y, 1>({sum});
  float one[1];
  to_floats(rounded, one);
  convolve<X>(p, channel, sequence, one[0]);
}

template <typename X, typename W, typename Y, int kBatch>
__global__ void __launch_bounds__(warps_of(kBatch) * kWarpSize)
    step_kernel(const __grid_constant__ Params<X, W, Y> p) {
  extern __shared__ __align__(16) float shared[];
  using S = Share<kBatch>;
  const S share(p.out);
  float* v = shared;
  float* sums = v + kBatch * p.in;  // of norms
  const Slots slots{sums + S::kWarps + 2 * S::kWarps * S::kSums, sums + S::kWarps};
  Product<kBatch, kVector<W>, X, W, Y> product(p, v, slots);
  product.prefetch();
  let_next_kernel_begin();
  wait_for_previous_kernel();
  make_v<kBatch, X>(p, v, sums);
  product.run();
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < share.rows * kBatch; i += blockDim.x) {
    const int row = i / kBatch;
    const int sequence = i % kBatch;
    if (sequence >= p.batch) continue;
    finish<X>(p, share.first + row, sequence, product.sum_of(row, sequence));
  }
}

template <int kBatch, typename X, typename W, typename Y>
void launch_batch(const Params<X, W, Y>& params, const Plan& plan, bool overlap, Stream stream) {
  const auto kernel = step_kernel<X, W, Y, kBatch>;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(plan.shared_bytes)),
        "to allow linear_step its shared memory");
  launch_overlapping("to launch linear_step", kernel, dim3(static_cast<unsigned>(plan.blocks)),
                     warps_of(kBatch) * kWarpSize, plan.shared_bytes, overlap, stream, params);
}

}  // namespace

Plan plan_of(std::int64_t batch, std::int64_t in, std::int64_t out, int multiprocessors) {
  const int size = kernel_batch(static_cast<int>(batch));
  Plan plan{};
  plan.blocks = static_cast<int>(std::min<std::int64_t>(out, multiprocessors));
  plan.rows_per_block = static_cast<int>(ceil_div(out, std::int64_t{plan.blocks}));
  const std::int64_t sums = rows_of(size) * size;
  const std::int64_t groups =
      ceil_div(std::int64_t{plan.rows_per_block}, std::int64_t{rows_of(size)});
  const std::int64_t floats =
      size * in + warps_of(size) + 2 * warps_of(size) * sums + groups * sums;
  plan.shared_bytes = sizeof(float) * static_cast<std::size_t>(floats);
  return plan;
}

template <typename X, typename W, typename Y>
void launch(const Params<X, W, Y>& params, const Plan& plan, bool overlap, Stream stream) {
  switch (kernel_batch(params.batch)) {
    case 1:
      return launch_batch<1>(params, plan, overlap, stream);
    case 2:
      return launch_batch<2>(params, plan, overlap, stream);
    case 4:
      return launch_batch<4>(params, plan, overlap, stream);
    default:
      return launch_batch<8>(params, plan, overlap, stream);
  }
}
static_assert(kMaxLinearStepBatch == 8);

template void launch(const Params<float, float, float>&, const Plan&, bool, Stream);
template void launch(const Params<float, bf16, float>&, const Plan&, bool, Stream);
template void launch(const Params<float, f16, float>&, const Plan&, bool, Stream);
template void launch(const Params<bf16, bf16, bf16>&, const Plan&, bool, Stream);
template void launch(const Params<bf16, bf16, float>&, const Plan&, bool, Stream);
template void launch(const Params<f16, f16, f16>&, const Plan&, bool, Stream);
template void launch(const Params<f16, f16, float>&, const Plan&, bool, Stream);

}  // namespace adder::cuda::step
