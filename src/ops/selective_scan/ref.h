#pragma once

// The meaning of selective_scan, in plain loops: the recurrence of one channel of one sequence.
// With Real = double this is the definition; with Real = float it is what rounding costs an
// implementation that takes no special care.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace adder::ref {

template <typename Real>
Real softplus(Real v) {
  return v > 20 ? v : std::log1p(std::exp(v));
}

/// What is constant for a channel.
template <typename Real>
struct ScanChannel {
  std::span<const Real> A;  ///< (dstate)
  Real D = 0;
  Real dt_bias = 0;
  bool dt_softplus = true;
  Real decay_factor = 1;  ///< on exp(dt A); another than 1 shows what a rough exponential costs
};

/// One token: updates `state` (dstate) and returns y before the gate.
template <typename Real>
Real selective_scan_token(const ScanChannel<Real>& channel, Real x, Real dt_raw,
                          std::span<const Real> B, std::span<const Real> C, std::span<Real> state) {
  const Real v = dt_raw + channel.dt_bias;
  const Real dt = channel.dt_softplus ? softplus(v) : v;
  Real y = 0;
  for (std::size_t n = 0; n < state.size(); ++n) {
    const Real decay = std::exp(dt * channel.A[n]) * channel.decay_factor;
    state[n] = decay * state[n] + dt * x * B[n];
    y += C[n] * state[n];
  }
  return y + channel.D * x;
}

/// One channel of one sequence. `x`, `dt`, `y` are (seqlen), `z` too or empty, `B` and `C` (seqlen,
/// dstate), `seq_idx` (seqlen) or empty, `state` (dstate) and updated.
template <typename Real>
void selective_scan(const ScanChannel<Real>& channel, std::span<const Real> x,
                    std::span<const Real> dt, std::span<const Real> B, std::span<const Real> C,
                    std::span<const Real> z, std::span<const std::int32_t> seq_idx,
                    std::span<Real> state, std::span<Real> y) {
  const std::size_t dstate = state.size();
  std::int32_t current = -1;
  for (std::size_t t = 0; t < x.size(); ++t) {
    const std::int32_t index = seq_idx.empty() ? 0 : seq_idx[t];
    if (index < 0) {
      y[t] = 0;
      continue;
    }
    if (current >= 0 && index != current) {
      for (Real& h : state) h = 0;
    }
    current = index;
    y[t] = selective_scan_token<Real>(channel, x[t], dt[t], B.subspan(t * dstate, dstate),
                                      C.subspan(t * dstate, dstate), state);
    if (!z.empty()) y[t] *= z[t] / (1 + std::exp(-z[t]));
  }
}

}  // namespace adder::ref
