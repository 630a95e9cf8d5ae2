#pragma once

// Inputs of ssd_forward for benchmarks and tuning on a CUDA device, made there, and parts of the
// results compared with the definition.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/device_benchmark.h"
#include "bench/device_data.h"
#include "core/tensor.h"
#include "cuda/memory.h"
#include "ops/ssd_forward/ref.h"
#include "ops/ssd_forward/tuning.h"

namespace adder::bench {

struct SsdDeviceShape {
  cuda::SsdForwardShape shape;
  bool softplus = true;  ///< with dt_bias, as a model calls it; else dt comes positive
  /// dt, if it comes positive, is from 0.1 to 1.5, as softplus makes it of normals. Heads forget
  /// all within a few chunks then, what kernels make use of. With `remembers`, from 0.001 to 0.02.
  bool remembers = false;

  std::string name() const {
    return cuda::describe(shape) + (remembers ? ", heads that remember" : "");
  }

  double allowed_error() const {
    return shape.dtype != DType::f32 ? 5e-3 : shape.allow_tf32 ? 2e-3 : 1e-5;
  }
};

/// The grid on which Mamba-2 kernels are compared, some of it with heads that remember for long,
/// then shapes of mamba2-130m and mamba2-2.7b.
inline std::vector<SsdDeviceShape> ssd_device_shapes() {
  std::vector<SsdDeviceShape> out;
  const auto add = [&](std::int64_t batch, std::int64_t seqlen, std::int64_t nheads,
                       std::int64_t dstate, bool softplus) {
    out.push_back(
        {.shape =
             {.batch = batch, .nheads = nheads, .headdim = 64, .dstate = dstate, .seqlen = seqlen},
         .softplus = softplus});
  };
  for (std::int64_t dstate : {64, 128, 256, 512}) {
    for (std::int64_t seqlen = 1 << 10; seqlen <= 1 << 18; seqlen *= 2) {
      add(4, seqlen, 8, dstate, false);
    }
  }
  for (std::int64_t dstate : {64, 128, 256}) {
    add(4, 16384, 8, dstate, false);
    out.back().remembers = true;
  }
  add(8, 4096, 24, 128, true);
  add(1, 1024, 80, 128, true);
  add(1, 16384, 80, 128, true);
  add(8, 4096, 80, 128, true);
  add(1, 262144, 80, 512, true);
  return out;
}

/// What a call must read and write at least: everything once, with dt in the dtype of x.
inline double ssd_bytes(const cuda::SsdForwardShape& s) {
  const auto rows = static_cast<double>(s.packed ? 1 : s.batch);
  const double elements = rows * static_cast<double>(s.seqlen) *
                          static_cast<double>(s.nheads * ((s.gated ? 3 : 2) * s.headdim + 1) +
                                              2 * s.ngroups * s.dstate);
  const double states = static_cast<double>(s.batch) * static_cast<double>(s.nheads * s.headdim) *
                        static_cast<double>(s.dstate);
  return static_cast<double>(size_of(s.dtype)) * elements + 8 * states;
}

/// The tensors of one call but for its workspace, with states that begin as zeros. Packed sequences
/// are of about equal length. Copies share the memory.
class SsdOnDevice {
 public:
  /// Seeds differ by tensor.
  SsdOnDevice(const SsdDeviceShape& shape, std::uint64_t seed)
      : s_(shape.shape),
        softplus_(shape.softplus),
        rows_(s_.packed ? 1 : s_.batch),
        x_(device_normals(s_.dtype, {rows_, s_.seqlen, s_.nheads, s_.headdim}, 8 * seed)),
        dt_(softplus_ ? device_normals(s_.dtype, {rows_, s_.seqlen, s_.nheads}, 8 * seed + 1)
                      : device_uniforms(s_.dtype, {rows_, s_.seqlen, s_.nheads},
                                        shape.remembers ? 0.001 : 0.1, shape.remembers ? 0.02 : 1.5,
                                        8 * seed + 1)),
        A_(device_uniforms(DType::f32, {s_.nheads}, -16, -1, 8 * seed + 2)),
        B_(device_normals(s_.dtype, {rows_, s_.seqlen, s_.ngroups, s_.dstate}, 8 * seed + 3)),
        C_(device_normals(s_.dtype, {rows_, s_.seqlen, s_.ngroups, s_.dstate}, 8 * seed + 4)),
        D_(device_normals(DType::f32, {s_.nheads}, 8 * seed + 5)),
        initial_states_(device_uniforms(DType::f32, {s_.batch, s_.nheads, s_.headdim, s_.dstate}, 0,
                                        0, 8 * seed)),
        y_(device_poison(s_.dtype, {rows_, s_.seqlen, s_.nheads, s_.headdim})),
        final_states_(device_poison(DType::f32, {s_.batch, s_.nheads, s_.headdim, s_.dstate})) {
    // As models begin: steps from 0.001 to 0.1.
    if (softplus_) dt_bias_ = device_uniforms(DType::f32, {s_.nheads}, -6.9, -2.3, 8 * seed + 6);
    if (s_.gated) {
      z_ = device_normals(s_.dtype, {rows_, s_.seqlen, s_.nheads, s_.headdim}, 8 * seed + 7);
    }
    if (s_.packed) {
      for (std::int64_t i = 0; i <= s_.batch; ++i) {
        offsets_.push_back(static_cast<std::int32_t>(s_.seqlen * i / s_.batch));
      }
      cu_seqlens_ = cuda::to_device(ConstTensorView::of(offsets_.data(), {s_.batch + 1}));
    }
  }

  SsdForwardArgs args() const {
    SsdForwardArgs out;
    out.x = x_.view;
    out.dt = dt_.view;
    out.A = A_.view;
    out.B = B_.view;
    out.C = C_.view;
    out.D = D_.view;
    out.z = z_.view;
    out.dt_bias = dt_bias_.view;
    out.dt_softplus = softplus_;
    out.initial_states = initial_states_.view;
    out.cu_seqlens = cu_seqlens_.view;
    out.allow_tf32 = s_.allow_tf32;
    out.y = y_.view;
    out.final_states = final_states_.view;
    return out;
  }

  /// The larger of the errors of the first and of the last sequence and head, each over two
  /// channels of all tokens: the definition takes a moment for them, however long the sequence.
  double error() const { return std::max(error_of(0, 0), error_of(s_.batch - 1, s_.nheads - 1)); }

 private:
  double error_of(std::int64_t sequence, std::int64_t head) const {
    const std::int64_t channels = std::min<std::int64_t>(2, s_.headdim);
    const std::int64_t begin = s_.packed ? offsets_[static_cast<std::size_t>(sequence)] : 0;
    const std::int64_t count =
        s_.packed ? offsets_[static_cast<std::size_t>(sequence) + 1] - begin : s_.seqlen;
    if (count == 0) return 0;
    const auto tokens = [&](const ConstTensorView& view) {
      return view[s_.packed ? 0 : sequence].narrow(0, begin, count);
    };
    // (count, 1, columns) without the middle, as float32 on the host.
    const auto rows = [&](ConstTensorView view, std::int64_t columns) {
      view.rank = 2;
      view.shape[1] = columns;
      view.strides[1] = 1;
      return host_rows(view);
    };
    const auto of_head = [&](const ConstTensorView& view) {
      return rows(tokens(view).narrow(1, head, 1).narrow(2, s_.headdim - channels, channels),
                  channels);
    };
    const std::int64_t group = head / (s_.nheads / s_.ngroups);
    const auto of_group = [&](const ConstTensorView& view) {
      return rows(tokens(view).narrow(1, group, 1), s_.dstate);
    };
    const auto value = [&](const ConstTensorView& of_heads) {
      return host_rows(of_heads.narrow(0, head, 1).unsqueeze0());
    };
    const Tensor x = of_head(x_.view);
    const Tensor y = of_head(y_.view);
    const Tensor dt = rows(tokens(dt_.view).narrow(1, head, 1), 1);
    const Tensor B = of_group(B_.view);
    const Tensor C = of_group(C_.view);
    const Tensor A = value(A_.view);
    const Tensor D = value(D_.view);
    const Tensor z = s_.gated ? of_head(z_.view) : Tensor();
    const Tensor bias = softplus_ ? value(dt_bias_.view) : Tensor();

    SsdForwardArgs part;
    part.x = x.view.reshape({1, count, 1, channels});
    part.dt = dt.view.reshape({1, count, 1});
    part.A = A.view.reshape({1});
    part.B = B.view.reshape({1, count, 1, s_.dstate});
    part.C = C.view.reshape({1, count, 1, s_.dstate});
    part.D = D.view.reshape({1});
    if (s_.gated) part.z = z.view.reshape({1, count, 1, channels});
    if (softplus_) part.dt_bias = bias.view.reshape({1});
    part.dt_softplus = softplus_;
    const std::span<const float> got = y.span<float>();
    return relative_error({got.begin(), got.end()}, ref::ssd_forward<double>(part).y);
  }

  /// The rows of a device tensor of two dimensions as float32 on the host.
  static Tensor host_rows(const ConstTensorView& rows) {
    const std::vector<float> values = read_rows(rows, 0, rows.dim(0));
    Tensor out = Tensor::empty(DType::f32, {rows.dim(0), rows.dim(1)});
    std::copy(values.begin(), values.end(), out.as<float>());
    return out;
  }

  cuda::SsdForwardShape s_;
  bool softplus_;
  std::int64_t rows_;
  Tensor x_, dt_, A_, B_, C_, D_, z_, dt_bias_, initial_states_, cu_seqlens_, y_, final_states_;
  std::vector<std::int32_t> offsets_;
};

/// Memory for a call by any of some choices.
inline Tensor ssd_workspace(std::size_t bytes) {
  return cuda::empty(DType::u8, std::vector<std::int64_t>{static_cast<std::int64_t>(bytes)});
}

inline std::span<std::byte> bytes_of(const Tensor& workspace) {
  return {static_cast<std::byte*>(workspace.view.data),
          static_cast<std::size_t>(workspace.view.size_bytes())};
}

}  // namespace adder::bench
