#include <fmt/format.h>

#include <cmath>
#include <random>

#include "bench/op_benchmark.h"
#include "ops/sampling/ref.h"
#include "ops/sampling/sampling.h"

namespace adder::bench {
namespace {

// The candidates' probabilities against the definition.
double error_of(std::span<const float> logits, const SamplingParams& params,
                const SamplingWorkspace& workspace) {
  std::vector<double> truth = ref::token_probabilities(logits, params, {});
  double sum = 0;
  for (const auto& c : workspace.candidates) sum += static_cast<double>(c.weight);
  for (const auto& c : workspace.candidates)
    truth[static_cast<std::size_t>(c.id)] -= static_cast<double>(c.weight) / sum;
  double worst = 0;
  for (double difference : truth) worst = std::max(worst, std::abs(difference));
  return worst;
}

Measurement measure(const std::string& name, const SamplingParams& params, double min_seconds) {
  constexpr std::int64_t kVocab = 50280;
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> logits(kVocab);
  for (float& v : logits) v = normal(engine);
  SamplingWorkspace workspace;
  Rng rng(1);
  const int token = sample_token(logits, params, {}, rng, workspace);

  Measurement out;
  out.shape = fmt::format("vocab_size {}, {}", kVocab, name);
  out.allowed_error = 1e-9;
  out.error = params.temperature == 0 ? static_cast<double>(token != argmax(logits))
                                      : error_of(logits, params, workspace);
  require_accuracy("sampling", out.shape, out.error, out.allowed_error);
  out.bytes = 4.0 * kVocab;
  out.timing = time_calls([&] { sample_token(logits, params, {}, rng, workspace); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark sampling_benchmark() {
  return {.name = "sampling",
          .description = "drawing a token from logits (one thread)",
          .run = [](ThreadPool&, double min_seconds) {
            return std::vector<Measurement>{
                measure("greedy", {.temperature = 0}, min_seconds),
                measure("top_k 40, top_p 0.95, min_p 0.05", {}, min_seconds),
                measure("top_p 0.95", {.top_k = 0, .min_p = 0}, min_seconds),
                measure("unfiltered", {.top_k = 0, .top_p = 1, .min_p = 0}, min_seconds)};
          }};
}

}  // namespace adder::bench
