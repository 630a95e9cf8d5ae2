#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "ops/swiglu/ref.h"
#include "ops/swiglu/swiglu.h"

namespace adder::bench {
namespace {

// As in an MLP: x and gate are the halves of the rows of one matrix product.
struct Tensors {
  Tensor fc1, y;

  Tensors(std::int64_t ntokens, std::int64_t d_mlp, DType dtype, std::uint64_t seed)
      : fc1(device_normals(dtype, {ntokens, 2 * d_mlp}, seed)),
        y(device_poison(dtype, {ntokens, d_mlp})) {}

  SwigluArgs args() const {
    const std::int64_t d_mlp = y.view.dim(1);
    return {
        .x = fc1.view.narrow(1, 0, d_mlp), .gate = fc1.view.narrow(1, d_mlp, d_mlp), .y = y.view};
  }
};

// Some tokens against the definition.
double error_of(const SwigluArgs& args) {
  double error = 0;
  const std::int64_t last = args.x.dim(0) - 1;
  for (std::int64_t token : {std::int64_t{0}, last / 3, last}) {
    const auto x = to_doubles(read_rows(args.x, token, 1));
    const auto gate = to_doubles(read_rows(args.gate, token, 1));
    std::vector<double> truth(x.size());
    ref::swiglu<double>(x, gate, truth);
    error = std::max(error, largest_error(read_rows(args.y, token, 1), truth));
  }
  return error;
}

DeviceCase case_of(std::int64_t ntokens, std::int64_t d_mlp, DType dtype) {
  const auto count = static_cast<double>(ntokens * d_mlp);
  return {.shape = fmt::format("{} tokens, d_mlp {}, {}", ntokens, d_mlp, name_of(dtype)),
          .bytes = 3.0 * static_cast<double>(size_of(dtype)) * count,
          .flops = 5.0 * count,
          .allowed_error = dtype == DType::f32 ? 1e-5 : 4e-3,
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(ntokens, d_mlp, dtype, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::swiglu(tensors.args(), stream); },
                .error = [=] { return error_of(tensors.args()); }};
          }};
}

}  // namespace

DeviceOpBenchmark swiglu_device_benchmark() {
  DeviceOpBenchmark out{.name = "swiglu", .description = "gate of a gated MLP block", .cases = {}};
  // Twice the width of mamba2-2.7b and of mamba2-130m: prompts, and steps of many sequences.
  for (std::int64_t ntokens : {1, 256, 1024, 32768}) {
    out.cases.push_back(case_of(ntokens, 5120, DType::bf16));
  }
  out.cases.push_back(case_of(32768, 5120, DType::f32));
  out.cases.push_back(case_of(32768, 1536, DType::bf16));
  return out;
}

}  // namespace adder::bench
