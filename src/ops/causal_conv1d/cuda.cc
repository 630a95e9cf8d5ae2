#include "core/dispatch.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/cuda_kernel.h"

namespace adder::cuda {
namespace {

template <typename T>
conv::Params<T> make_params(const CausalConv1dArgs& args) {
  conv::Params<T> p{};
  p.x = args.x.as<T>();
  p.x_stride = args.x.stride(0);
  p.y = args.y.as<T>();
  p.y_stride = args.y.stride(0);
  p.weight = args.weight.as<float>();
  p.weight_channel_stride = args.weight.stride(0);
  p.weight_tap_stride = args.weight.stride(1);
  p.weight_aligned = p.weight_channel_stride == 1 && p.weight_tap_stride % 4 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.weight) % 16 == 0;
  if (args.bias.defined()) {
    p.bias = args.bias.as<float>();
    p.bias_aligned = rows_aligned(args.bias);
  }
  if (args.conv_state.defined()) {
    p.state = args.conv_state.as<float>();
    p.state_sequence_stride = args.conv_state.stride(0);
    p.state_row_stride = args.conv_state.stride(1);
  }
  p.nsequences = 1;
  if (args.cu_seqlens.defined()) {
    p.cu_seqlens = args.cu_seqlens.as<std::int32_t>();
    p.nsequences = args.cu_seqlens.dim(0) - 1;
  }
  if (args.seq_idx.defined()) p.seq_idx = args.seq_idx.as<std::int32_t>();
  p.ntokens = args.x.dim(0);
  p.channels = args.x.dim(1);
  p.silu = args.silu;
  return p;
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& args, Stream stream) {
  validate(args);
  if (args.x.numel() == 0) return;
  check_current("causal_conv1d", "x", args.x);
  const auto width = static_cast<int>(args.weight.dim(1));
  const int multiprocessors = properties(args.x.device.index).multiprocessors;
  visit_float(args.x.dtype, [&]<typename T>(TypeTag<T>) {
    // Wider windows of vectors would need more registers than a lane has.
    const bool vectorized = width <= 4 && args.x.dim(1) % conv::kConvVector<T> == 0 &&
                            rows_aligned(args.x) && rows_aligned(args.y) &&
                            (!args.conv_state.defined() || rows_aligned(args.conv_state));
    conv::launch(make_params<T>(args), width, vectorized, multiprocessors, stream);
  });
}

}  // namespace adder::cuda
