#pragma once

// Inputs for the benchmarks of the operations on chunks on a CUDA device, made there, and parts of
// them brought back for the definitions.

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/device_data.h"
#include "cuda/memory.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"

namespace adder::bench {

/// One group and chunks of 64 tokens, all of them full or none: seqlen is a multiple of 64.
struct DeviceChunkShape {
  std::int64_t batch, seqlen, nheads, headdim, dstate;
  DType dtype = DType::bf16;
  bool allow_tf32 = false;

  static constexpr std::int64_t kChunk = 64;
  std::int64_t chunks_per_row() const { return seqlen / kChunk; }
  std::int64_t nchunks() const { return batch * chunks_per_row(); }
  std::int64_t ntokens() const { return batch * seqlen; }
  double allowed_error() const { return dtype != DType::f32 ? 5e-3 : allow_tf32 ? 2e-3 : 1e-5; }
};

inline std::string describe(const DeviceChunkShape& s) {
  return fmt::format("batch {}, seqlen {}, nheads {}, headdim {}, dstate {}, {}{}", s.batch,
                     s.seqlen, s.nheads, s.headdim, s.dstate, name_of(s.dtype),
                     s.allow_tf32 ? ", tf32 allowed" : "");
}

/// The shapes that ssd_forward is compared on, in part, then a layer of mamba2-2.7b, also in f32.
inline std::vector<DeviceChunkShape> device_chunk_shapes() {
  std::vector<DeviceChunkShape> out;
  for (std::int64_t dstate : {64, 128, 256}) {
    for (std::int64_t seqlen : {1024, 4096, 16384, 65536}) {
      out.push_back({4, seqlen, 8, 64, dstate});
    }
  }
  out.push_back({8, 4096, 80, 64, 128});
  out.push_back({8, 4096, 80, 64, 128, DType::f32});
  out.push_back({8, 4096, 80, 64, 128, DType::f32, true});
  return out;
}

/// Tensors that last until the benchmark is done with them: copies share them.
struct DeviceChunks {
  Tensor x, B, C, dt, dA_cumsum;
  std::shared_ptr<std::byte> plan_memory;
  ChunkPlan plan;

  /// Seeds differ by tensor. dt is uniform in [0.1, 2), A in [-16, -1) by head, as for ssd_forward.
  DeviceChunks(const DeviceChunkShape& s, std::uint64_t seed)
      : x(device_normals(s.dtype, {s.batch, s.seqlen, s.nheads, s.headdim}, 8 * seed)),
        B(device_normals(s.dtype, {s.batch, s.seqlen, 1, s.dstate}, 8 * seed + 1)),
        C(device_normals(s.dtype, {s.batch, s.seqlen, 1, s.dstate}, 8 * seed + 2)),
        dt(device_poison(DType::f32, {s.nheads, s.nchunks(), s.kChunk})),
        dA_cumsum(device_poison(DType::f32, {s.nheads, s.nchunks(), 2, s.kChunk})) {
    make_plan(s);
    const Tensor raw =
        device_uniforms(s.dtype, {s.batch, s.seqlen, s.nheads}, 0.1, 2.0, 8 * seed + 3);
    const Tensor A = device_uniforms(DType::f32, {s.nheads}, -16, -1, 8 * seed + 4);
    cuda::chunk_cumsum({.dt_raw = raw.view,
                        .A = A.view,
                        .dt_bias = {},
                        .dt_options = {},
                        .plan = plan,
                        .dt = dt.view,
                        .dA_cumsum = dA_cumsum.view},
                       nullptr);
    // Freeing `raw` and `A` waits for the device.
  }

  static Tensor empty_states(const DeviceChunkShape& s) {
    return device_poison(DType::f32, {s.nchunks(), s.nheads, s.dstate, padded_headdim(s.headdim)});
  }

  FwdPassStateArgs state_args(const DeviceChunkShape& s, const Tensor& states) const {
    return {.x = x.view,
            .B = B.view,
            .dt = dt.view,
            .dA_cumsum = dA_cumsum.view,
            .initial_states = {},
            .allow_tf32 = s.allow_tf32,
            .plan = plan,
            .states = states.view,
            .final_states = {}};
  }

  /// dt of a chunk's tokens.
  std::vector<double> steps(std::int64_t head, std::int64_t chunk) const {
    return to_doubles(read_rows(dt.view[head], chunk, 1));
  }

  /// Prefix sums of a chunk's tokens.
  std::vector<double> sums(std::int64_t head, std::int64_t chunk) const {
    const std::vector<float> parts = read_rows(dA_cumsum.view[head][chunk], 0, 2);
    const std::size_t width = parts.size() / 2;
    std::vector<double> out;
    for (std::size_t i = 0; i < width; ++i) {
      out.push_back(static_cast<double>(parts[i]) + static_cast<double>(parts[width + i]));
    }
    return out;
  }

  /// (tokens of the chunk, count) of the last `count` elements of a head or group of x, B, C or y.
  static std::vector<float> rows(const DeviceChunkShape& s, const ConstTensorView& tokens,
                                 std::int64_t column, std::int64_t chunk, std::int64_t count) {
    const ConstTensorView there = tokens[chunk / s.chunks_per_row()]
                                      .narrow(0, chunk % s.chunks_per_row() * s.kChunk, s.kChunk)
                                      .narrow(1, column, 1)
                                      .narrow(2, tokens.dim(3) - count, count);
    ConstTensorView flat = there;  // (tokens, 1, count) without the middle
    flat.rank = 2;
    flat.shape[1] = count;
    flat.strides[1] = 1;
    return read_rows(flat, 0, s.kChunk);
  }

  /// (count, dstate): the last `count` rows of the state before a chunk, as in the definition.
  static std::vector<float> state_rows(const DeviceChunkShape& s, const ConstTensorView& states,
                                       std::int64_t head, std::int64_t chunk, std::int64_t count) {
    const std::vector<float> columns =
        read_rows(states[chunk][head].narrow(1, s.headdim - count, count), 0, s.dstate);
    std::vector<float> out(columns.size());
    const auto width = static_cast<std::size_t>(count);
    const auto dstate = static_cast<std::size_t>(s.dstate);
    for (std::size_t n = 0; n < dstate; ++n) {
      for (std::size_t p = 0; p < width; ++p) {
        out[p * dstate + n] = columns[n * width + p];
      }
    }
    return out;
  }

 private:
  void make_plan(const DeviceChunkShape& s) {
    const ChunkPlanArgs args{.batch = s.batch, .seqlen = s.seqlen, .chunk_size = s.kChunk};
    const std::size_t bytes = cuda::chunk_plan_bytes(args);
    plan_memory = cuda::allocate(bytes);
    plan = cuda::make_chunk_plan(args, {plan_memory.get(), bytes}, nullptr);
  }
};

}  // namespace adder::bench
