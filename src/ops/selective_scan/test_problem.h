#pragma once

// One call of selective_scan with its data, for the tests of this folder and of the step.

#include <string>
#include <vector>

#include "ops/selective_scan/ref.h"
#include "ops/selective_scan/selective_scan.h"
#include "tests/support/guarded.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"

namespace adder::test {

struct ScanProblem {
  std::int64_t batch = 1;
  std::int64_t seqlen = 0;
  std::int64_t d_inner = 0;
  std::int64_t dstate = 16;
  std::int64_t ngroups = 1;
  bool dt_softplus = true;
  std::vector<std::int32_t> cu_seqlens{};  ///< empty: absent
  std::vector<std::int32_t> seq_idx{};     ///< empty: absent
  std::vector<float> x{}, dt{}, A{}, B{}, C{}, states{};
  std::vector<float> D{}, z{}, dt_bias{};  ///< empty: absent

  std::int64_t nsequences() const {
    return cu_seqlens.empty() ? batch : static_cast<std::int64_t>(cu_seqlens.size()) - 1;
  }

  /// Fills every tensor; dt as Mamba has it: softplus(dt + dt_bias) from 0.001 to 0.1 and above.
  ScanProblem& fill(bool options = true) {
    Random random;
    const std::int64_t ntokens = batch * seqlen;
    x = random.normals(ntokens * d_inner);
    dt = random.normals(ntokens * d_inner, 1.5);
    A = random.uniforms(d_inner * dstate, -16, -0.5);
    B = random.normals(ntokens * ngroups * dstate);
    C = random.normals(ntokens * ngroups * dstate);
    states = random.normals(nsequences() * d_inner * dstate);
    if (!dt_softplus) {
      for (float& v : dt) v = std::abs(v) / 8;
    }
    if (options) {
      D = random.normals(d_inner);
      z = random.normals(ntokens * d_inner);
      dt_bias = random.uniforms(d_inner, dt_softplus ? -6 : 0, dt_softplus ? -2 : 0.1);
    }
    return *this;
  }

  /// Arguments that write to `y` and update `final_states`, starting from it as well.
  SelectiveScanArgs args(TensorView y, TensorView final_states) const {
    const auto sequence = [&](const std::vector<float>& v) {
      return ConstTensorView::of(v.data(), {batch, seqlen, d_inner});
    };
    const auto group = [&](const std::vector<float>& v) {
      return ConstTensorView::of(v.data(), {batch, seqlen, ngroups, dstate});
    };
    SelectiveScanArgs a{.x = sequence(x),
                        .dt = sequence(dt),
                        .A = ConstTensorView::of(A.data(), {d_inner, dstate}),
                        .B = group(B),
                        .C = group(C),
                        .initial_states = final_states,
                        .final_states = final_states,
                        .y = y,
                        .dt_softplus = dt_softplus};
    if (!D.empty()) a.D = ConstTensorView::of(D.data(), {d_inner});
    if (!z.empty()) a.z = sequence(z);
    if (!dt_bias.empty()) a.dt_bias = ConstTensorView::of(dt_bias.data(), {d_inner});
    if (!cu_seqlens.empty()) {
      a.cu_seqlens = ConstTensorView::of(cu_seqlens.data(), {nsequences() + 1});
    }
    if (!seq_idx.empty()) a.seq_idx = ConstTensorView::of(seq_idx.data(), {batch, seqlen});
    return a;
  }

  /// Runs the operation: returns y and updates `states`.
  std::vector<float> run(ThreadPool& pool) {
    std::vector<float> y(x.size());
    cpu::selective_scan(args(TensorView::of(y.data(), {batch, seqlen, d_inner}),
                             TensorView::of(states.data(), {nsequences(), d_inner, dstate})),
                        pool);
    return y;
  }

  template <typename Real>
  struct Result {
    std::vector<Real> y, states;
  };

  /// The plain recurrence, channel by channel. `decay_factor` as in ref::ScanChannel.
  template <typename Real>
  Result<Real> reference(Real decay_factor = 1) const {
    Result<Real> out{std::vector<Real>(x.size()), std::vector<Real>(states.begin(), states.end())};
    for (std::int64_t s = 0; s < nsequences(); ++s) {
      const std::int64_t row = cu_seqlens.empty() ? s * seqlen : 0;
      const auto at = static_cast<std::size_t>(s);
      const std::int64_t begin = row + (cu_seqlens.empty() ? 0 : cu_seqlens[at]);
      const std::int64_t end = row + (cu_seqlens.empty() ? seqlen : cu_seqlens[at + 1]);
      for (std::int64_t d = 0; d < d_inner; ++d) {
        reference_channel(s, begin, end, d, decay_factor, out);
      }
    }
    return out;
  }

  /// Tokens [begin, end) of batch row 0 alone, starting from `state`.
  ScanProblem part(std::int64_t begin, std::int64_t end, std::vector<float> state) const {
    ScanProblem p = *this;
    const auto cut = [&](std::vector<float>& v, std::int64_t width) {
      if (!v.empty()) {
        v = std::vector<float>(v.begin() + begin * width, v.begin() + end * width);
      }
    };
    p.batch = 1;
    p.seqlen = end - begin;
    p.cu_seqlens.clear();
    cut(p.x, d_inner);
    cut(p.dt, d_inner);
    cut(p.z, d_inner);
    cut(p.B, ngroups * dstate);
    cut(p.C, ngroups * dstate);
    if (!seq_idx.empty()) p.seq_idx.assign(seq_idx.begin() + begin, seq_idx.begin() + end);
    p.states = std::move(state);
    return p;
  }
  /// The state of sequence s.
  std::vector<float> state_of(std::int64_t s) const {
    const std::int64_t size = d_inner * dstate;
    return {states.begin() + s * size, states.begin() + (s + 1) * size};
  }

 private:
  template <typename Real>
  void reference_channel(std::int64_t s, std::int64_t begin, std::int64_t end, std::int64_t d,
                         Real decay_factor, Result<Real>& out) const {
    const std::int64_t group = d / (d_inner / ngroups);
    const auto channel_of = [&](const std::vector<float>& v) {
      std::vector<Real> column;
      for (std::int64_t t = begin; t < end && !v.empty(); ++t) {
        column.push_back(v[static_cast<std::size_t>(t * d_inner + d)]);
      }
      return column;
    };
    const auto group_of = [&](const std::vector<float>& v) {
      std::vector<Real> rows;
      for (std::int64_t t = begin; t < end; ++t) {
        const auto from = v.begin() + (t * ngroups + group) * dstate;
        rows.insert(rows.end(), from, from + dstate);
      }
      return rows;
    };
    const std::vector<Real> A_row(A.begin() + d * dstate, A.begin() + (d + 1) * dstate);
    const auto at = static_cast<std::size_t>(d);
    const ref::ScanChannel<Real> channel{.A = A_row,
                                         .D = D.empty() ? Real{0} : D[at],
                                         .dt_bias = dt_bias.empty() ? Real{0} : dt_bias[at],
                                         .dt_softplus = dt_softplus,
                                         .decay_factor = decay_factor};
    const auto size = static_cast<std::size_t>(dstate);
    const auto state =
        std::span(out.states).subspan(static_cast<std::size_t>(s * d_inner + d) * size, size);
    std::vector<Real> y(static_cast<std::size_t>(end - begin));
    const std::vector<std::int32_t> index =
        seq_idx.empty() ? std::vector<std::int32_t>()
                        : std::vector<std::int32_t>(seq_idx.begin() + begin, seq_idx.begin() + end);
    ref::selective_scan<Real>(channel, channel_of(x), channel_of(dt), group_of(B), group_of(C),
                              channel_of(z), index, state, y);
    for (std::int64_t t = begin; t < end; ++t) {
      out.y[static_cast<std::size_t>(t * d_inner + d)] = y[static_cast<std::size_t>(t - begin)];
    }
  }
};

inline void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

inline std::vector<float> zeros(std::int64_t n) {
  return std::vector<float>(static_cast<std::size_t>(n));
}

// Runs the operation between canaries and adds its results to `pooled`.
inline void compare(const ScanProblem& p, ThreadPool& pool, Pooled& pooled_y, Pooled& pooled_states,
                    const std::string& label) {
  Guarded<float> y(p.batch * p.seqlen * p.d_inner);
  Guarded<float> states(static_cast<std::int64_t>(p.states.size()));
  states.fill(p.states);
  cpu::selective_scan(p.args(y.view({p.batch, p.seqlen, p.d_inner}),
                             states.view({p.nsequences(), p.d_inner, p.dstate})),
                      pool);
  const auto truth = p.reference<double>();
  const auto plain = p.reference<float>();
  pooled_y.add(y.span(), truth.y, plain.y, label);
  pooled_states.add(states.span(), truth.states, plain.states, label);
  EXPECT_TRUE(y.intact()) << label;
  EXPECT_TRUE(states.intact()) << label;
}

}  // namespace adder::test
