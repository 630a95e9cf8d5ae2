#include <fmt/format.h>

#include <random>

#include "bench/op_benchmark.h"
#include "core/half.h"
#include "ops/embedding/embedding.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kVocabSize = 50288;

Measurement measure(std::int64_t ntokens, std::int64_t d_model, ThreadPool& pool,
                    double min_seconds) {
  std::mt19937 engine(1);
  std::vector<bf16> weight(static_cast<std::size_t>(kVocabSize * d_model));
  for (bf16& v : weight) v = to_bf16(static_cast<float>(engine() % 4096) / 2048 - 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(ntokens));
  for (auto& id : ids) id = static_cast<std::int32_t>(engine() % kVocabSize);
  std::vector<float> y(static_cast<std::size_t>(ntokens * d_model));
  const EmbeddingArgs args{.ids = ConstTensorView::of(ids.data(), {ntokens}),
                           .weight = ConstTensorView::of(weight.data(), {kVocabSize, d_model}),
                           .y = TensorView::of(y.data(), {ntokens, d_model})};
  cpu::embedding(args, pool);

  Measurement out;
  out.shape = fmt::format("ntokens {}, d_model {}, bf16", ntokens, d_model);
  for (std::int64_t i = 0; i < ntokens * d_model; ++i) {
    const std::int64_t row = ids[static_cast<std::size_t>(i / d_model)];
    const float expected = to_float(weight[static_cast<std::size_t>(row * d_model + i % d_model)]);
    if (y[static_cast<std::size_t>(i)] != expected) out.error = 1;
  }
  require_accuracy("embedding", out.shape, out.error, out.allowed_error);
  out.bytes = 6.0 * static_cast<double>(ntokens * d_model);
  out.timing = time_calls([&] { cpu::embedding(args, pool); }, min_seconds);
  return out;
}

}  // namespace

OpBenchmark embedding_benchmark() {
  return {.name = "embedding",
          .description = "rows of the embedding matrix, widened to float32",
          .run = [](ThreadPool& pool, double min_seconds) {
            std::vector<Measurement> out;
            for (std::int64_t d_model : {768, 2560}) {
              for (std::int64_t ntokens : {1, 512}) {
                out.push_back(measure(ntokens, d_model, pool, min_seconds));
              }
            }
            return out;
          }};
}

}  // namespace adder::bench
