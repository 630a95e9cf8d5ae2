#pragma once

// One call of gated_rms_norm with its data, for the tests of this folder.

#include <span>
#include <vector>

#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/gated_rms_norm/ref.h"
#include "tests/support/random.h"

namespace adder::test {

struct GatedNormProblem {
  std::int64_t ntokens;
  std::int64_t d_inner;
  std::int64_t ngroups = 1;
  bool with_z = true;
  bool with_weight = true;
  bool norm_before_gate = false;
  bool norm = true;
  std::vector<float> y{}, z{}, weight{};

  void fill(Random& random) {
    y = random.normals(ntokens * d_inner, 3.0);
    z = random.normals(ntokens * d_inner);
    weight = random.normals(d_inner);
  }
  /// Arguments in host memory that write to `out`.
  GatedRmsNormArgs args(TensorView out) const {
    GatedRmsNormArgs a{.y = ConstTensorView::of(y.data(), {ntokens, d_inner}),
                       .z = {},
                       .weight = {},
                       .out = out,
                       .ngroups = ngroups,
                       .norm_before_gate = norm_before_gate,
                       .norm = norm};
    if (with_z) a.z = ConstTensorView::of(z.data(), {ntokens, d_inner});
    if (with_weight) a.weight = ConstTensorView::of(weight.data(), {d_inner});
    return a;
  }
  /// The plain loops, row by row.
  template <typename Real>
  std::vector<Real> reference() const {
    const std::vector<Real> y_(y.begin(), y.end());
    const std::vector<Real> z_(z.begin(), z.end());
    const std::vector<Real> weight_(weight.begin(), weight.end());
    std::vector<Real> out(y.size());
    const auto d = static_cast<std::size_t>(d_inner);
    for (std::size_t t = 0; t < static_cast<std::size_t>(ntokens); ++t) {
      ref::gated_rms_norm_row<Real>(
          std::span(y_).subspan(t * d, d),
          with_z ? std::span(z_).subspan(t * d, d) : std::span<const Real>(),
          with_weight ? std::span(weight_) : std::span<const Real>(),
          static_cast<std::size_t>(ngroups), Real(1e-5F), norm_before_gate, norm,
          std::span(out).subspan(t * d, d));
    }
    return out;
  }
};

}  // namespace adder::test
