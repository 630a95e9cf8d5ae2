#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "cuda/memory.h"
#include "ops/selective_scan/ref.h"
#include "ops/selective_scan/selective_scan.h"

namespace adder::bench {
namespace {

struct Shape {
  std::int64_t batch, seqlen, d_inner;
  DType dtype;
  std::int64_t dstate = 16;

  std::int64_t ntokens() const { return batch * seqlen; }
};

// Memory of one call, as a Mamba layer makes it: x and z are the halves of the rows of in_proj (the
// convolution keeps its half's place), dt_bias gives time steps from about 0.001 to 0.1.
struct Tensors {
  Tensor xz, dt, A, B, C, D, dt_bias, states, y;
  std::shared_ptr<std::byte> workspace;
  std::size_t workspace_bytes;

  Tensors(const Shape& s, std::uint64_t seed)
      : xz(device_normals(s.dtype, {s.batch, s.seqlen, 2 * s.d_inner}, 8 * seed)),
        dt(device_normals(s.dtype, {s.batch, s.seqlen, s.d_inner}, 8 * seed + 1)),
        A(device_uniforms(DType::f32, {s.d_inner, s.dstate}, -16, -0.5, 8 * seed + 2)),
        B(device_normals(s.dtype, {s.batch, s.seqlen, 1, s.dstate}, 8 * seed + 3)),
        C(device_normals(s.dtype, {s.batch, s.seqlen, 1, s.dstate}, 8 * seed + 4)),
        D(device_normals(DType::f32, {s.d_inner}, 8 * seed + 5)),
        dt_bias(device_uniforms(DType::f32, {s.d_inner}, -6, -3, 8 * seed + 6)),
        states(device_poison(DType::f32, {s.batch, s.d_inner, s.dstate})),
        y(device_poison(s.dtype, {s.batch, s.seqlen, s.d_inner})) {
    workspace_bytes = cuda::selective_scan_workspace_bytes(args(s));
    workspace = cuda::allocate(workspace_bytes);
  }

  SelectiveScanArgs args(const Shape& s) const {
    SelectiveScanArgs out;
    out.x = xz.view.narrow(2, 0, s.d_inner);
    out.z = xz.view.narrow(2, s.d_inner, s.d_inner);
    out.dt = dt.view;
    out.A = A.view;
    out.B = B.view;
    out.C = C.view;
    out.D = D.view;
    out.dt_bias = dt_bias.view;
    out.final_states = states.view;
    out.y = y.view;
    return out;
  }
};

// One channel of the last sequence against the definition, y and the last state. Of a long sequence
// its last part, from a state of zeros: after half of kWindow tokens no channel here remembers more
// than a millionth of what it began with.
double error_of(const Shape& s, const Tensors& tensors, std::int64_t channel) {
  constexpr std::int64_t kWindow = 16384;
  const SelectiveScanArgs args = tensors.args(s);
  const std::int64_t count = std::min(s.seqlen, kWindow);
  const std::int64_t begin = s.seqlen - count;
  const std::int64_t unsure = begin > 0 ? count / 2 : 0;
  const auto column = [&](const ConstTensorView& view, std::int64_t skipped) {
    return read_rows(view[s.batch - 1].narrow(1, channel, 1), begin + skipped, count - skipped);
  };
  const auto rows = [&](const ConstTensorView& view) {
    const ConstTensorView last = view[s.batch - 1];
    return to_doubles(read_rows(last.reshape({s.seqlen, s.dstate}), begin, count));
  };
  const auto scalar = [&](const ConstTensorView& view) {
    return static_cast<double>(read_rows(view.unsqueeze0().narrow(1, channel, 1), 0, 1)[0]);
  };
  const auto A = to_doubles(read_rows(args.A, channel, 1));
  std::vector<double> state(A.size());
  std::vector<double> truth(static_cast<std::size_t>(count));
  const auto x = to_doubles(column(args.x, 0));
  const auto dt = to_doubles(column(args.dt, 0));
  const auto z = to_doubles(column(args.z, 0));
  ref::selective_scan<double>({.A = A,
                               .D = scalar(args.D),
                               .dt_bias = scalar(args.dt_bias),
                               .dt_softplus = args.dt_softplus},
                              x, dt, rows(args.B), rows(args.C), z, {}, state, truth);
  truth.erase(truth.begin(), truth.begin() + unsure);
  const ConstTensorView states = args.final_states;
  return std::max(largest_error(column(args.y, unsure), truth),
                  largest_error(read_rows(states[s.batch - 1], channel, 1), state));
}

DeviceCase case_of(const Shape& s) {
  const auto channels = static_cast<double>(s.ntokens() * s.d_inner);
  const auto element = static_cast<double>(size_of(s.dtype));
  const auto dstate = static_cast<double>(s.dstate);
  const auto inner = static_cast<double>(s.d_inner);
  return {.shape = fmt::format("{} x {} tokens, d_inner {}, dstate {}, {}", s.batch, s.seqlen,
                               s.d_inner, s.dstate, name_of(s.dtype)),
          .bytes = 4.0 * element * channels +
                   2.0 * element * static_cast<double>(s.ntokens()) * dstate +
                   4.0 * inner * (dstate * static_cast<double>(s.batch + 1) + 2.0),
          // An exponential counts as one. No matrix unit can take any of it; where the time is not
          // that of the bytes, it is that of the special functions: see cuda_scan.cuh.
          .flops = channels * (7.0 * dstate + 15.0),
          .allowed_error = s.dtype == DType::f32 ? 2e-5 : 4e-3,
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{
                .call =
                    [=](cuda::Stream stream) {
                      cuda::selective_scan(tensors.args(s),
                                           {tensors.workspace.get(), tensors.workspace_bytes},
                                           stream);
                    },
                .error =
                    [=] {
                      return std::max(error_of(s, tensors, 0), error_of(s, tensors, s.d_inner - 1));
                    }};
          }};
}

}  // namespace

DeviceOpBenchmark selective_scan_device_benchmark() {
  DeviceOpBenchmark out{
      .name = "selective_scan", .description = "selective scan of Mamba-1", .cases = {}};
  // Layers of mamba-2.8b, mamba-1.4b and mamba-130m.
  for (const auto& [batch, seqlen, d_inner] : {std::tuple{8, 2048, 5120},
                                               {1, 2048, 5120},
                                               {1, 262144, 5120},
                                               {8, 2048, 4096},
                                               {1, 2048, 4096},
                                               {8, 2048, 1536},
                                               {1, 2048, 1536},
                                               {1, 512, 1536}}) {
    out.cases.push_back(case_of({batch, seqlen, d_inner, DType::bf16}));
  }
  out.cases.push_back(case_of({8, 2048, 5120, DType::f16}));
  out.cases.push_back(case_of({8, 2048, 5120, DType::f32}));
  for (std::int64_t dstate : {8, 32, 64, 128, 256}) {
    out.cases.push_back(case_of({2, 2048, 5120, DType::bf16, dstate}));
  }
  return out;
}

}  // namespace adder::bench
