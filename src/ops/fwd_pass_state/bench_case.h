#pragma once

// Inputs for the benchmarks of the operations on chunks: shapes of published models, one sequence,
// float32, chunks of 64.

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"

namespace adder::bench {

struct ChunkShape {
  const char* model;
  std::int64_t nheads;
  std::int64_t headdim;
  std::int64_t dstate;
};

inline constexpr ChunkShape kChunkShapes[] = {
    {"books-11m", 12, 64, 64}, {"mamba2-130m", 24, 64, 128}, {"mamba2-2.7b", 80, 64, 128}};
inline constexpr std::int64_t kBenchChunk = 64;

struct ChunkInputs {
  std::mt19937 engine{1};
  std::vector<Chunk> chunks;
  std::vector<std::int64_t> first_chunk = std::vector<std::int64_t>(2);
  ChunkPlan plan;
  std::vector<float> x, B, C, y, dt, dA_cumsum, states;

  ChunkInputs(const ChunkShape& s, std::int64_t seqlen, ThreadPool& pool) {
    const ChunkPlanArgs plan_args{.batch = 1, .seqlen = seqlen, .chunk_size = kBenchChunk};
    const std::int64_t nchunks = chunk_plan_size(plan_args).nchunks;
    chunks.resize(static_cast<std::size_t>(nchunks));
    plan = make_chunk_plan(plan_args, chunks.data(), first_chunk.data());
    x = normals(seqlen * s.nheads * s.headdim);
    y.resize(x.size());
    B = normals(seqlen * s.dstate);
    C = normals(seqlen * s.dstate);
    dt.resize(static_cast<std::size_t>(s.nheads * nchunks * kBenchChunk));
    dA_cumsum.resize(2 * dt.size());
    states.resize(
        static_cast<std::size_t>(nchunks * s.nheads * s.dstate * padded_headdim(s.headdim)));
    const auto raw = normals(seqlen * s.nheads);
    const std::vector<float> A(static_cast<std::size_t>(s.nheads), -0.5F);
    cpu::chunk_cumsum(
        {.dt_raw = ConstTensorView::of(raw.data(), {1, seqlen, s.nheads}),
         .A = ConstTensorView::of(A.data(), {s.nheads}),
         .dt_bias = {},
         .dt_options = {.softplus = true},
         .plan = plan,
         .dt = TensorView::of(dt.data(), {s.nheads, nchunks, kBenchChunk}),
         .dA_cumsum = TensorView::of(dA_cumsum.data(), {s.nheads, nchunks, 2, kBenchChunk})},
        pool);
  }
  ChunkInputs(const ChunkInputs&) = delete;
  ChunkInputs& operator=(const ChunkInputs&) = delete;

  /// Prefix sums of the first head's first chunk.
  std::vector<double> first_sums() const {
    std::vector<double> out;
    for (std::int64_t i = 0; i < chunks[0].length; ++i) {
      out.push_back(static_cast<double>(dA_cumsum[static_cast<std::size_t>(i)]) +
                    static_cast<double>(dA_cumsum[static_cast<std::size_t>(i + kBenchChunk)]));
    }
    return out;
  }

  /// The first `columns` of `width` values of every token of the first chunk.
  std::vector<double> first_rows(const std::vector<float>& values, std::int64_t width,
                                 std::int64_t columns) const {
    std::vector<double> out;
    for (std::int64_t i = 0; i < chunks[0].length; ++i) {
      const auto row = values.begin() + i * width;
      out.insert(out.end(), row, row + columns);
    }
    return out;
  }

 private:
  std::vector<float> normals(std::int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& v : out) v = normal(engine);
    return out;
  }
};

inline std::string describe(const ChunkShape& s, std::int64_t seqlen) {
  return fmt::format("{}: seqlen {}, {} heads of {}, dstate {}", s.model, seqlen, s.nheads,
                     s.headdim, s.dstate);
}

}  // namespace adder::bench
