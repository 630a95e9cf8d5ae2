#include "core/dispatch.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/gated_rms_norm/cuda_kernel.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"

namespace adder::cuda {
namespace {

// Thread blocks of one launch.
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

template <typename T>
gated_norm::Params<T> make_params(const GatedRmsNormArgs& args) {
  gated_norm::Params<T> p{};
  p.y = args.y.as<T>();
  p.y_stride = args.y.stride(0);
  if (args.z.defined()) {
    p.z = args.z.as<T>();
    p.z_stride = args.z.stride(0);
  }
  if (args.weight.defined()) p.weight = args.weight.as<float>();
  p.out = args.out.as<T>();
  p.out_stride = args.out.stride(0);
  p.ntokens = args.y.dim(0);
  p.ngroups = args.ngroups;
  p.size = args.y.dim(1) / args.ngroups;
  p.epsilon = args.epsilon;
  p.norm_before_gate = args.norm_before_gate;
  p.norm = args.norm;
  return p;
}

}  // namespace

void gated_rms_norm(const GatedRmsNormArgs& args, Stream stream) {
  validate(args);
  if (args.y.numel() == 0) return;
  check_current("gated_rms_norm", "y", args.y);
  const std::int64_t nrows = args.y.dim(0) * args.ngroups;
  check(nrows <= kMaxRows, "gated_rms_norm: y has {} groups in all, expected at most {}", nrows,
        kMaxRows);
  const auto size_bytes =
      args.y.dim(1) / args.ngroups * static_cast<std::int64_t>(size_of(args.y.dtype));
  const bool vectorized = size_bytes % 16 == 0 && rows_aligned(args.y) && rows_aligned(args.out) &&
                          (!args.z.defined() || rows_aligned(args.z)) &&
                          (!args.weight.defined() || rows_aligned(args.weight));
  visit_float(args.y.dtype, [&]<typename T>(TypeTag<T>) {
    gated_norm::launch(make_params<T>(args), vectorized, stream);
  });
}

}  // namespace adder::cuda
