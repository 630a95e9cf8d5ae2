#include "core/dispatch.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/swiglu/cuda_kernel.h"
#include "ops/swiglu/swiglu.h"

namespace adder::cuda {
namespace {

// Thread blocks of one launch.
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

template <typename T>
glu::Params<T> make_params(const SwigluArgs& args) {
  glu::Params<T> p{};
  p.x = args.x.as<T>();
  p.x_stride = args.x.stride(0);
  p.gate = args.gate.as<T>();
  p.gate_stride = args.gate.stride(0);
  p.y = args.y.as<T>();
  p.y_stride = args.y.stride(0);
  p.ntokens = args.x.dim(0);
  p.d_mlp = args.x.dim(1);
  return p;
}

}  // namespace

void swiglu(const SwigluArgs& args, Stream stream) {
  validate(args);
  if (args.x.numel() == 0) return;
  check_current("swiglu", "x", args.x);
  check(args.x.dim(0) <= kMaxRows, "swiglu: x has {} rows, expected at most {}", args.x.dim(0),
        kMaxRows);
  const bool vectorized =
      args.x.dim(1) * static_cast<std::int64_t>(size_of(args.x.dtype)) % 16 == 0 &&
      rows_aligned(args.x) && rows_aligned(args.gate) && rows_aligned(args.y);
  visit_float(args.x.dtype, [&]<typename T>(TypeTag<T>) {
    glu::launch(make_params<T>(args), vectorized, stream);
  });
}

}  // namespace adder::cuda
