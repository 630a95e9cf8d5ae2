#include "backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "backend/cuda/step_fuser.h"
#include "backend/make_backend.h"
#include "backend/operands.h"
#include "core/check.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/convert_state/convert_state.h"
#include "ops/embedding/embedding.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/selective_scan/selective_scan.h"
#include "ops/selective_scan_step/selective_scan_step.h"
#include "ops/ssd_forward/ssd_forward.h"
#include "ops/ssd_step/ssd_step.h"
#include "ops/swiglu/swiglu.h"

namespace adder {
namespace {

constexpr int kOldestCapability = 80;

// Tokens of a call from which a block's last projection adds to the residual stream by itself. No
// fewer bytes move in all, but those of the sum move while matrix units are at work, and the norm
// after it has half as much to wait for. A product of few tokens waits for memory too, and in a
// step the norm takes the sum in.
constexpr std::int64_t kLeastTokensToAdd = 256;

class CudaLinearWeight final : public LinearWeight {
 public:
  CudaLinearWeight(Tensor weight, Tensor bias)
      : weight_(std::move(weight)), bias_(std::move(bias)) {}

  std::int64_t in_features() const override { return weight_.view.dim(1); }
  std::int64_t out_features() const override { return weight_.view.dim(0); }
  std::int64_t size_bytes() const override {
    return weight_.view.size_bytes() + (bias_.defined() ? bias_.view.size_bytes() : 0);
  }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }

 private:
  Tensor weight_;
  Tensor bias_;
};

// A matrix with its rows at multiples of 16 bytes, which kernels read fastest.
Tensor upload_matrix(const ConstTensorView& host, cuda::Stream stream) {
  const auto size = static_cast<std::int64_t>(size_of(host.dtype));
  const std::int64_t columns = host.dim(1);
  const std::int64_t stride = (columns * size + 15) / 16 * 16 / size;
  const std::int64_t dims[] = {host.dim(0), stride};
  Tensor out = cuda::empty(host.dtype, dims);
  cuda::copy_rows_to_device(out.view.data, static_cast<std::size_t>(stride * size), host.data,
                            static_cast<std::size_t>(host.stride(0) * size),
                            static_cast<std::size_t>(columns * size),
                            static_cast<std::size_t>(host.dim(0)), stream);
  out.view = out.view.narrow(1, 0, columns);
  return out;
}

bool rows_are_contiguous(const ConstTensorView& view) {
  return view.dim(1) <= 1 || view.stride(1) == 1;
}

}  // namespace

// ---- the device ---------------------------------------------------------------------------------

// What one thread's operations go to while a decode loop records them.
struct CudaBackend::Recording {
  cuda::Stream stream;
  MemoryPool* memory;
  StepFuser* fuser;
};
thread_local const CudaBackend::Recording* CudaBackend::recording_ = nullptr;

cuda::Stream CudaBackend::stream() const {
  if (recording_ == nullptr) return *stream_;
  recording_->fuser->flush();  // what is held back comes before what is put on the stream now
  return recording_->stream;
}

StepFuser* CudaBackend::fuser(std::int64_t ntokens) const {
  if (recording_ == nullptr || ntokens > cuda::kMaxLinearStepBatch) return nullptr;
  return recording_->fuser;
}

MemoryPool& CudaBackend::memory() { return recording_ == nullptr ? memory_ : *recording_->memory; }

std::unique_ptr<Backend> make_cuda_backend(int index, DType activations, DType states) {
  return std::make_unique<CudaBackend>(index, activations, states);
}

CudaBackend::CudaBackend(int index, DType activations, DType states, CudaDecodeLoop::Turns loops)
    : index_(index),
      dtype_(activations),
      states_(states),
      loops_(loops),
      name_(fmt::format("cuda:{}", index)),
      memory_(cuda::allocate) {
  const cuda::DeviceProperties& properties = cuda::properties(index);
  check(properties.compute_capability >= kOldestCapability,
        "device {}: {} has compute capability {}.{}, expected {}.{} or later", name_,
        properties.name, properties.compute_capability / 10, properties.compute_capability % 10,
        kOldestCapability / 10, kOldestCapability % 10);
  const cuda::DeviceGuard guard(index_);
  stream_ = std::make_unique<cuda::OwnedStream>();
}

void CudaBackend::check_room(std::int64_t bytes, std::string_view what) {
  const cuda::DeviceGuard guard(index_);
  std::int64_t free = cuda::free_bytes();
  if (bytes > free && memory_.give_back_unused()) free = cuda::free_bytes();
  check(bytes <= free, "device {}: {} need {} MiB, {} MiB of its memory are free", name_, what,
        (bytes >> 20) + 1, free >> 20);
}

// ---- memory -------------------------------------------------------------------------------------

Tensor CudaBackend::empty(DType dtype, std::span<const std::int64_t> dims) {
  TensorView view(nullptr, dtype, dims, {DeviceType::cuda, index_});
  auto storage = memory().allocate(static_cast<std::size_t>(view.size_bytes()));
  view.data = storage.get();
  return {view, std::move(storage)};
}

Tensor CudaBackend::matrix(std::int64_t rows, std::int64_t columns, DType dtype) {
  const std::int64_t dims[] = {rows, columns};
  return empty(dtype, dims);
}

Tensor CudaBackend::activations(std::int64_t rows, std::int64_t columns) {
  return matrix(rows, columns, dtype_);
}

void CudaBackend::with_workspace(std::size_t bytes,
                                 const std::function<void(std::span<std::byte>)>& run) {
  if (bytes == 0) return run({});
  const std::shared_ptr<void> workspace = memory().allocate(bytes);
  run({static_cast<std::byte*>(workspace.get()), bytes});
}

// ---- weights ------------------------------------------------------------------------------------

Tensor CudaBackend::upload(const ConstTensorView& host) {
  const cuda::DeviceGuard guard(index_);
  return cuda::to_device(convert(host, DType::f32).view);
}

Tensor CudaBackend::upload_ids(std::span<const std::int32_t> ids) {
  const cuda::DeviceGuard guard(index_);
  const std::int64_t dims[] = {static_cast<std::int64_t>(ids.size())};
  Tensor out = empty(DType::i32, dims);
  const std::vector<std::int32_t> pageable(ids.begin(), ids.end());
  cuda::send_to_device(out.view.data, pageable.data(), ids.size_bytes(), stream());
  return out;
}

Tensor CudaBackend::upload_embedding(const ConstTensorView& host,
                                     std::shared_ptr<const void> /*owner*/) {
  const cuda::DeviceGuard guard(index_);
  return upload_matrix(host, stream());
}

std::shared_ptr<const LinearWeight> CudaBackend::upload_linear(const ConstTensorView& weight,
                                                               const ConstTensorView& bias,
                                                               WeightFormat format) {
  check(!is_quantized(format),
        "{}: weights of {} are multiplied on the CPU only, expected f32, bf16 or f16", name_,
        name_of(format));
  const DType dtype = *dtype_of(format);
  const cuda::DeviceGuard guard(index_);
  Tensor held;
  if (weight.dtype == dtype && rows_are_contiguous(weight)) {
    held = upload_matrix(weight, stream());
  } else {
    held = upload_matrix(convert(weight, dtype).view, stream());
  }
  return std::make_shared<CudaLinearWeight>(std::move(held),
                                            bias.defined() ? upload(bias) : Tensor());
}

std::shared_ptr<const LinearWeight> CudaBackend::upload_tied_head(const Tensor& embedding,
                                                                  const ConstTensorView& host,
                                                                  WeightFormat format) {
  if (format_of(embedding.view.dtype) != format) return upload_linear(host, {}, format);
  return std::make_shared<CudaLinearWeight>(embedding, Tensor());
}

Tensor CudaBackend::upload_conv_weight(const ConstTensorView& weight) {
  // Memory holds (width, channels), the view is (channels, width): the kernel's fast path.
  const cuda::DeviceGuard guard(index_);
  Tensor transposed = convert(weight, DType::f32);
  std::swap(transposed.view.shape[0], transposed.view.shape[1]);
  std::swap(transposed.view.strides[0], transposed.view.strides[1]);
  Tensor out = cuda::to_device(convert(transposed.view, DType::f32).view);
  std::swap(out.view.shape[0], out.view.shape[1]);
  std::swap(out.view.strides[0], out.view.strides[1]);
  return out;
}

// ---- state --------------------------------------------------------------------------------------

Tensor CudaBackend::zeros(DType dtype, std::span<const std::int64_t> dims) {
  const cuda::DeviceGuard guard(index_);
  Tensor out = empty(dtype, dims);
  cuda::fill_bytes(out.view.data, 0, static_cast<std::size_t>(out.view.size_bytes()), stream());
  return out;
}

Tensor CudaBackend::zeros(std::span<const std::int64_t> dims) { return zeros(DType::f32, dims); }

Tensor CudaBackend::new_activations(std::span<const std::int64_t> dims) {
  return zeros(dtype_, dims);
}

Tensor CudaBackend::new_recurrent_states(std::span<const std::int64_t> dims) {
  return zeros(states_, dims);
}

Tensor CudaBackend::widened_states(const Tensor& states) {
  if (states.view.dtype == DType::f32) return states;
  Tensor out = empty(DType::f32, states.view.dims());
  cuda::convert_state({.from = states.view, .to = out.view}, stream());
  return out;
}

void CudaBackend::keep_states(Tensor& states, Tensor updated) {
  if (states.view.dtype == DType::f32) {
    states = std::move(updated);
  } else {
    cuda::convert_state({.from = updated.view, .to = states.view}, stream());
  }
}

Tensor CudaBackend::clone(const Tensor& tensor) {
  assert(tensor.view.is_contiguous());
  const cuda::DeviceGuard guard(index_);
  Tensor out = empty(tensor.view.dtype, tensor.view.dims());
  cuda::copy_on_device(out.view.data, tensor.view.data,
                       static_cast<std::size_t>(tensor.view.size_bytes()), stream());
  return out;
}

void CudaBackend::download(const Tensor& from, std::span<float> to) {
  assert(from.view.is_contiguous() && from.view.numel() == static_cast<std::int64_t>(to.size()));
  const cuda::DeviceGuard guard(index_);
  if (from.view.dtype == DType::f32) {
    return cuda::copy_to_host(to.data(), from.view.data, to.size_bytes(), stream());
  }
  const Tensor host = convert(cuda::to_host(from.view, stream()).view, DType::f32);
  std::copy_n(host.as<float>(), to.size(), to.data());
}

void CudaBackend::assign(Tensor& to, std::span<const float> from) {
  assert(to.view.is_contiguous() && to.view.numel() == static_cast<std::int64_t>(from.size()));
  const cuda::DeviceGuard guard(index_);
  const auto source = ConstTensorView::of(from.data(), {static_cast<std::int64_t>(from.size())});
  const Tensor host = convert(source, to.view.dtype);
  cuda::copy_to_device(to.view.data, host.view.data,
                       static_cast<std::size_t>(host.view.size_bytes()), stream());
}

void CudaBackend::copy(Tensor& to, const Tensor& from) {
  assert(to.view.is_contiguous() && from.view.is_contiguous());
  assert(to.view.dtype == from.view.dtype && to.view.numel() == from.view.numel());
  const cuda::DeviceGuard guard(index_);
  cuda::copy_on_device(to.view.data, from.view.data,
                       static_cast<std::size_t>(from.view.size_bytes()), stream());
}

std::unique_ptr<DecodeLoop> CudaBackend::make_decode_loop(
    std::int64_t nsequences, std::int64_t vocab_size,
    const std::function<Tensor(const Tensor& ids)>& step) {
  if (vocab_size > kMaxSampledVocabSize) return nullptr;
  const cuda::DeviceGuard guard(index_);
  auto loop_stream = std::make_unique<cuda::OwnedStream>();
  // A recorded step goes on using what it was recorded with, so nothing of it is ever given back.
  auto arena = std::make_shared<MemoryPool>(
      [this](std::size_t bytes) { return memory_.make(bytes); }, /*keeps_all=*/true);
  const auto step_fuser = std::make_shared<StepFuser>(*loop_stream);
  const Recording recording{*loop_stream, arena.get(), step_fuser.get()};
  recording_ = &recording;
  const std::shared_ptr<void> end(nullptr, [](void*) { recording_ = nullptr; });
  return std::make_unique<CudaDecodeLoop>(index_, *stream_, std::move(loop_stream),
                                          std::move(arena), step_fuser, nsequences, vocab_size,
                                          step, loops_);
}

// ---- rows and columns ---------------------------------------------------------------------------

Tensor CudaBackend::boundaries(const Sequences& sequences) {
  if (sequences.count() == 1) return {};
  const std::span<const std::int32_t> offsets = sequences.cu_seqlens();
  const std::lock_guard lock(boundaries_mutex_);
  if (sequences.is_step()) {
    // 0, 1, 2, ...: of the largest step so far. A recorded step keeps what it was recorded with.
    const auto size = static_cast<std::int64_t>(offsets.size());
    if (counting_.empty() || counting_.back().view.dim(0) < size) {
      counting_.push_back(cuda::to_device(ConstTensorView::of(offsets.data(), {size})));
    }
    const Tensor& longest = counting_.back();
    return {longest.view.narrow(0, 0, size), longest.storage};
  }
  if (!boundaries_.defined() || !std::equal(offsets.begin(), offsets.end(),
                                            boundaries_host_.begin(), boundaries_host_.end())) {
    boundaries_ = upload_ids(offsets);
    boundaries_host_.assign(offsets.begin(), offsets.end());
  }
  return boundaries_;
}

Tensor CudaBackend::columns(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return {x.view.narrow(1, begin, count), x.storage};
}

Tensor CudaBackend::rows(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return {x.view.narrow(0, begin, count), x.storage};
}

Tensor CudaBackend::last_tokens(const Tensor& x, const Sequences& sequences) {
  const std::vector<std::int32_t> last = operands::last_tokens(sequences);
  const cuda::DeviceGuard guard(index_);
  const Tensor ids = upload_ids(last);
  Tensor out = matrix(static_cast<std::int64_t>(last.size()), x.view.dim(1), x.view.dtype);
  cuda::embedding({.ids = ids.view, .weight = x.view, .y = out.view}, stream());
  return out;
}

Tensor CudaBackend::concat_columns(const Tensor& a, const Tensor& b) {
  assert(a.view.dtype == b.view.dtype);
  const cuda::DeviceGuard guard(index_);
  const std::int64_t ntokens = a.view.dim(0);
  const auto size = static_cast<std::int64_t>(size_of(a.view.dtype));
  Tensor out = matrix(ntokens, a.view.dim(1) + b.view.dim(1), a.view.dtype);
  std::int64_t begin = 0;
  for (const Tensor* part : {&a, &b}) {
    const TensorView to = out.view.narrow(1, begin, part->view.dim(1));
    cuda::copy_rows_on_device(to.data, static_cast<std::size_t>(to.stride(0) * size),
                              part->view.data,
                              static_cast<std::size_t>(part->view.stride(0) * size),
                              static_cast<std::size_t>(part->view.dim(1) * size),
                              static_cast<std::size_t>(ntokens), stream());
    begin += part->view.dim(1);
  }
  return out;
}

// ---- operations ---------------------------------------------------------------------------------

Tensor CudaBackend::embedding(const Tensor& ids, const Tensor& weight) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = matrix(ids.view.dim(0), weight.view.dim(1), DType::f32);
  cuda::embedding({.ids = ids.view, .weight = weight.view, .y = y.view}, stream());
  return y;
}

Tensor CudaBackend::rms_norm(const Tensor& x, const Tensor& weight, float epsilon) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = activations(x.view.dim(0), x.view.dim(1));
  if (StepFuser* steps = fuser(x.view.dim(0)); steps != nullptr && x.view.dtype == DType::f32) {
    steps->norm(x, {}, {}, weight, epsilon, y);
    return y;
  }
  cuda::rms_norm(
      {.residual = x.view, .x = {}, .weight = weight.view, .y = y.view, .epsilon = epsilon},
      stream());
  return y;
}

Tensor CudaBackend::add_rms_norm(Tensor& residual, const Tensor& x, const Tensor& weight,
                                 float epsilon) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = activations(residual.view.dim(0), residual.view.dim(1));
  if (StepFuser* steps = fuser(residual.view.dim(0))) {
    Tensor sum = empty(DType::f32, residual.view.dims());
    steps->norm(residual, x, sum, weight, epsilon, y);
    residual = std::move(sum);
    return y;
  }
  cuda::rms_norm({.residual = residual.view,
                  .x = x.view,
                  .weight = weight.view,
                  .y = y.view,
                  .epsilon = epsilon},
                 stream());
  return y;
}

void CudaBackend::multiply_now(const LinearArgs& args, const Tensor& weight) {
  with_workspace(cuda::linear_workspace_bytes(args, weight.view),
                 [&](std::span<std::byte> workspace) {
                   cuda::linear(args, weight.view, workspace, stream());
                 });
}

Tensor CudaBackend::multiply(const Tensor& x, const LinearWeight& weight, DType y_dtype,
                             StepFuser* steps, bool keeps_x) {
  const cuda::DeviceGuard guard(index_);
  const auto& held = static_cast<const CudaLinearWeight&>(weight);
  Tensor y = matrix(x.view.dim(0), held.out_features(), y_dtype);
  if (steps != nullptr && steps->linear(x, held.weight(), held.bias(), y, keeps_x)) {
    return y;
  }
  multiply_now({.x = x.view, .bias = held.bias().view, .y = y.view}, held.weight());
  return y;
}

Tensor CudaBackend::linear(const Tensor& x, const LinearWeight& weight) {
  return multiply(x, weight, dtype_, fuser(x.view.dim(0)), false);
}

Tensor CudaBackend::linear_add(Tensor& residual, const Tensor& x, const LinearWeight& weight) {
  if (x.view.dim(0) < kLeastTokensToAdd) return linear(x, weight);
  const cuda::DeviceGuard guard(index_);
  const auto& held = static_cast<const CudaLinearWeight&>(weight);
  multiply_now({.x = x.view, .bias = held.bias().view, .y = residual.view, .accumulate = true},
               held.weight());
  return {};
}

Tensor CudaBackend::logits(const Tensor& hidden, const LinearWeight& head) {
  StepFuser* steps = fuser(hidden.view.dim(0));
  Tensor y = multiply(hidden, head, DType::f32, steps, true);
  if (steps != nullptr) steps->flush();  // others read both
  return y;
}

Tensor CudaBackend::causal_conv1d_silu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                       Tensor& state, const Sequences& sequences) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = activations(x.view.dim(0), x.view.dim(1));
  StepFuser* steps = fuser(x.view.dim(0));
  if (sequences.is_step() && steps != nullptr && steps->convolution(x, weight, bias, state, y)) {
    return y;
  }
  const Tensor offsets = boundaries(sequences);
  cuda::causal_conv1d(operands::causal_conv1d(x, weight, bias, state, offsets.view, y), stream());
  return y;
}

Tensor CudaBackend::ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = activations(input.x.view.dim(0), input.x.view.dim(1));
  if (sequences.is_step()) {
    const SsdStepArgs args = operands::ssd_step(input, state, y);
    StepFuser* steps = fuser(input.x.view.dim(0));
    if (steps == nullptr || !steps->ssd_step(args)) cuda::ssd_step(args, stream());
    return y;
  }
  const Tensor offsets = boundaries(sequences);
  // Not in place: what starts from the old states and what ends with the new ones may then run at
  // the same time.
  Tensor final_states = empty(DType::f32, state.view.dims());
  const Tensor initial_states = widened_states(state);
  const SsdForwardArgs args =
      operands::ssd_forward(input, initial_states, final_states, offsets.view, y);
  with_workspace(cuda::ssd_forward_workspace_bytes(args), [&](std::span<std::byte> workspace) {
    cuda::ssd_forward(args, workspace, stream());
  });
  keep_states(state, std::move(final_states));
  return y;
}

Tensor CudaBackend::selective_scan(const SelectiveScanInput& input, Tensor& state,
                                   const Sequences& sequences) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = activations(input.x.view.dim(0), input.x.view.dim(1));
  if (sequences.is_step()) {
    const SelectiveScanStepArgs args = operands::selective_scan_step(input, state, y);
    StepFuser* steps = fuser(input.x.view.dim(0));
    if (steps == nullptr || !steps->selective_scan_step(args)) {
      cuda::selective_scan_step(args, stream());
    }
    return y;
  }
  const Tensor offsets = boundaries(sequences);
  Tensor updated = widened_states(state);
  const SelectiveScanArgs args = operands::selective_scan(input, updated, offsets.view, y);
  with_workspace(cuda::selective_scan_workspace_bytes(args), [&](std::span<std::byte> workspace) {
    cuda::selective_scan(args, workspace, stream());
  });
  keep_states(state, std::move(updated));
  return y;
}

Tensor CudaBackend::gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                                   const GatedNormOptions& options) {
  const cuda::DeviceGuard guard(index_);
  Tensor out = activations(y.view.dim(0), y.view.dim(1));
  if (StepFuser* steps = fuser(y.view.dim(0))) {
    steps->gated_norm(y, z, weight, options, out);
    return out;
  }
  cuda::gated_rms_norm(operands::gated_rms_norm(y, z, weight, options, out), stream());
  return out;
}

Tensor CudaBackend::gated_mlp(const Tensor& x, const Tensor& gate) {
  const cuda::DeviceGuard guard(index_);
  Tensor y = activations(x.view.dim(0), x.view.dim(1));
  cuda::swiglu({.x = x.view, .gate = gate.view, .y = y.view}, stream());
  return y;
}

}  // namespace adder
