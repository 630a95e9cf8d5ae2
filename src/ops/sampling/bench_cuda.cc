#include <fmt/format.h>

#include <algorithm>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "cuda/memory.h"
#include "ops/sampling/sample_tokens.h"
#include "ops/sampling/sampling.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kVocab = 50280;

// Memory of one call: a row for each sequence, and no recent tokens.
struct Tensors {
  Tensor logits, sampling, position, tokens, status;
  std::size_t workspace_bytes;
  std::shared_ptr<std::byte> workspace;

  Tensors(std::int64_t batch, const SamplingParams& params, std::uint64_t seed)
      : logits(device_normals(DType::f32, {batch, kVocab}, seed)),
        workspace_bytes(cuda::sample_tokens_workspace_bytes(batch, kVocab)),
        workspace(cuda::allocate(workspace_bytes)) {
    const auto rows = static_cast<std::size_t>(batch);
    const std::vector<SequenceSampling> each(rows,
                                             {.params = params, .repeat_window = 0, .seed = seed});
    sampling = cuda::to_device(ConstTensorView(
        each.data(), DType::u8, {batch, static_cast<std::int64_t>(sizeof(SequenceSampling))}));
    const auto zeros = [](DType dtype, std::initializer_list<std::int64_t> dims) {
      return cuda::to_device(Tensor::zeros(dtype, dims).view);
    };
    position = zeros(DType::i64, {batch});
    tokens = zeros(DType::i32, {batch});
    status = zeros(DType::i32, {batch, 2});
    cuda::fill_bytes(workspace.get(), 0, workspace_bytes, nullptr);
  }

  void call(cuda::Stream stream) const {
    cuda::sample_tokens({.logits = logits.view,
                         .sampling = sampling.view,
                         .position = position.view,
                         .recent = {},
                         .recent_count = {},
                         .active = {},
                         .tokens = tokens.view,
                         .status = status.view},
                        {workspace.get(), workspace_bytes}, stream);
  }
};

// How many of some tokens are not those of the host.
double error_of(const Tensors& tensors, const SamplingParams& params, std::uint64_t seed) {
  const Tensor tokens = cuda::to_host(tensors.tokens.view);
  const std::int64_t last = tokens.view.dim(0) - 1;
  double wrong = 0;
  for (std::int64_t row : {std::int64_t{0}, last / 3, last}) {
    Rng rng(seed);
    SamplingWorkspace workspace;
    const std::vector<float> logits = read_rows(tensors.logits.view, row, 1);
    const int expected = sample_token(logits, params, {}, rng, workspace);
    wrong += tokens.as<std::int32_t>()[row] == expected ? 0 : 1;
  }
  return wrong;
}

DeviceCase case_of(std::int64_t batch, const std::string& name, const SamplingParams& params) {
  return {.shape = fmt::format("{} x {} logits, {}", batch, kVocab, name),
          .bytes = 4.0 * static_cast<double>(batch * kVocab),
          .flops = 0,
          .allowed_error = 0,
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(batch, params, seed);
            return DeviceWork{.call = [=](cuda::Stream stream) { tensors.call(stream); },
                              .error = [=] { return error_of(tensors, params, seed); }};
          }};
}

}  // namespace

DeviceOpBenchmark sampling_device_benchmark() {
  DeviceOpBenchmark out{
      .name = "sampling", .description = "drawing tokens from logits", .cases = {}};
  // Normal logits of deviation 1: as those of deviation 3 at the default temperature, 0.8.
  const SamplingParams narrow{.temperature = 0.8F / 3};
  SamplingParams top_p = narrow;
  top_p.top_k = 0;
  top_p.min_p = 0;
  SamplingParams unfiltered = top_p;
  unfiltered.top_p = 1;
  for (std::int64_t batch : {1, 8, 64, 512}) {
    out.cases.push_back(case_of(batch, "greedy", {.temperature = 0}));
    out.cases.push_back(case_of(batch, "top_k 40, top_p 0.95, min_p 0.05", narrow));
    out.cases.push_back(case_of(batch, "top_p 0.95", top_p));
    out.cases.push_back(case_of(batch, "unfiltered", unfiltered));
  }
  return out;
}

}  // namespace adder::bench
