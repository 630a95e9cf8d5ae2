#pragma once

// A problem for chunk_cumsum and how its results are judged.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/ref.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace adder::test {

struct CumsumOutput {
  std::vector<float> dt;         ///< (nheads, nchunks, chunk_size)
  std::vector<float> dA_cumsum;  ///< (nheads, nchunks, 2, chunk_size)
};

struct CumsumProblem {
  std::int64_t batch, seqlen, nheads;
  std::vector<float> raw, A, bias;
  DtOptions options;

  CumsumProblem(std::int64_t b, std::int64_t l, std::int64_t h, const DtOptions& o)
      : batch(b), seqlen(l), nheads(h), options(o) {
    Random random;
    raw = random.normals(b * l * h, 3.0);
    A = random.uniforms(h, -8, -0.1);
    bias = random.normals(h);
  }

  /// dt against float64 as the plain float version is, and sums as those of the float time steps
  /// with more than float's digits. `plan` is in host memory; it may have segments.
  void expect_right(const ChunkPlan& plan, const CumsumOutput& got) const {
    std::vector<double> dt64;
    std::vector<float> dt32;
    const std::int64_t width = plan.chunk_size;
    ASSERT_EQ(got.dA_cumsum.size(), 2 * got.dt.size());
    for (std::int64_t h = 0; h < nheads; ++h) {
      for (std::int64_t c = 0; c < plan.nchunks(); ++c) {
        const std::size_t base = dt64.size();
        for (std::int64_t i = 0; i < width; ++i) {
          const bool real = is_token(plan, c, i);
          const Chunk& chunk = plan.chunks[static_cast<std::size_t>(c)];
          const std::int64_t t = chunk.row * seqlen + chunk.begin + i;
          const float v = real ? raw[static_cast<std::size_t>(t * nheads + h)] : 0.0F;
          const float b = bias[static_cast<std::size_t>(h)];
          dt64.push_back(real ? ref::time_step<double>(
                                    static_cast<double>(v) + static_cast<double>(b), options)
                              : 0.0);
          dt32.push_back(real ? ref::time_step<float>(v + b, options) : 0.0F);
        }
        if (got.dt.size() < dt64.size()) continue;
        expect_sums(
            plan, c, A[static_cast<std::size_t>(h)],
            std::span(got.dt).subspan(base, static_cast<std::size_t>(width)),
            std::span(got.dA_cumsum).subspan(2 * base, 2 * static_cast<std::size_t>(width)));
      }
    }
    EXPECT_TRUE(as_good_as_plain(got.dt, dt64, dt32));
  }

 private:
  static std::int32_t segment(const ChunkPlan& plan, std::int64_t c, std::int64_t i) {
    return plan.segments.empty() ? 0
                                 : plan.segments[static_cast<std::size_t>(c * plan.chunk_size + i)];
  }
  static bool is_token(const ChunkPlan& plan, std::int64_t c, std::int64_t i) {
    return i < plan.chunks[static_cast<std::size_t>(c)].length && segment(plan, c, i) >= 0;
  }

  static void expect_sums(const ChunkPlan& plan, std::int64_t c, float A, std::span<const float> dt,
                          std::span<const float> sums) {
    std::vector<double> segment_dt;  // of the tokens since the last restart
    std::vector<double> segment_sums;
    std::int32_t number = 0;
    for (std::size_t i = 0; i < dt.size(); ++i) {
      const std::int32_t entry = segment(plan, c, static_cast<std::int64_t>(i));
      const std::int32_t own = entry < 0 ? ~entry : entry;
      if (own != number) segment_dt.clear();
      number = own;
      segment_dt.push_back(static_cast<double>(dt[i]));
      segment_sums.resize(segment_dt.size());
      ref::chunk_cumsum<double>(segment_dt, static_cast<double>(A), segment_sums);
      const double expected = segment_sums.back();
      EXPECT_NEAR(static_cast<double>(sums[i]) + static_cast<double>(sums[i + dt.size()]), expected,
                  1e-12 + 1e-13 * std::abs(expected))
          << "chunk " << c << " token " << i;
    }
  }
};

}  // namespace adder::test
