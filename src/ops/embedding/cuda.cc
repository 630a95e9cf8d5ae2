#include "core/dispatch.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/embedding/cuda_kernel.h"
#include "ops/embedding/embedding.h"

namespace adder::cuda {
namespace {

// Thread blocks of one launch.
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

template <typename W, typename T>
void launch_typed(const EmbeddingArgs& args, Stream stream) {
  embed::Params<W, T> p{};
  p.ids = args.ids.as<std::int32_t>();
  p.weight = args.weight.as<W>();
  p.weight_stride = args.weight.stride(0);
  p.vocab_rows = args.weight.dim(0);
  p.y = args.y.as<T>();
  p.y_stride = args.y.stride(0);
  p.ntokens = args.y.dim(0);
  p.d_model = args.y.dim(1);
  const bool vectorized = p.d_model % embed::kEmbedVector<W, T> == 0 && rows_aligned(args.weight) &&
                          rows_aligned(args.y);
  embed::launch(p, vectorized, stream);
}

}  // namespace

void embedding(const EmbeddingArgs& args, Stream stream) {
  validate(args);
  if (args.y.numel() == 0) return;
  check_current("embedding", "ids", args.ids);
  check(args.ids.dim(0) <= kMaxRows, "embedding: ids has {} tokens, expected at most {}",
        args.ids.dim(0), kMaxRows);
  visit_float(args.weight.dtype, [&]<typename W>(TypeTag<W>) {
    visit_float(args.y.dtype, [&]<typename T>(TypeTag<T>) { launch_typed<W, T>(args, stream); });
  });
}

}  // namespace adder::cuda
