#pragma once

// Random inputs of the operations on chunks: x, B, C and what chunk_cumsum gives, for one plan.

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/ref.h"
#include "tests/support/random.h"

namespace adder::test {

struct ChunkShape {
  std::int64_t batch = 2;
  std::int64_t seqlen = 20;
  std::int64_t nheads = 4;
  std::int64_t headdim = 16;
  std::int64_t ngroups = 2;
  std::int64_t dstate = 16;
  std::int64_t chunk_size = 8;
  DType dtype = DType::f32;
};

struct ChunkInputs {
  ChunkShape shape;
  std::vector<Chunk> chunks;
  std::vector<std::int64_t> first_chunk;
  ChunkPlan plan;
  Tensor x, B, C, z, D, dt, dA_cumsum;

  /// `plan_args` are cut as they are, but for the shape.
  explicit ChunkInputs(const ChunkShape& s, ChunkPlanArgs plan_args = {}) : shape(s) {
    plan_args.batch = s.batch;
    plan_args.seqlen = s.seqlen;
    plan_args.chunk_size = s.chunk_size;
    const ChunkPlanSize size = chunk_plan_size(plan_args);
    chunks.resize(static_cast<std::size_t>(size.nchunks));
    first_chunk.resize(static_cast<std::size_t>(size.nsequences) + 1);
    plan = make_chunk_plan(plan_args, chunks.data(), first_chunk.data());

    Random random;
    const auto tensor = [&](std::initializer_list<std::int64_t> dims) {
      // Bounded, so that the largest errors come from many elements and not from one outlier.
      const auto values =
          random.uniforms(ConstTensorView(nullptr, DType::f32, dims).numel(), -1, 1);
      return convert(ConstTensorView(values.data(), DType::f32, dims), s.dtype);
    };
    x = tensor({s.batch, s.seqlen, s.nheads, s.headdim});
    B = tensor({s.batch, s.seqlen, s.ngroups, s.dstate});
    C = tensor({s.batch, s.seqlen, s.ngroups, s.dstate});
    z = tensor({s.batch, s.seqlen, s.nheads, s.headdim});
    const auto D_values = random.uniforms(s.nheads * s.headdim, -1, 1);
    D = convert(ConstTensorView::of(D_values.data(), {s.nheads, s.headdim}), DType::f32);
    const auto raw = random.uniforms(s.batch * s.seqlen * s.nheads, 0.1, 1.0);
    const auto A = random.uniforms(s.nheads, -1.0, -0.1);
    dt = Tensor::empty(DType::f32, {s.nheads, size.nchunks, s.chunk_size});
    dA_cumsum = Tensor::empty(DType::f32, {s.nheads, size.nchunks, 2, s.chunk_size});
    ThreadPool pool(1);
    cpu::chunk_cumsum({.dt_raw = ConstTensorView::of(raw.data(), {s.batch, s.seqlen, s.nheads}),
                       .A = ConstTensorView::of(A.data(), {s.nheads}),
                       .dt_bias = {},
                       .dt_options = {},
                       .plan = plan,
                       .dt = dt.view,
                       .dA_cumsum = dA_cumsum.view},
                      pool);
  }

  /// Rows of `column` (a head or group) of the tokens of chunk `c`, one after the other.
  template <typename Real>
  std::vector<Real> rows(const Tensor& tensor, std::size_t c, std::int64_t column) const {
    const Chunk& chunk = chunks[c];
    const Tensor floats =
        convert(tensor.view[chunk.row].narrow(0, chunk.begin, chunk.length).narrow(1, column, 1),
                DType::f32);
    return {floats.span<float>().begin(), floats.span<float>().end()};
  }

  /// dt of the tokens of chunk `c`.
  template <typename Real>
  std::vector<Real> steps(std::size_t c, std::int64_t head) const {
    const float* p =
        dt.as<float>() + (head * plan.nchunks() + static_cast<std::int64_t>(c)) * shape.chunk_size;
    return {p, p + chunks[c].length};
  }

  /// The prefix sums of chunk `c`.
  template <typename Real>
  std::vector<Real> sums(std::size_t c, std::int64_t head) const {
    const float* p = dA_cumsum.as<float>() +
                     (head * plan.nchunks() + static_cast<std::int64_t>(c)) * 2 * shape.chunk_size;
    std::vector<Real> out;
    for (std::int64_t i = 0; i < chunks[c].length; ++i) {
      out.push_back(static_cast<Real>(p[i]) + static_cast<Real>(p[i + shape.chunk_size]));
    }
    return out;
  }
};

/// Floats rounded to the digits of tf32.
inline Tensor tf32_of(const ConstTensorView& floats) {
  const ref::DigitsOf rounded{DType::f16};  // as many
  Tensor out = convert(floats, DType::f32);
  for (float& v : out.span<float>()) v = rounded(v);
  return out;
}

/// The inputs as tensor cores take them with tf32.
inline ChunkInputs tf32_of(ChunkInputs in) {
  for (Tensor* tensor : {&in.x, &in.B, &in.C}) *tensor = tf32_of(tensor->view);
  return in;
}

}  // namespace adder::test
