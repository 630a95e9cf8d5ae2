#pragma once

// A problem for ssd_forward: every tensor with random contents, in any float type, and a call that
// checks canaries and gives results back as float. Tests change what they are about.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/half.h"
#include "core/tensor.h"
#include "ops/ssd_forward/ref.h"
#include "ops/ssd_forward/ssd_forward.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"

namespace adder::test {

struct SsdShape {
  std::int64_t batch = 1;
  std::int64_t seqlen = 70;
  std::int64_t nheads = 2;
  std::int64_t headdim = 16;
  std::int64_t ngroups = 1;
  std::int64_t dstate = 16;
  DType dtype = DType::f32;
  std::int64_t nsequences = 0;  ///< 0 means batch
};

/// Uninitialized float memory as a (contiguous) tensor of `dtype` with these values.
inline Tensor tensor_of(const std::vector<float>& values, std::initializer_list<std::int64_t> dims,
                        DType dtype = DType::f32) {
  return convert(ConstTensorView(values.data(), DType::f32, dims), dtype);
}

inline std::vector<float> to_floats(const ConstTensorView& view) {
  const Tensor floats = convert(view, DType::f32);
  return {floats.span<float>().begin(), floats.span<float>().end()};
}

/// Token `t` of a view (batch, seqlen, ...), as ssd_step takes it.
template <typename View>
View token_of(const View& view, std::int64_t t) {
  View token = view.narrow(1, t, 1);
  for (int d = 1; d + 1 < token.rank; ++d) {
    token.shape[d] = token.shape[d + 1];
    token.strides[d] = token.strides[d + 1];
  }
  --token.rank;
  return token;
}

struct SsdOutput {
  std::vector<float> y;
  std::vector<float> final_states;
};

struct SsdCase {
  SsdShape shape;
  Tensor x, dt, A, B, C, D, z, dt_bias, initial_states;
  SsdForwardArgs args;  ///< without y and final_states

  explicit SsdCase(const SsdShape& s, std::uint64_t stream = 0) : shape(s) {
    Random random(stream);
    if (shape.nsequences == 0) shape.nsequences = s.batch;
    const std::int64_t tokens = s.batch * s.seqlen;
    // Bounded, so that the largest errors come from many elements and not from one outlier.
    const auto values = [&](std::int64_t n) { return random.uniforms(n, -1, 1); };
    x = tensor_of(values(tokens * s.nheads * s.headdim), {s.batch, s.seqlen, s.nheads, s.headdim},
                  s.dtype);
    z = tensor_of(values(tokens * s.nheads * s.headdim), {s.batch, s.seqlen, s.nheads, s.headdim},
                  s.dtype);
    B = tensor_of(values(tokens * s.ngroups * s.dstate), {s.batch, s.seqlen, s.ngroups, s.dstate},
                  s.dtype);
    C = tensor_of(values(tokens * s.ngroups * s.dstate), {s.batch, s.seqlen, s.ngroups, s.dstate},
                  s.dtype);
    dt = tensor_of(values(tokens * s.nheads), {s.batch, s.seqlen, s.nheads});
    A = tensor_of(random.uniforms(s.nheads, -2, -0.1), {s.nheads});
    D = tensor_of(values(s.nheads * s.headdim), {s.nheads, s.headdim});
    dt_bias = tensor_of(random.uniforms(s.nheads, -4, -1), {s.nheads});
    initial_states = tensor_of(values(shape.nsequences * s.nheads * s.headdim * s.dstate),
                               {shape.nsequences, s.nheads, s.headdim, s.dstate});
    args.x = x.view;
    args.dt = dt.view;
    args.A = A.view;
    args.B = B.view;
    args.C = C.view;
    args.D = D.view;
    args.z = z.view;
    args.dt_bias = dt_bias.view;
    args.dt_softplus = true;
    args.initial_states = initial_states.view;
    args.chunk_size = 32;
  }

  /// Keeps tokens [begin, begin + count). Copies of a case share their tensors.
  void narrow(std::int64_t begin, std::int64_t count) {
    for (ConstTensorView* view : {&args.x, &args.dt, &args.B, &args.C, &args.z}) {
      if (view->defined()) *view = view->narrow(1, begin, count);
    }
    shape.seqlen = count;
  }

  /// Runs the operation into poisoned, guarded outputs and with exactly the workspace asked for.
  SsdOutput run(ThreadPool& pool) const {
    SsdOutput out;
    visit(shape.dtype, [&]<typename T>(T) {
      Guarded<T> y(args.x.numel());
      const std::int64_t nsequences =
          args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : shape.batch;
      Guarded<float> states(nsequences * shape.nheads * shape.headdim * shape.dstate);
      SsdForwardArgs call = args;
      call.y = y.view({args.x.dim(0), args.x.dim(1), shape.nheads, shape.headdim});
      call.final_states = states.view({nsequences, shape.nheads, shape.headdim, shape.dstate});
      Guarded<unsigned char> workspace(
          static_cast<std::int64_t>(cpu::ssd_forward_workspace_bytes(call, pool.nthreads())));
      cpu::ssd_forward(call, std::as_writable_bytes(workspace.span()), pool);
      EXPECT_TRUE(y.intact());
      EXPECT_TRUE(states.intact());
      EXPECT_TRUE(workspace.intact());
      for (T v : y.span()) out.y.push_back(to_float(v));
      out.final_states.assign(states.span().begin(), states.span().end());
    });
    return out;
  }

  /// Judges a result against the recurrence in float64, allowing what the recurrence in float32
  /// (rounded to the output's type) costs.
  void expect_right(const SsdOutput& got, double floor = 1e-6) const {
    const auto truth = ref::ssd_forward<double>(args);
    auto plain = ref::ssd_forward<float>(args);
    visit(shape.dtype, [&]<typename T>(T) {
      for (float& v : plain.y) v = to_float(from_float<T>(v));
    });
    EXPECT_TRUE(as_good_as_plain(got.y, truth.y, plain.y, floor)) << "y";
    EXPECT_TRUE(as_good_as_plain(got.final_states, truth.final_states, plain.final_states, floor))
        << "final_states";
  }

 private:
  template <typename Visitor>
  static void visit(DType dtype, Visitor&& visitor) {
    dtype == DType::f32    ? visitor(float{})
    : dtype == DType::bf16 ? visitor(bf16{})
                           : visitor(f16{});
  }
};

}  // namespace adder::test
