#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "cuda/memory.h"
#include "ops/embedding/embedding.h"

namespace adder::bench {
namespace {

constexpr std::int64_t kVocabSize = 50288;

// The matrix of one shape. All calls of a case read the same one, each other rows of it: with a
// copy for each call the matrices of small calls would not fit the device.
class Matrix {
 public:
  Matrix(std::int64_t d_model, DType dtype) : d_model_(d_model), dtype_(dtype) {}

  /// Made when first asked for, and again when nobody holds it any more.
  std::shared_ptr<const Tensor> get() {
    std::shared_ptr<const Tensor> out = made_.lock();
    if (out == nullptr) {
      out = std::make_shared<const Tensor>(device_normals(dtype_, {kVocabSize, d_model_}, 0));
      made_ = out;
    }
    return out;
  }

 private:
  std::int64_t d_model_;
  DType dtype_;
  std::weak_ptr<const Tensor> made_;
};

struct Tensors {
  std::shared_ptr<const Tensor> weight;
  std::vector<std::int32_t> ids;  // all different, so that no row comes from a cache
  Tensor ids_there, y;

  Tensors(Matrix& matrix, std::int64_t ntokens, DType y_dtype, std::uint64_t seed)
      : weight(matrix.get()), y(device_poison(y_dtype, {ntokens, weight->view.dim(1)})) {
    std::vector<std::int32_t> all(kVocabSize);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    std::shuffle(all.begin(), all.end(), std::mt19937_64(seed));
    ids.assign(all.begin(), all.begin() + ntokens);
    ids_there = cuda::to_device(ConstTensorView::of(ids.data(), {ntokens}));
  }

  EmbeddingArgs args() const {
    return {.ids = ids_there.view, .weight = weight->view, .y = y.view};
  }
};

// Some tokens against the rows that they ask for.
double error_of(const Tensors& tensors) {
  double error = 0;
  const auto last = static_cast<std::int64_t>(tensors.ids.size()) - 1;
  for (std::int64_t token : {std::int64_t{0}, last / 3, last}) {
    const std::int64_t row = tensors.ids[static_cast<std::size_t>(token)];
    error = std::max(error, largest_error(read_rows(tensors.y.view, token, 1),
                                          to_doubles(read_rows(tensors.weight->view, row, 1))));
  }
  return error;
}

DeviceCase case_of(std::int64_t ntokens, std::int64_t d_model, DType dtype, DType y_dtype) {
  const auto count = static_cast<double>(ntokens * d_model);
  const auto matrix = std::make_shared<Matrix>(d_model, dtype);
  return {.shape = fmt::format("{} tokens, d_model {}, {} to {}", ntokens, d_model, name_of(dtype),
                               name_of(y_dtype)),
          .bytes = static_cast<double>(size_of(dtype) + size_of(y_dtype)) * count +
                   4.0 * static_cast<double>(ntokens),
          .prepare = [=](std::uint64_t seed) {
            const Tensors tensors(*matrix, ntokens, y_dtype, seed);
            return DeviceWork{
                .call = [=](cuda::Stream stream) { cuda::embedding(tensors.args(), stream); },
                .error = [=] { return error_of(tensors); }};
          }};
}

}  // namespace

DeviceOpBenchmark embedding_device_benchmark() {
  DeviceOpBenchmark out{.name = "embedding",
                        .description = "rows of the embedding matrix, widened to float32",
                        .cases = {}};
  // mamba2-2.7b and mamba2-130m: prompts, and steps of many sequences.
  for (std::int64_t ntokens : {1, 256, 1024, 32768}) {
    out.cases.push_back(case_of(ntokens, 2560, DType::bf16, DType::f32));
  }
  out.cases.push_back(case_of(32768, 2560, DType::f32, DType::f32));
  out.cases.push_back(case_of(32768, 2560, DType::bf16, DType::bf16));
  out.cases.push_back(case_of(32768, 768, DType::bf16, DType::f32));
  return out;
}

}  // namespace adder::bench
