#pragma once

// The meaning of ssd_forward: the recurrence, token by token, in plain loops. With Real = double
// this is the definition; with Real = float it is what rounding costs the sequential algorithm.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/half.h"
#include "ops/chunk_cumsum/ref.h"
#include "ops/ssd_forward/ssd_forward.h"
#include "ops/ssd_step/ref.h"

namespace adder::ref {

/// One element of a view of any float type.
template <typename Real>
Real element(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  std::int64_t offset = 0;
  int d = 0;
  for (std::int64_t i : index) offset += i * view.stride(d++);
  switch (view.dtype) {
    case DType::bf16:
      return static_cast<Real>(to_float(view.as<bf16>()[offset]));
    case DType::f16:
      return static_cast<Real>(to_float(view.as<f16>()[offset]));
    default:
      return static_cast<Real>(view.as<float>()[offset]);
  }
}

/// The last dimension of a view at `index`, which names the others.
template <typename Real>
std::vector<Real> row_of(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
  ConstTensorView row = view;
  for (std::int64_t i : index) row = row[i];
  std::vector<Real> out;
  for (std::int64_t i = 0; i < row.dim(0); ++i) out.push_back(element<Real>(row, {i}));
  return out;
}

template <typename Real>
struct SsdResult {
  std::vector<Real> y;             ///< (batch, seqlen, nheads, headdim)
  std::vector<Real> final_states;  ///< (nsequences, nheads, headdim, dstate)
};

/// One head over tokens [begin, end) of `row`; `state` (headdim, dstate) is updated.
template <typename Real>
void ssd_head(const SsdForwardArgs& args, std::int64_t row, std::int64_t begin, std::int64_t end,
              std::int64_t head, std::vector<Real>& state, std::vector<Real>& y) {
  const std::int64_t seqlen = args.x.dim(1);
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  const std::int64_t group = head / (nheads / args.B.dim(2));
  const DtOptions options{args.dt_softplus, args.dt_min, args.dt_max};
  std::vector<Real> D;
  if (args.D.defined()) {
    D = args.D.rank == 2 ? row_of<Real>(args.D, {head})
                         : std::vector<Real>{element<Real>(args.D, {head})};
  }
  std::int32_t current = -1;
  for (std::int64_t t = begin; t < end; ++t) {
    const auto out = std::span(y).subspan(
        static_cast<std::size_t>(((row * seqlen + t) * nheads + head) * headdim),
        static_cast<std::size_t>(headdim));
    if (args.seq_idx.defined()) {
      const std::int32_t index =
          args.seq_idx
              .as<std::int32_t>()[row * args.seq_idx.stride(0) + t * args.seq_idx.stride(1)];
      if (index < 0) {
        std::fill(out.begin(), out.end(), Real{0});
        continue;
      }
      if (current >= 0 && index != current) std::fill(state.begin(), state.end(), Real{0});
      current = index;
    }
    const Real bias = args.dt_bias.defined() ? element<Real>(args.dt_bias, {head}) : Real{0};
    const Real dt = time_step<Real>(element<Real>(args.dt, {row, t, head}) + bias, options);
    ssd_step_head<Real>(dt, element<Real>(args.A, {head}), row_of<Real>(args.x, {row, t, head}),
                        row_of<Real>(args.B, {row, t, group}),
                        row_of<Real>(args.C, {row, t, group}), D, state, out);
    if (args.z.defined()) {
      for (std::int64_t p = 0; p < headdim; ++p) {
        out[static_cast<std::size_t>(p)] *= silu(element<Real>(args.z, {row, t, head, p}));
      }
    }
  }
}

/// `args.y` and `args.final_states` are neither read nor written.
template <typename Real>
SsdResult<Real> ssd_forward(const SsdForwardArgs& args) {
  const std::int64_t nheads = args.x.dim(2);
  const std::int64_t headdim = args.x.dim(3);
  const std::int64_t dstate = args.B.dim(3);
  const bool packed = args.cu_seqlens.defined();
  const std::int64_t nsequences = packed ? args.cu_seqlens.dim(0) - 1 : args.x.dim(0);
  SsdResult<Real> result;
  result.y.resize(static_cast<std::size_t>(args.x.numel()));
  for (std::int64_t s = 0; s < nsequences; ++s) {
    const auto* offsets = packed ? args.cu_seqlens.as<std::int32_t>() + s : nullptr;
    for (std::int64_t head = 0; head < nheads; ++head) {
      std::vector<Real> state(static_cast<std::size_t>(headdim * dstate));
      for (std::int64_t i = 0; args.initial_states.defined() && i < headdim * dstate; ++i) {
        state[static_cast<std::size_t>(i)] =
            element<Real>(args.initial_states, {s, head, i / dstate, i % dstate});
      }
      ssd_head(args, packed ? 0 : s, packed ? offsets[0] : 0, packed ? offsets[1] : args.x.dim(1),
               head, state, result.y);
      result.final_states.insert(result.final_states.end(), state.begin(), state.end());
    }
  }
  return result;
}

}  // namespace adder::ref
