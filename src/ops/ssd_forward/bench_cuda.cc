#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "core/tensor.h"
#include "cuda/memory.h"
#include "ops/ssd_forward/ref.h"
#include "ops/ssd_forward/ssd_forward.h"

namespace adder::bench {
namespace {

constexpr DType kDtype = DType::bf16;

struct Shape {
  std::int64_t batch, seqlen, nheads, headdim, dstate;
  bool softplus;  ///< with dt_bias, as a model calls it; else dt comes positive
};

// Memory of one call, with one group and states that begin as zeros. Seeds differ by tensor.
struct Tensors {
  Tensor x, dt, A, B, C, D, dt_bias, initial_states, y, final_states, workspace;

  Tensors(const Shape& s, std::uint64_t seed)
      : x(device_normals(kDtype, {s.batch, s.seqlen, s.nheads, s.headdim}, 8 * seed)),
        dt(s.softplus
               ? device_normals(kDtype, {s.batch, s.seqlen, s.nheads}, 8 * seed + 1)
               : device_uniforms(kDtype, {s.batch, s.seqlen, s.nheads}, 0.1, 2.0, 8 * seed + 1)),
        A(device_uniforms(DType::f32, {s.nheads}, -16, -1, 8 * seed + 2)),
        B(device_normals(kDtype, {s.batch, s.seqlen, 1, s.dstate}, 8 * seed + 3)),
        C(device_normals(kDtype, {s.batch, s.seqlen, 1, s.dstate}, 8 * seed + 4)),
        D(device_normals(DType::f32, {s.nheads}, 8 * seed + 5)),
        initial_states(
            device_uniforms(DType::f32, {s.batch, s.nheads, s.headdim, s.dstate}, 0, 0, 8 * seed)),
        y(device_poison(kDtype, {s.batch, s.seqlen, s.nheads, s.headdim})),
        final_states(device_poison(DType::f32, {s.batch, s.nheads, s.headdim, s.dstate})) {
    if (s.softplus) dt_bias = device_uniforms(DType::f32, {s.nheads}, -4, -1, 8 * seed + 6);
    const std::int64_t bytes =
        static_cast<std::int64_t>(cuda::ssd_forward_workspace_bytes(args(s))) / 4 + 1;
    workspace = cuda::empty(DType::f32, std::vector<std::int64_t>{bytes});
  }

  SsdForwardArgs args(const Shape& s) const {
    SsdForwardArgs out;
    out.x = x.view;
    out.dt = dt.view;
    out.A = A.view;
    out.B = B.view;
    out.C = C.view;
    out.D = D.view;
    if (s.softplus) out.dt_bias = dt_bias.view;
    out.dt_softplus = s.softplus;
    out.initial_states = initial_states.view;
    out.y = y.view;
    out.final_states = final_states.view;
    return out;
  }

  void call(const Shape& s, cuda::Stream stream) const {
    const auto bytes = static_cast<std::size_t>(workspace.view.size_bytes());
    cuda::ssd_forward(args(s), {static_cast<std::byte*>(workspace.view.data), bytes}, stream);
  }
};

/// `rows` rows of a device tensor seen as (rows, columns), as float32 on the host.
Tensor host_rows(const ConstTensorView& rows) {
  const std::vector<float> values = read_rows(rows, 0, rows.dim(0));
  Tensor out = Tensor::empty(DType::f32, {rows.dim(0), rows.dim(1)});
  std::copy(values.begin(), values.end(), out.as<float>());
  return out;
}

/// The error of two channels of a head of a sequence: the definition takes a moment for them,
/// however long the sequence.
double error_of(const Shape& s, const Tensors& t, std::int64_t sequence, std::int64_t head) {
  constexpr std::int64_t kChannels = 2;
  const SsdForwardArgs all = t.args(s);
  const auto channels = [&](const ConstTensorView& view) {
    return view[sequence].narrow(1, head, 1).narrow(2, s.headdim - kChannels, kChannels);
  };
  const auto rows = [&](const ConstTensorView& view, std::int64_t columns) {
    ConstTensorView out = view;  // (seqlen, 1, columns) without the middle
    out.rank = 2;
    out.shape[1] = columns;
    out.strides[1] = 1;
    return host_rows(out);
  };
  const Tensor x = rows(channels(all.x), kChannels);
  const Tensor y = rows(channels(all.y), kChannels);
  const Tensor dt = rows(all.dt[sequence].narrow(1, head, 1), 1);
  const Tensor B = rows(all.B[sequence], s.dstate);
  const Tensor C = rows(all.C[sequence], s.dstate);
  const auto value = [&](const ConstTensorView& of_heads) {
    return host_rows(of_heads.narrow(0, head, 1).unsqueeze0());
  };
  const Tensor A = value(all.A);
  const Tensor D = value(all.D);

  SsdForwardArgs part = all;
  part.initial_states = {};  // zeros
  part.x = x.view.reshape({1, s.seqlen, 1, kChannels});
  part.dt = dt.view.reshape({1, s.seqlen, 1});
  part.A = A.view.reshape({1});
  part.B = B.view.reshape({1, s.seqlen, 1, s.dstate});
  part.C = C.view.reshape({1, s.seqlen, 1, s.dstate});
  part.D = D.view.reshape({1});
  Tensor bias;
  if (all.dt_bias.defined()) {
    bias = value(all.dt_bias);
    part.dt_bias = bias.view.reshape({1});
  }
  const std::span<const float> got = y.span<float>();
  return relative_error({got.begin(), got.end()}, ref::ssd_forward<double>(part).y);
}

DeviceCase case_of(const Shape& s) {
  const auto tokens = static_cast<double>(s.batch * s.seqlen);
  const auto heads = static_cast<double>(s.nheads);
  const auto P = static_cast<double>(s.headdim);
  const auto N = static_cast<double>(s.dstate);
  constexpr double kChunk = 128;  // for which the products inside chunks and with states balance
  return {
      .shape = fmt::format("batch {}, seqlen {}, nheads {}, headdim {}, dstate {}", s.batch,
                           s.seqlen, s.nheads, s.headdim, s.dstate),
      .bytes =
          tokens * (heads * (4 * P + 2) + 4 * N) + 8 * static_cast<double>(s.batch) * heads * P * N,
      .flops = tokens * (kChunk * N + heads * kChunk * P + 4 * heads * N * P),
      .allowed_error = 5e-3,
      .prepare = [s](std::uint64_t seed) {
        const Tensors tensors(s, seed);
        return DeviceWork{.call = [=](cuda::Stream stream) { tensors.call(s, stream); },
                          .error =
                              [=] {
                                return std::max(error_of(s, tensors, 0, 0),
                                                error_of(s, tensors, s.batch - 1, s.nheads - 1));
                              }};
      }};
}

}  // namespace

DeviceOpBenchmark ssd_forward_device_benchmark() {
  DeviceOpBenchmark out{.name = "ssd_forward",
                        .description = "state-space dual of Mamba-2 over a prompt",
                        .cases = {}};
  // The grid on which Mamba-2 kernels are compared, then shapes of mamba2-130m and mamba2-2.7b.
  for (std::int64_t dstate : {64, 128, 256, 512}) {
    for (std::int64_t seqlen = 1 << 10; seqlen <= 1 << 18; seqlen *= 2) {
      out.cases.push_back(case_of({4, seqlen, 8, 64, dstate, false}));
    }
  }
  out.cases.push_back(case_of({8, 4096, 24, 64, 128, true}));
  out.cases.push_back(case_of({1, 1024, 80, 64, 128, true}));
  out.cases.push_back(case_of({1, 16384, 80, 64, 128, true}));
  out.cases.push_back(case_of({8, 4096, 80, 64, 128, true}));
  out.cases.push_back(case_of({1, 262144, 80, 64, 512, true}));
  return out;
}

}  // namespace adder::bench
