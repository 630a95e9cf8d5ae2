#pragma once

// One call of causal_conv1d with its data, for the tests of this folder.

#include <optional>
#include <vector>

#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/ref.h"
#include "tests/support/random.h"

namespace adder::test {

struct ConvProblem {
  std::int64_t channels = 0;
  std::int64_t width = 4;
  bool silu = true;
  std::vector<std::int32_t> cu_seqlens{};  ///< never absent here; {0, ntokens} for one sequence
  std::vector<std::int32_t> seq_idx{};     ///< empty: absent
  std::vector<float> x{}, weight{}, bias{}, conv_state{};  ///< bias empty: absent

  std::int64_t ntokens() const { return cu_seqlens.back(); }
  std::int64_t nsequences() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }

  static ConvProblem random(std::vector<std::int32_t> cu_seqlens, std::int64_t channels,
                            std::int64_t width, bool with_bias = true) {
    ConvProblem p{.channels = channels, .width = width, .cu_seqlens = std::move(cu_seqlens)};
    Random random;
    p.x = random.normals(p.ntokens() * channels, 2.0);
    p.weight = random.normals(channels * width);
    if (with_bias) p.bias = random.normals(channels);
    p.conv_state = random.normals(p.nsequences() * (width - 1) * channels, 2.0);
    return p;
  }

  /// Arguments that write to `y` and update `state`.
  CausalConv1dArgs args(TensorView y, TensorView state) const {
    CausalConv1dArgs a{.x = ConstTensorView::of(x.data(), {ntokens(), channels}),
                       .weight = ConstTensorView::of(weight.data(), {channels, width}),
                       .y = y,
                       .conv_state = state,
                       .cu_seqlens = ConstTensorView::of(cu_seqlens.data(), {nsequences() + 1}),
                       .silu = silu};
    if (!bias.empty()) a.bias = ConstTensorView::of(bias.data(), {channels});
    if (!seq_idx.empty()) a.seq_idx = ConstTensorView::of(seq_idx.data(), {ntokens()});
    return a;
  }

  /// Runs the operation: returns y and updates conv_state.
  std::vector<float> run(ThreadPool& pool) {
    std::vector<float> y(x.size());
    cpu::causal_conv1d(args(TensorView::of(y.data(), {ntokens(), channels}),
                            TensorView::of(conv_state.data(), {nsequences(), width - 1, channels})),
                       pool);
    return y;
  }

  template <typename Real>
  struct Result {
    std::vector<Real> y, conv_state;
  };

  /// The plain loops, sequence by sequence.
  template <typename Real>
  Result<Real> reference() const {
    const auto real = [](const std::vector<float>& v) {
      return std::vector<Real>(v.begin(), v.end());
    };
    const auto x_ = real(x), weight_ = real(weight), bias_ = real(bias);
    Result<Real> out{std::vector<Real>(x.size()), real(conv_state)};
    const auto row = static_cast<std::size_t>(channels);
    const std::size_t state_size = static_cast<std::size_t>(width - 1) * row;
    for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      const auto begin = static_cast<std::size_t>(cu_seqlens[s]);
      const std::size_t count = static_cast<std::size_t>(cu_seqlens[s + 1]) - begin;
      ref::causal_conv1d<Real>(std::span(x_).subspan(begin * row, count * row), weight_, bias_,
                               static_cast<std::size_t>(width), silu,
                               seq_idx.empty() ? std::span<const std::int32_t>()
                                               : std::span(seq_idx).subspan(begin, count),
                               std::span(out.conv_state).subspan(s * state_size, state_size),
                               std::span(out.y).subspan(begin * row, count * row));
    }
    return out;
  }

  /// Tokens [begin, end) alone as one sequence that starts from `state`.
  ConvProblem part(std::int64_t begin, std::int64_t end, std::vector<float> state) const {
    ConvProblem p = *this;
    p.cu_seqlens = {0, static_cast<std::int32_t>(end - begin)};
    p.x.assign(x.begin() + begin * channels, x.begin() + end * channels);
    if (!seq_idx.empty()) p.seq_idx.assign(seq_idx.begin() + begin, seq_idx.begin() + end);
    p.conv_state = std::move(state);
    return p;
  }
  /// The state of sequence s.
  std::vector<float> state_of(std::int64_t s) const {
    const std::int64_t size = (width - 1) * channels;
    return {conv_state.begin() + s * size, conv_state.begin() + (s + 1) * size};
  }
};

}  // namespace adder::test
