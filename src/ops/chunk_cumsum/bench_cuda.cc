#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "cuda/memory.h"
#include "ops/chunk_cumsum/chunk_cumsum.h"
#include "ops/chunk_cumsum/ref.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kChunk = 64;

struct Shape {
  std::int64_t batch, seqlen, nheads;  // seqlen is a multiple of kChunk
  DType dtype;

  std::int64_t nchunks() const { return batch * seqlen / kChunk; }
};

// Memory of one call, with a plan made before. As a model calls it: with dt_bias and softplus.
struct Tensors {
  Tensor raw, A, dt_bias, dt, dA_cumsum;
  std::shared_ptr<std::byte> plan_memory;
  ChunkPlan plan;

  Tensors(const Shape& s, std::uint64_t seed)
      : raw(device_normals(s.dtype, {s.batch, s.seqlen, s.nheads}, 3 * seed)),
        A(device_uniforms(DType::f32, {s.nheads}, -16, -1, 3 * seed + 1)),
        dt_bias(device_uniforms(DType::f32, {s.nheads}, -4, -1, 3 * seed + 2)),
        dt(device_poison(DType::f32, {s.nheads, s.nchunks(), kChunk})),
        dA_cumsum(device_poison(DType::f32, {s.nheads, s.nchunks(), 2, kChunk})) {
    const ChunkPlanArgs plan_args{.batch = s.batch, .seqlen = s.seqlen, .chunk_size = kChunk};
    const std::size_t bytes = cuda::chunk_plan_bytes(plan_args);
    plan_memory = cuda::allocate(bytes);
    plan = cuda::make_chunk_plan(plan_args, {plan_memory.get(), bytes}, nullptr);
  }

  ChunkCumsumArgs args() const {
    return {.dt_raw = raw.view,
            .A = A.view,
            .dt_bias = dt_bias.view,
            .dt_options = {.softplus = true},
            .plan = plan,
            .dt = dt.view,
            .dA_cumsum = dA_cumsum.view};
  }
};

// Of a head's time steps and sums in a few chunks from `chunk` on.
double error_of(const Shape& s, const Tensors& tensors, std::int64_t head, std::int64_t chunk,
                std::int64_t count) {
  const ChunkCumsumArgs args = tensors.args();
  const ConstTensorView raw_of_head =
      args.dt_raw.reshape({s.batch * s.seqlen, s.nheads}).narrow(1, head, 1);
  const auto raw = to_doubles(read_rows(raw_of_head, chunk * kChunk, count * kChunk));
  const auto scalar = [&](const ConstTensorView& of_heads) {
    return static_cast<double>(read_rows(of_heads.unsqueeze0().narrow(1, head, 1), 0, 1)[0]);
  };
  const double A = scalar(args.A);
  const double bias = scalar(args.dt_bias);
  std::vector<double> dt;
  for (double v : raw) dt.push_back(ref::time_step<double>(v + bias, args.dt_options));
  std::vector<double> sums(dt.size());
  std::vector<float> got_sums;
  for (std::int64_t c = 0; c < count; ++c) {
    const auto begin = static_cast<std::size_t>(c * kChunk);
    ref::chunk_cumsum<double>(std::span(dt).subspan(begin, kChunk), A,
                              std::span(sums).subspan(begin, kChunk));
    const auto parts =
        read_rows(ConstTensorView(args.dA_cumsum)[head][chunk + c], 0, 2);  // high, low
    for (std::size_t i = 0; i < kChunk; ++i) got_sums.push_back(parts[i] + parts[kChunk + i]);
  }
  return std::max(largest_error(read_rows(ConstTensorView(args.dt)[head], chunk, count), dt),
                  largest_error(got_sums, sums));
}

DeviceCase case_of(const Shape& s) {
  const auto count = static_cast<double>(s.batch * s.seqlen * s.nheads);
  return {.shape = fmt::format("batch {}, seqlen {}, nheads {}, chunks of {}, {}", s.batch,
                               s.seqlen, s.nheads, kChunk, name_of(s.dtype)),
          .bytes = (static_cast<double>(size_of(s.dtype)) + 12.0) * count,
          .flops = 45.0 * count,  // two series and a division
          .allowed_error = 2e-6,
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::chunk_cumsum(tensors.args(), stream); },
                .error =
                    [=] {
                      const std::int64_t some = std::min<std::int64_t>(s.nchunks(), 8);
                      return std::max(error_of(s, tensors, 0, 0, some),
                                      error_of(s, tensors, s.nheads - 1, s.nchunks() - some, some));
                    }};
          }};
}

}  // namespace

DeviceOpBenchmark chunk_cumsum_device_benchmark() {
  DeviceOpBenchmark out{.name = "chunk_cumsum",
                        .description = "time steps of the state-space dual and their prefix sums",
                        .cases = {}};
  // As ssd_forward's grid, for which dstate does not count, then layers of published models.
  for (std::int64_t seqlen = 1 << 10; seqlen <= 1 << 18; seqlen *= 4) {
    out.cases.push_back(case_of({4, seqlen, 8, DType::bf16}));
  }
  out.cases.push_back(case_of({8, 4096, 24, DType::bf16}));
  out.cases.push_back(case_of({1, 16384, 80, DType::bf16}));
  out.cases.push_back(case_of({8, 4096, 80, DType::bf16}));
  out.cases.push_back(case_of({8, 4096, 80, DType::f32}));
  return out;
}

}  // namespace adder::bench
