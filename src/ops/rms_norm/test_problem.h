#pragma once

// One call of rms_norm with its data, for the tests of this folder.

#include <span>
#include <vector>

#include "ops/rms_norm/ref.h"
#include "ops/rms_norm/rms_norm.h"
#include "tests/support/random.h"

namespace adder::test {

struct RmsNormProblem {
  std::int64_t ntokens;
  std::int64_t d_model;
  bool with_x = true;
  bool with_weight = true;
  std::vector<float> residual{}, x{}, weight{};

  void fill() {
    Random random;
    residual = random.normals(ntokens * d_model, 3.0);
    x = random.normals(ntokens * d_model);
    weight = random.normals(d_model);
  }
  /// Arguments in host memory.
  RmsNormArgs args(TensorView residual_view, TensorView y) const {
    RmsNormArgs a{.residual = residual_view, .x = {}, .weight = {}, .y = y};
    if (with_x) a.x = ConstTensorView::of(x.data(), {ntokens, d_model});
    if (with_weight) a.weight = ConstTensorView::of(weight.data(), {d_model});
    return a;
  }

  template <typename Real>
  struct Result {
    std::vector<Real> residual, y;
  };

  /// The plain loops, row by row.
  template <typename Real>
  Result<Real> reference() const {
    std::vector<Real> x_(x.begin(), x.end());
    std::vector<Real> weight_(weight.begin(), weight.end());
    Result<Real> out{{residual.begin(), residual.end()}, std::vector<Real>(residual.size())};
    const auto d = static_cast<std::size_t>(d_model);
    for (std::size_t t = 0; t < static_cast<std::size_t>(ntokens); ++t) {
      const auto row = [&](std::vector<Real>& v) { return std::span(v).subspan(t * d, d); };
      ref::rms_norm_row<Real>(row(out.residual), with_x ? row(x_) : std::span<Real>(),
                              with_weight ? std::span(weight_) : std::span<Real>(), Real(1e-5F),
                              row(out.y));
    }
    return out;
  }
};

}  // namespace adder::test
