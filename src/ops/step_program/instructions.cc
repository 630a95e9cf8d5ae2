#include "ops/step_program/instructions.h"

#include <bit>

#include "core/ceil_div.h"
#include "cuda/layout.h"

namespace adder::cuda::program {
namespace {

std::int32_t stride(const ConstTensorView& view, int dimension) {
  return static_cast<std::int32_t>(view.stride(dimension));
}

template <typename T>
Rows<T> rows(const TensorView& view) {
  if (!view.defined()) return {};
  return {static_cast<T*>(view.data), stride(view, 0)};
}
template <typename T>
Rows<const T> rows(const ConstTensorView& view) {
  if (!view.defined()) return {};
  return {static_cast<const T*>(view.data), stride(view, 0)};
}

const float* floats(const ConstTensorView& view) {
  return view.defined() ? view.as<float>() : nullptr;
}

}  // namespace

Spread spread(std::int64_t begin, std::int64_t end, int blocks) {
  const auto count = static_cast<int>(end - begin);
  return {static_cast<int>(begin), count / blocks, count % blocks};
}
Before before_of(const LinearStepArgs& args) {
  if (args.norm) return Before::norm;
  if (!args.gated_norm) return Before::nothing;
  const LinearStepGatedNorm& norm = *args.gated_norm;
  if (!norm.normalize) return Before::gate;
  if (norm.norm_before_gate) return Before::norm_gate;
  return norm.ngroups > 1 ? Before::grouped_norm : Before::gate;
}

namespace {

template <typename X>
void cut_rows(Linear<X>& p) {
  const std::int64_t pieces = ceil_div(p.in, kMostPiece);
  p.piece = static_cast<int>(round_up(ceil_div(p.in, pieces), kStep));
  p.pieces = static_cast<int>(ceil_div(p.in, p.piece));
  p.stage_row = row_bytes(p.piece);
  int rows = kStageRows;
  while (rows < kTileRows && 2 * rows * p.stage_row <= kStageBytes) rows *= 2;
  p.log2_stage_rows = std::countr_zero(static_cast<unsigned>(rows));
}

}  // namespace

template <typename X>
Linear<X> linear_of(const LinearStepArgs& args, int blocks) {
  Linear<X> p{};
  p.weight = args.weight.as<bf16>();
  p.weight_row = stride(args.weight, 0);
  p.batch = static_cast<int>(args.y.dim(0));
  p.in = static_cast<int>(args.weight.dim(1));
  p.others = spread(0, args.weight.dim(0), blocks);
  cut_rows(p);
  p.before = before_of(args);
  p.is_scaled =
      p.before == Before::norm || (p.before == Before::gate && args.gated_norm->normalize);
  p.x = rows<X>(args.x);
  p.group_size = p.in;
  if (const auto& norm = args.norm) {
    p.epsilon = norm->epsilon;
    p.residual = rows<float>(norm->residual);
    p.new_residual = rows<float>(norm->new_residual);
    p.norm_y = rows<X>(norm->y);
    p.norm_weight = floats(norm->weight);
  }
  if (const auto& norm = args.gated_norm) {
    p.epsilon = norm->epsilon;
    p.z = rows<X>(norm->z);
    p.norm_weight = floats(norm->weight);
    if (p.before != Before::gate) p.group_size = p.in / static_cast<int>(norm->ngroups);
  }
  p.inverse_size = 1.0F / static_cast<float>(p.group_size);
  p.bias = floats(args.bias);
  p.y = {args.y.data, stride(args.y, 0)};
  p.y_is_float = args.y.dtype == DType::f32;
  if (const auto& conv = args.conv) {
    p.conv_begin = static_cast<int>(conv->begin);
    p.conv_channels = static_cast<int>(conv->weight.dim(0));
    p.conv_width = static_cast<int>(conv->weight.dim(1));
    p.conv_channel_stride = stride(conv->weight, 0);
    p.conv_tap_stride = stride(conv->weight, 1);
    p.conv_weight = floats(conv->weight);
    p.conv_bias = floats(conv->bias);
    p.conv_state = rows<float>(conv->state);
    p.conv_state_row = stride(conv->state, 1);
    p.conv_y = rows<X>(conv->y);
  }
  return p;
}

Heads heads_of(const SsdStepArgs& args) {
  const auto input = [](const ConstTensorView& view) {
    return view.defined() ? Heads::Input{view.data, stride(view, 0), stride(view, 1)}
                          : Heads::Input{};
  };
  Heads p{};
  p.x = input(args.x);
  p.B = input(args.B);
  p.C = input(args.C);
  p.z = input(args.z);
  p.dt = input(args.dt);
  p.y = args.y.data;
  p.y_row = stride(args.y, 0);
  p.y_column = stride(args.y, 1);
  p.A = floats(args.A);
  p.dt_bias = floats(args.dt_bias);
  p.D = floats(args.D);
  p.state = args.state.as<float>();
  p.state_sequence = stride(args.state, 0);
  p.state_head = stride(args.state, 1);
  p.state_channel = stride(args.state, 2);
  p.nheads = static_cast<int>(args.x.dim(1));
  p.heads_per_group = static_cast<int>(args.x.dim(1) / args.B.dim(1));
  p.headdim = static_cast<int>(args.x.dim(2));
  p.dstate = static_cast<int>(args.B.dim(2));
  p.rows = static_cast<int>(args.x.numel());
  p.stage_rows = kStageBytes / (4 * p.dstate);
  p.dt_options = {args.dt_softplus, args.dt_min, args.dt_max};
  p.dt_is_float = args.dt.dtype == DType::f32;
  p.D_has_headdim = args.D.rank == 2;
  return p;
}

template <typename X>
Channels<X> channels_of(const SelectiveScanStepArgs& args) {
  Channels<X> p{};
  p.x = rows<X>(args.x);
  p.dt = rows<X>(args.dt);
  p.z = rows<X>(args.z);
  p.B = rows<X>(args.B);
  p.C = rows<X>(args.C);
  p.B_column = stride(args.B, 1);
  p.C_column = stride(args.C, 1);
  p.y = rows<X>(args.y);
  p.A = floats(args.A);
  p.D = floats(args.D);
  p.dt_bias = floats(args.dt_bias);
  p.state = rows<float>(args.state);
  p.A_row = stride(args.A, 0);
  p.state_channel = stride(args.state, 1);
  p.batch = static_cast<int>(args.x.dim(0));
  p.d_inner = static_cast<int>(args.x.dim(1));
  p.group_size = static_cast<int>(args.x.dim(1) / args.B.dim(1));
  p.dstate = static_cast<int>(args.A.dim(1));
  p.dt_softplus = args.dt_softplus;
  p.group_vectors = rows_aligned(args.B) && rows_aligned(args.C);
  return p;
}

template Linear<float> linear_of(const LinearStepArgs&, int);
template Linear<bf16> linear_of(const LinearStepArgs&, int);
template Channels<float> channels_of(const SelectiveScanStepArgs&);
template Channels<bf16> channels_of(const SelectiveScanStepArgs&);

}  // namespace adder::cuda::program
