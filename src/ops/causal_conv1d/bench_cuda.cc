#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "cuda/memory.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/ref.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kWidth = 4;

// As in a Mamba-2 layer: x is a slice of the rows of in_proj, weight is (width, channels) in
// memory, and every sequence has a state.
struct Shape {
  std::int64_t nsequences;
  std::int64_t seqlen;
  std::int64_t channels;
  std::int64_t row;  // of in_proj
  DType dtype;

  std::int64_t ntokens() const { return nsequences * seqlen; }
};

// Memory of one call.
struct Tensors {
  Tensor projected, weight, bias, y, state, cu_seqlens;

  Tensors(const Shape& s, std::uint64_t seed)
      : projected(device_normals(s.dtype, {s.ntokens(), s.row}, 4 * seed)),
        weight(device_normals(DType::f32, {kWidth, s.channels}, 4 * seed + 1)),
        bias(device_normals(DType::f32, {s.channels}, 4 * seed + 2)),
        y(device_poison(s.dtype, {s.ntokens(), s.channels})),
        state(initial_state(s, seed)) {
    std::vector<std::int32_t> offsets;
    for (std::int64_t i = 0; i <= s.nsequences; ++i) {
      offsets.push_back(static_cast<std::int32_t>(i * s.seqlen));
    }
    cu_seqlens = cuda::to_device(ConstTensorView::of(offsets.data(), {s.nsequences + 1}));
  }

  static Tensor initial_state(const Shape& s, std::uint64_t seed) {
    return device_normals(DType::f32, {s.nsequences, kWidth - 1, s.channels}, 4 * seed + 3);
  }

  CausalConv1dArgs args(const Shape& s) const {
    ConstTensorView transposed = weight.view;
    std::swap(transposed.shape[0], transposed.shape[1]);
    std::swap(transposed.strides[0], transposed.strides[1]);
    return {.x = projected.view.narrow(1, s.row / 32 * 8, s.channels),
            .weight = transposed,
            .bias = bias.view,
            .y = y.view,
            .conv_state = state.view,
            .cu_seqlens = cu_seqlens.view};
  }
};

// The first and the last tokens of all, against the definition.
double error_of(const Shape& s, const Tensors& tensors, std::uint64_t seed) {
  const CausalConv1dArgs args = tensors.args(s);
  const auto channels = static_cast<std::size_t>(s.channels);
  const auto by_tap = read_rows(tensors.weight.view, 0, kWidth);
  std::vector<double> weight;
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t k = 0; k < kWidth; ++k) weight.push_back(by_tap[k * channels + c]);
  }
  const auto bias = to_doubles(read_rows(args.bias.unsqueeze0(), 0, 1));
  const std::int64_t count = std::min<std::int64_t>(s.seqlen, 48);
  const auto error_at = [&](std::int64_t begin, const std::vector<float>& before) {
    const auto x = to_doubles(read_rows(args.x, begin, count));
    std::vector<double> window = to_doubles(before);
    std::vector<double> truth(x.size());
    ref::causal_conv1d<double>(x, weight, bias, kWidth, true, {}, window, truth);
    return largest_error(read_rows(args.y, begin, count), truth);
  };

  constexpr std::int64_t kBefore = kWidth - 1;
  const Tensor initial = Tensors::initial_state(s, seed);
  const TensorView states = initial.view.reshape({s.nsequences * kBefore, s.channels});
  const std::int64_t last = s.ntokens() - count;
  const auto before_last = s.seqlen - count >= kBefore
                               ? read_rows(args.x, last - kBefore, kBefore)
                               : read_rows(states, (s.nsequences - 1) * kBefore, kBefore);
  return std::max(error_at(0, read_rows(states, 0, kBefore)), error_at(last, before_last));
}

DeviceCase case_of(const Shape& s) {
  const auto count = static_cast<double>(s.ntokens() * s.channels);
  const auto state = static_cast<double>(s.nsequences * (kWidth - 1) * s.channels);
  const bool wide = s.dtype == DType::f32;
  return {.shape = fmt::format("{} x {} tokens, {} channels, width {}, {}", s.nsequences, s.seqlen,
                               s.channels, kWidth, name_of(s.dtype)),
          .bytes = 2.0 * static_cast<double>(size_of(s.dtype)) * count + 8.0 * state +
                   4.0 * static_cast<double>((kWidth + 1) * s.channels),
          .flops = (2.0 * kWidth + 15.0) * count,
          .allowed_error = wide ? 1e-5 : 4e-3,
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::causal_conv1d(tensors.args(s), stream); },
                .error = [=] { return error_of(s, tensors, seed); }};
          }};
}

}  // namespace

DeviceOpBenchmark causal_conv1d_device_benchmark() {
  DeviceOpBenchmark out{.name = "causal_conv1d",
                        .description = "depthwise causal convolution with bias and SiLU",
                        .cases = {}};
  // mamba2-2.7b and mamba2-130m: prompts, then steps of many sequences.
  for (const auto& [nsequences, seqlen] :
       {std::pair{1, 1024}, {1, 16384}, {8, 4096}, {1, 1}, {16, 1}, {256, 1}}) {
    out.cases.push_back(case_of({nsequences, seqlen, 5376, 10576, DType::bf16}));
  }
  out.cases.push_back(case_of({8, 4096, 5376, 10576, DType::f32}));
  out.cases.push_back(case_of({1, 4096, 1792, 3352, DType::bf16}));
  return out;
}

}  // namespace adder::bench
