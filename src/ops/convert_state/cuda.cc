#include "cuda/device.h"
#include "cuda/dispatch.h"
#include "cuda/layout.h"
#include "ops/convert_state/convert_state.h"
#include "ops/convert_state/cuda_kernel.h"

namespace adder::cuda {

void convert_state(const ConvertStateArgs& args, Stream stream) {
  validate(args);
  check_current("convert_state", "from", args.from);
  if (args.from.numel() == 0) return;
  const std::int64_t nsequences = args.from.dim(0);
  const ConvertStateParams params{.from = args.from.data,
                                  .to = args.to.data,
                                  .nsequences = nsequences,
                                  .size = args.from.numel() / nsequences};
  constexpr std::int64_t kVector = 4;
  const auto in_vectors = [&](const ConstTensorView& view) {
    const auto bytes = kVector * static_cast<std::int64_t>(size_of(view.dtype));
    return reinterpret_cast<std::intptr_t>(view.data) % bytes == 0;
  };
  const bool vectors = params.size % kVector == 0 && in_vectors(args.from) && in_vectors(args.to);
  visit_state(args.from.dtype, [&]<typename From>(TypeTag<From>) {
    visit_state(args.to.dtype, [&]<typename To>(TypeTag<To>) {
      launch_convert_state<From, To>(params, vectors, stream);
    });
  });
}

}  // namespace adder::cuda
