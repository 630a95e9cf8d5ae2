#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/gated_rms_norm/ref.h"

namespace adder::bench {
namespace {

// As in a Mamba-2 layer: z is a slice of the rows of in_proj.
struct Shape {
  std::int64_t ntokens;
  std::int64_t d_inner;
  std::int64_t ngroups;
  std::int64_t row;  // of in_proj
  DType dtype;
};

struct Tensors {
  Tensor y, projected, weight, out;

  Tensors(const Shape& s, std::uint64_t seed)
      : y(device_normals(s.dtype, {s.ntokens, s.d_inner}, 3 * seed)),
        projected(device_normals(s.dtype, {s.ntokens, s.row}, 3 * seed + 1)),
        weight(device_normals(DType::f32, {s.d_inner}, 3 * seed + 2)),
        out(device_poison(s.dtype, {s.ntokens, s.d_inner})) {}

  GatedRmsNormArgs args(const Shape& s) const {
    return {.y = y.view,
            .z = projected.view.narrow(1, 0, s.d_inner),
            .weight = weight.view,
            .out = out.view,
            .ngroups = s.ngroups};
  }
};

// Some tokens against the definition.
double error_of(const GatedRmsNormArgs& args) {
  double error = 0;
  const auto weight = to_doubles(read_rows(args.weight.unsqueeze0(), 0, 1));
  const std::int64_t last = args.y.dim(0) - 1;
  for (std::int64_t token : {std::int64_t{0}, last / 3, last}) {
    const auto y = to_doubles(read_rows(args.y, token, 1));
    const auto z = to_doubles(read_rows(args.z, token, 1));
    std::vector<double> truth(y.size());
    ref::gated_rms_norm_row<double>(y, z, weight, static_cast<std::size_t>(args.ngroups), 1e-5,
                                    false, true, truth);
    error = std::max(error, largest_error(read_rows(args.out, token, 1), truth));
  }
  return error;
}

DeviceCase case_of(const Shape& s) {
  const auto count = static_cast<double>(s.ntokens * s.d_inner);
  return {.shape = fmt::format("{} tokens, d_inner {}, ngroups {}, {}", s.ntokens, s.d_inner,
                               s.ngroups, name_of(s.dtype)),
          .bytes = 3.0 * static_cast<double>(size_of(s.dtype)) * count +
                   4.0 * static_cast<double>(s.d_inner),
          .flops = 25.0 * count,
          .allowed_error = s.dtype == DType::f32 ? 1e-5 : 4e-3,
          .prepare = [s](std::uint64_t seed) {
            const Tensors tensors(s, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::gated_rms_norm(tensors.args(s), stream); },
                .error = [=] { return error_of(tensors.args(s)); }};
          }};
}

}  // namespace

DeviceOpBenchmark gated_rms_norm_device_benchmark() {
  DeviceOpBenchmark out{.name = "gated_rms_norm",
                        .description = "gate and grouped root-mean-square norm",
                        .cases = {}};
  // mamba2-2.7b, mamba2-130m and Mamba-Codestral-7B: prompts, and steps of many sequences.
  for (std::int64_t ntokens : {1, 256, 1024, 32768}) {
    out.cases.push_back(case_of({ntokens, 5120, 1, 10576, DType::bf16}));
  }
  out.cases.push_back(case_of({32768, 5120, 1, 10576, DType::f32}));
  out.cases.push_back(case_of({32768, 1536, 1, 3352, DType::bf16}));
  out.cases.push_back(case_of({16384, 8192, 8, 18560, DType::bf16}));
  return out;
}

}  // namespace adder::bench
