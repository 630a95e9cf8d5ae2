#pragma once

// Inputs for the benchmarks of the state-space dual: shapes of published models, random contents.

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ops/ssd_forward/ssd_forward.h"

namespace adder::bench {

struct SsdShape {
  const char* model;
  std::int64_t nheads;
  std::int64_t headdim;
  std::int64_t dstate;
};

inline constexpr SsdShape kSsdShapes[] = {
    {"books-11m", 12, 64, 64}, {"mamba2-130m", 24, 64, 128}, {"mamba2-2.7b", 80, 64, 128}};

/// One sequence of float32 inputs with one group, D, and softplus with a bias; no gate.
class SsdInputs {
 public:
  SsdInputs(const SsdShape& shape, std::int64_t seqlen)
      : x_(normals(seqlen * shape.nheads * shape.headdim)),
        dt_(normals(seqlen * shape.nheads)),
        A_(static_cast<std::size_t>(shape.nheads), -0.5F),
        B_(normals(seqlen * shape.dstate)),
        C_(normals(seqlen * shape.dstate)),
        D_(normals(shape.nheads)),
        dt_bias_(static_cast<std::size_t>(shape.nheads), -2.0F),
        y_(x_.size()),
        states_(static_cast<std::size_t>(shape.nheads * shape.headdim * shape.dstate)) {
    args.x = ConstTensorView::of(x_.data(), {1, seqlen, shape.nheads, shape.headdim});
    args.dt = ConstTensorView::of(dt_.data(), {1, seqlen, shape.nheads});
    args.A = ConstTensorView::of(A_.data(), {shape.nheads});
    args.B = ConstTensorView::of(B_.data(), {1, seqlen, 1, shape.dstate});
    args.C = ConstTensorView::of(C_.data(), {1, seqlen, 1, shape.dstate});
    args.D = ConstTensorView::of(D_.data(), {shape.nheads});
    args.dt_bias = ConstTensorView::of(dt_bias_.data(), {shape.nheads});
    args.dt_softplus = true;
    args.y = TensorView::of(y_.data(), {1, seqlen, shape.nheads, shape.headdim});
    args.final_states =
        TensorView::of(states_.data(), {1, shape.nheads, shape.headdim, shape.dstate});
  }
  SsdInputs(const SsdInputs&) = delete;
  SsdInputs& operator=(const SsdInputs&) = delete;

  SsdForwardArgs args;

 private:
  std::vector<float> normals(std::int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& v : out) v = normal(engine_);
    return out;
  }

  std::mt19937 engine_{1};
  std::vector<float> x_, dt_, A_, B_, C_, D_, dt_bias_, y_, states_;
};

inline std::string describe(const SsdShape& shape, const char* tokens_name, std::int64_t tokens) {
  return fmt::format("{}: {} {}, {} heads of {}, dstate {}", shape.model, tokens_name, tokens,
                     shape.nheads, shape.headdim, shape.dstate);
}

}  // namespace adder::bench
