#include "core/check.h"
#include "core/dispatch.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/kernels.h"

namespace adder::cpu {

void embedding(const EmbeddingArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("embedding", "ids", args.ids);
  const std::int64_t d_model = args.weight.dim(1);
  const EmbeddingKernels& kernels = embedding_kernels();
  const auto* ids = args.ids.as<std::int32_t>();
  auto* y = args.y.as<float>();
  visit_float(args.weight.dtype, [&]<typename T>(TypeTag<T>) {
    const T* weight = args.weight.as<T>();
    // A range of fewer than 8K elements costs less than waking a thread for it.
    const std::int64_t grain = 1 + 8192 / (d_model + 1);
    pool.parallel_for(args.ids.dim(0), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        kernels.widen(weight + ids[t] * args.weight.stride(0), y + t * args.y.stride(0), d_model);
      }
    });
  });
}

}  // namespace adder::cpu
