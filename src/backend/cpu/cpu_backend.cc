#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <variant>

#include "backend/operands.h"
#include "core/check.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/embedding/embedding.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/linear/linear.h"
#include "ops/quantized_linear/quantized_linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/selective_scan/selective_scan.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/ssd_forward/ssd_forward.h"
#include "ops/ssd_step/ssd_step.h"
#include "ops/swiglu/swiglu.h"

namespace adder {
namespace {

class CpuLinearWeight final : public LinearWeight {
 public:
  using Packed = std::variant<cpu::PackedLinear, QuantizedMatrix>;

  CpuLinearWeight(Packed packed, Tensor bias)
      : packed_(std::move(packed)), bias_(std::move(bias)) {}

  std::int64_t in_features() const override {
    if (const auto* held = std::get_if<QuantizedMatrix>(&packed_)) return held->columns();
    return std::get<cpu::PackedLinear>(packed_).in_features();
  }
  std::int64_t out_features() const override {
    if (const auto* held = std::get_if<QuantizedMatrix>(&packed_)) return held->rows();
    return std::get<cpu::PackedLinear>(packed_).out_features();
  }
  std::int64_t size_bytes() const override {
    return std::visit([](const auto& weight) { return weight.bytes(); }, packed_) +
           (bias_.defined() ? bias_.view.size_bytes() : 0);
  }
  void unpack_row(std::int64_t row, std::span<float> out) const {
    std::visit([&](const auto& weight) { weight.unpack_row(row, out); }, packed_);
  }
  const Packed& packed() const { return packed_; }
  ConstTensorView bias() const { return bias_.view; }

 private:
  Packed packed_;
  Tensor bias_;
};

// The boundaries for an operation, which takes one sequence to be the rule.
ConstTensorView boundaries(const Sequences& sequences) {
  if (sequences.count() == 1) return {};
  return ConstTensorView::of(sequences.cu_seqlens().data(), {sequences.count() + 1});
}

}  // namespace

Tensor CpuBackend::empty(DType dtype, std::span<const std::int64_t> dims) {
  TensorView view(nullptr, dtype, dims);
  auto storage = memory_.allocate(static_cast<std::size_t>(view.size_bytes()));
  view.data = storage.get();
  return {view, std::move(storage)};
}

Tensor CpuBackend::matrix(std::int64_t rows, std::int64_t columns) {
  const std::int64_t dims[] = {rows, columns};
  return empty(DType::f32, dims);
}

// ---- weights
// -------------------------------------------------------------------------------------

Tensor CpuBackend::upload(const ConstTensorView& host) { return convert(host, DType::f32); }

Tensor CpuBackend::upload_ids(std::span<const std::int32_t> ids) {
  const std::int64_t dims[] = {static_cast<std::int64_t>(ids.size())};
  Tensor out = empty(DType::i32, dims);
  std::copy(ids.begin(), ids.end(), out.as<std::int32_t>());
  return out;
}

Tensor CpuBackend::upload_embedding(const ConstTensorView& host,
                                    std::shared_ptr<const void> owner) {
  // Rows are looked up where they lie, usually in the mapped file: nothing is copied, and only the
  // rows that are used are ever read. The tensor is never written through.
  TensorView view(const_cast<void*>(host.data), host.dtype, host.dims(), host.device);
  view.strides = host.strides;
  return {view, std::const_pointer_cast<void>(std::move(owner))};
}

std::shared_ptr<const LinearWeight> CpuBackend::upload_linear(const ConstTensorView& weight,
                                                              const ConstTensorView& bias,
                                                              WeightFormat format) {
  const auto packed = [&]() -> CpuLinearWeight::Packed {
    if (is_quantized(format)) return cpu::quantize_linear(weight, format, {}, "a weight", pool_);
    return cpu::pack_linear(weight, *dtype_of(format), pool_);
  };
  return std::make_shared<CpuLinearWeight>(packed(), bias.defined() ? upload(bias) : Tensor());
}

std::shared_ptr<const LinearWeight> CpuBackend::upload_rows(const MatrixRows& weight,
                                                            const ConstTensorView& bias,
                                                            WeightFormat format) {
  const auto packed = [&]() -> CpuLinearWeight::Packed {
    if (is_quantized(format)) return cpu::quantize_linear(weight, format, {}, pool_);
    return cpu::pack_linear(weight, *dtype_of(format), pool_);
  };
  return std::make_shared<CpuLinearWeight>(packed(), bias.defined() ? upload(bias) : Tensor());
}

std::shared_ptr<const LinearWeight> CpuBackend::upload_quantized(const QuantizedMatrix& weight,
                                                                 const ConstTensorView& bias) {
  return std::make_shared<CpuLinearWeight>(weight, bias.defined() ? upload(bias) : Tensor());
}

Tensor CpuBackend::upload_conv_weight(const ConstTensorView& weight) {
  // Memory holds (width, channels), the view is (channels, width): the kernel's fast path.
  const std::int64_t channels = weight.dim(0);
  const std::int64_t width = weight.dim(1);
  const Tensor rows = convert(weight, DType::f32);
  Tensor out = Tensor::empty(DType::f32, {width, channels});
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t k = 0; k < width; ++k) {
      out.as<float>()[k * channels + c] = rows.as<float>()[c * width + k];
    }
  }
  std::swap(out.view.shape[0], out.view.shape[1]);
  std::swap(out.view.strides[0], out.view.strides[1]);
  return out;
}

// ---- state
// ---------------------------------------------------------------------------------------

Tensor CpuBackend::zeros(std::span<const std::int64_t> dims) {
  Tensor out = Tensor::empty(DType::f32, dims);
  std::memset(out.view.data, 0, static_cast<std::size_t>(out.view.size_bytes()));
  return out;
}

Tensor CpuBackend::clone(const Tensor& tensor) { return convert(tensor.view, tensor.view.dtype); }

void CpuBackend::copy(Tensor& to, const Tensor& from) {
  assert(to.view.is_contiguous() && from.view.is_contiguous());
  assert(to.view.dtype == from.view.dtype && to.view.numel() == from.view.numel());
  std::memcpy(to.view.data, from.view.data, static_cast<std::size_t>(from.view.size_bytes()));
}

void CpuBackend::download(const Tensor& from, std::span<float> to) {
  assert(from.view.is_contiguous() && from.view.numel() == static_cast<std::int64_t>(to.size()));
  std::copy_n(from.as<float>(), to.size(), to.data());
}

void CpuBackend::assign(Tensor& to, std::span<const float> from) {
  assert(to.view.is_contiguous() && to.view.numel() == static_cast<std::int64_t>(from.size()));
  std::copy(from.begin(), from.end(), to.as<float>());
}

// ---- operations ---------------------------------------------------------------------------------

Tensor CpuBackend::columns(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return {x.view.narrow(1, begin, count), x.storage};
}

Tensor CpuBackend::rows(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return {x.view.narrow(0, begin, count), x.storage};
}

Tensor CpuBackend::last_tokens(const Tensor& x, const Sequences& sequences) {
  const std::vector<std::int32_t> last = operands::last_tokens(sequences);
  const std::int64_t width = x.view.dim(1);
  Tensor out = matrix(static_cast<std::int64_t>(last.size()), width);
  float* to = out.as<float>();
  for (std::int32_t token : last) {
    to = std::copy_n(x.as<float>() + token * x.view.stride(0), width, to);
  }
  return out;
}

Tensor CpuBackend::concat_columns(const Tensor& a, const Tensor& b) {
  const std::int64_t ntokens = a.view.dim(0);
  Tensor out = matrix(ntokens, a.view.dim(1) + b.view.dim(1));
  float* to = out.as<float>();
  for (std::int64_t t = 0; t < ntokens; ++t) {
    for (const Tensor* part : {&a, &b}) {
      to = std::copy_n(part->as<float>() + t * part->view.stride(0), part->view.dim(1), to);
    }
  }
  return out;
}

Tensor CpuBackend::embedding(const Tensor& ids, const Tensor& weight) {
  Tensor y = matrix(ids.view.dim(0), weight.view.dim(1));
  cpu::embedding({.ids = ids.view, .weight = weight.view, .y = y.view}, pool_);
  return y;
}

Tensor CpuBackend::tied_embedding(const Tensor& ids, const LinearWeight& head) {
  const auto& rows = static_cast<const CpuLinearWeight&>(head);
  const std::int64_t ntokens = ids.view.dim(0);
  const std::int64_t width = rows.in_features();
  Tensor y = matrix(ntokens, width);
  constexpr std::int64_t kTokenGrain = 8;
  pool_.parallel_for(ntokens, kTokenGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      rows.unpack_row(ids.as<std::int32_t>()[t],
                      {y.as<float>() + t * width, static_cast<std::size_t>(width)});
    }
  });
  return y;
}

Tensor CpuBackend::rms_norm(const Tensor& x, const Tensor& weight, float epsilon) {
  Tensor y = matrix(x.view.dim(0), x.view.dim(1));
  cpu::rms_norm(
      {.residual = x.view, .x = {}, .weight = weight.view, .y = y.view, .epsilon = epsilon}, pool_);
  return y;
}

Tensor CpuBackend::add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                                float epsilon) {
  Tensor y = matrix(residual.view.dim(0), residual.view.dim(1));
  cpu::rms_norm({.residual = residual.view,
                 .x = x.view,
                 .weight = weight.view,
                 .y = y.view,
                 .epsilon = epsilon},
                pool_);
  return y;
}

Tensor CpuBackend::linear(const Tensor& x, const LinearWeight& weight) {
  const auto& held = static_cast<const CpuLinearWeight&>(weight);
  Tensor y = matrix(x.view.dim(0), held.out_features());
  const LinearArgs args{
      .x = x.view, .bias = held.bias(), .y = y.view, .round_inputs = round_inputs_};
  if (const auto* packed = std::get_if<cpu::PackedLinear>(&held.packed())) {
    cpu::linear(args, *packed, pool_);
    return y;
  }
  const auto& quantized = std::get<QuantizedMatrix>(held.packed());
  const std::size_t bytes = cpu::quantized_linear_workspace_bytes(args, quantized);
  const std::shared_ptr<void> workspace = memory_.allocate(bytes);
  cpu::quantized_linear(args, quantized, {static_cast<std::byte*>(workspace.get()), bytes}, pool_);
  return y;
}

Tensor CpuBackend::causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                      Tensor& state, const Sequences& sequences) {
  Tensor y = matrix(x.view.dim(0), x.view.dim(1));
  cpu::causal_conv1d(operands::causal_conv1d(x, weight, bias, state, boundaries(sequences), y),
                     pool_);
  return y;
}

Tensor CpuBackend::ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) {
  Tensor y = matrix(input.x.view.dim(0), input.x.view.dim(1));
  if (sequences.is_step()) {
    cpu::ssd_step(operands::ssd_step(input, state, y), pool_);
    return y;
  }
  const SsdForwardArgs args = operands::ssd_forward(input, state, state, boundaries(sequences), y);
  const std::size_t bytes = cpu::ssd_forward_workspace_bytes(args, pool_.nthreads());
  const std::shared_ptr<void> workspace = memory_.allocate(bytes);
  cpu::ssd_forward(args, {static_cast<std::byte*>(workspace.get()), bytes}, pool_);
  return y;
}

Tensor CpuBackend::selective_scan(const SelectiveScanInput& input, Tensor& state,
                                  const Sequences& sequences) {
  Tensor y = matrix(input.x.view.dim(0), input.x.view.dim(1));
  if (sequences.is_step()) {
    cpu::selective_scan_step(operands::selective_scan_step(input, state, y), pool_);
    return y;
  }
  cpu::selective_scan(operands::selective_scan(input, state, boundaries(sequences), y), pool_);
  return y;
}

Tensor CpuBackend::gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                                  const GatedNormOptions& options) {
  Tensor out = matrix(y.view.dim(0), y.view.dim(1));
  cpu::gated_rms_norm(operands::gated_rms_norm(y, z, weight, options, out), pool_);
  return out;
}

Tensor CpuBackend::gated_mlp(const Tensor& x, const Tensor& gate) {
  Tensor y = matrix(x.view.dim(0), x.view.dim(1));
  cpu::swiglu({.x = x.view, .gate = gate.view, .y = y.view}, pool_);
  return y;
}

}  // namespace adder
