#include "core/dispatch.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/rms_norm/cuda_kernel.h"
#include "ops/rms_norm/rms_norm.h"

namespace adder::cuda {
namespace {

// Thread blocks of one launch.
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

template <typename R, typename T>
void launch_typed(const RmsNormArgs& args, Stream stream) {
  rms::Params<R, T> p{};
  p.residual = args.residual.as<R>();
  p.residual_stride = args.residual.stride(0);
  if (args.x.defined()) {
    p.x = args.x.as<T>();
    p.x_stride = args.x.stride(0);
  }
  if (args.weight.defined()) p.weight = args.weight.as<float>();
  p.y = args.y.as<T>();
  p.y_stride = args.y.stride(0);
  p.ntokens = args.residual.dim(0);
  p.d_model = args.residual.dim(1);
  p.epsilon = args.epsilon;
  const bool vectorized = p.d_model * static_cast<std::int64_t>(sizeof(R)) % 16 == 0 &&
                          rows_aligned(args.residual) && rows_aligned(args.y) &&
                          (!args.x.defined() || rows_aligned(args.x)) &&
                          (!args.weight.defined() || rows_aligned(args.weight));
  rms::launch(p, vectorized, stream);
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream stream) {
  validate(args);
  if (args.residual.numel() == 0) return;
  check_current("rms_norm", "residual", args.residual);
  check(args.residual.dim(0) <= kMaxRows, "rms_norm: residual has {} rows, expected at most {}",
        args.residual.dim(0), kMaxRows);
  visit_float(args.y.dtype, [&]<typename T>(TypeTag<T>) {
    if (args.residual.dtype == DType::f32) {
      launch_typed<float, T>(args, stream);
    } else {
      launch_typed<T, T>(args, stream);
    }
  });
}

}  // namespace adder::cuda
