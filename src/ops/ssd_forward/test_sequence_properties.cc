// Packed sequences, resets and padding: a sequence equals the sequence alone.

#include <cstring>

#include "core/dispatch.h"
#include "ops/ssd_forward/test_properties.h"

namespace adder::test {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kToken = kHeads * 16;       // values of one token
constexpr std::int64_t kState = kHeads * 16 * 16;  // values of one sequence's states

std::span<const float> part(const std::vector<float>& values, std::int64_t begin,
                            std::int64_t count) {
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

// Tokens [begin, end) of row `row`, alone, from the initial state of `sequence`; or from zeros if
// that is negative.
SsdOutput alone(const SsdRunner& runner, const SsdCase& whole, std::int64_t row, std::int64_t begin,
                std::int64_t end, std::int64_t sequence) {
  SsdCase one = whole;
  one.shape.batch = 1;
  one.args.cu_seqlens = {};
  one.args.seq_idx = {};
  for (ConstTensorView* view : {&one.args.x, &one.args.dt, &one.args.B, &one.args.C, &one.args.z}) {
    *view = view->narrow(0, row, 1);
  }
  one.narrow(begin, end - begin);
  one.args.initial_states =
      sequence < 0 ? ConstTensorView() : whole.args.initial_states.narrow(0, sequence, 1);
  return runner.run(one);
}

}  // namespace

void packed_sequences_equal_each_alone(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    const std::vector<std::int32_t> offsets{0, 0, 1, 8, 8, 41, 73, 74, 137, 137, 268};
    constexpr std::int64_t kSequences = 10;
    SsdCase c({.seqlen = 268, .nheads = kHeads, .dtype = dtype, .nsequences = kSequences});
    c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {kSequences + 1});
    const auto packed = runner.run(c);
    runner.judge(c, packed);
    for (std::int64_t s = 0; s < kSequences; ++s) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " sequence " << s);
      const std::int64_t begin = offsets[static_cast<std::size_t>(s)];
      const std::int64_t end = offsets[static_cast<std::size_t>(s) + 1];
      const auto single = alone(runner, c, 0, begin, end, s);
      EXPECT_TRUE(same_bits(part(packed.y, begin * kToken, (end - begin) * kToken), single.y));
      EXPECT_TRUE(same_bits(part(packed.final_states, s * kState, kState), single.final_states));
    }
  }
}

void an_empty_sequence_ends_as_it_began(const SsdRunner& runner) {
  const std::vector<std::int32_t> offsets{0, 0};
  SsdCase c({.seqlen = 0, .nheads = kHeads, .nsequences = 1});
  c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {2});
  EXPECT_TRUE(same_bits(runner.run(c).final_states, c.initial_states.span<float>()));
  c.args.initial_states = {};
  EXPECT_TRUE(same_bits(runner.run(c).final_states, std::vector<float>(kState, 0.0F)));
}

void no_sequences_at_all(const SsdRunner& runner) {
  const std::vector<std::int32_t> offsets{0};
  SsdCase c({.seqlen = 0, .nheads = kHeads});
  c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {1});
  c.args.initial_states = {};
  const auto out = runner.run(c);
  EXPECT_TRUE(out.y.empty());
  EXPECT_TRUE(out.final_states.empty());
}

void the_state_restarts_where_seq_idx_changes(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    SCOPED_TRACE(name_of(dtype));
    // An index that comes back is another sequence.
    const std::vector<std::int64_t> bounds{0, 5, 6, 40, 90, 100};
    const std::vector<std::int32_t> indices{0, 1, 0, 7, 3};
    SsdCase c({.seqlen = 100, .nheads = kHeads, .dtype = dtype});
    std::vector<std::int32_t> seq_idx;
    for (std::size_t s = 0; s < indices.size(); ++s) {
      seq_idx.resize(static_cast<std::size_t>(bounds[s + 1]), indices[s]);
    }
    c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {1, 100});
    const auto got = runner.run(c);
    runner.judge(c, got);
    for (std::size_t s = 0; s < indices.size() && runner.cuts_at_runs; ++s) {
      const auto single = alone(runner, c, 0, bounds[s], bounds[s + 1], s == 0 ? 0 : -1);
      EXPECT_TRUE(same_bits(part(got.y, bounds[s] * kToken, (bounds[s + 1] - bounds[s]) * kToken),
                            single.y));
      if (s + 1 == indices.size()) {
        EXPECT_TRUE(same_bits(got.final_states, single.final_states));
      }
    }
  }
}

void resets_inside_packed_sequences(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    SCOPED_TRACE(name_of(dtype));
    const std::vector<std::int32_t> offsets{0, 50, 250};
    SsdCase c({.seqlen = 250, .nheads = kHeads, .dtype = dtype, .nsequences = 2});
    std::vector<std::int32_t> seq_idx(250, 4);  // the same on both sides of the boundary
    std::fill_n(seq_idx.begin() + 20, 10, 5);
    std::fill_n(seq_idx.begin() + 80, 5, -1);
    std::fill_n(seq_idx.begin() + 114, 64, 6);  // restarts where chunks of 64 do, and changes back
    c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {3});
    c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {1, 250});
    runner.expect_right(c);
  }
}

// Padding holds garbage: nothing of it may reach the state or the output.
void padding_leaks_nowhere(const SsdRunner& runner) {
  constexpr std::int64_t kSeqlen = 200;
  struct Row {
    std::int64_t begin, end;  // tokens that are not padding
  };
  const std::vector<Row> rows{{0, kSeqlen}, {13, kSeqlen}, {0, 41}, {133, 134}, {kSeqlen, kSeqlen}};
  for (DType dtype : runner.dtypes) {
    for (std::size_t batch : {rows.size(), std::size_t{2}}) {
      SsdCase c({.batch = static_cast<std::int64_t>(batch),
                 .seqlen = kSeqlen,
                 .nheads = kHeads,
                 .dtype = dtype});
      std::vector<std::int32_t> seq_idx(batch * kSeqlen, 0);
      for (std::size_t b = 0; b < batch; ++b) {
        for (std::int64_t t = 0; t < kSeqlen; ++t) {
          if (t >= rows[b].begin && t < rows[b].end) continue;
          const std::int64_t token = static_cast<std::int64_t>(b) * kSeqlen + t;
          seq_idx[static_cast<std::size_t>(token)] = -1 - static_cast<std::int32_t>(t % 3);
          for (const Tensor* tensor : {&c.x, &c.z, &c.B, &c.C, &c.dt}) {
            const std::size_t bytes =
                static_cast<std::size_t>(tensor->view.stride(1)) * size_of(tensor->view.dtype);
            std::memset(static_cast<std::byte*>(tensor->view.data) +
                            static_cast<std::size_t>(token) * bytes,
                        0xff, bytes);  // NaN in every dtype
          }
        }
      }
      c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {c.shape.batch, kSeqlen});
      const auto got = runner.run(c);
      runner.judge(c, got);
      for (std::size_t row = 0; row < batch; ++row) {
        const auto b = static_cast<std::int64_t>(row);
        const auto [begin, end] = rows[row];
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " row " << b << " of " << batch);
        const std::int64_t first = b * kSeqlen * kToken;
        const std::vector<float> zeros(static_cast<std::size_t>(kSeqlen * kToken), 0.0F);
        EXPECT_TRUE(same_bits(part(got.y, first, begin * kToken), part(zeros, 0, begin * kToken)));
        EXPECT_TRUE(same_bits(part(got.y, first + end * kToken, (kSeqlen - end) * kToken),
                              part(zeros, 0, (kSeqlen - end) * kToken)));
        // Behind padding, chunks may begin at other tokens than they do without it.
        if (begin > 0 && begin < kSeqlen && !runner.cuts_at_runs) continue;
        const auto single = alone(runner, c, b, begin, end, b);
        EXPECT_TRUE(
            same_bits(part(got.y, first + begin * kToken, (end - begin) * kToken), single.y));
        EXPECT_TRUE(same_bits(part(got.final_states, b * kState, kState), single.final_states));
      }
    }
  }
}

void padding_between_tokens_is_skipped(const SsdRunner& runner) {
  // Three sequences worth of tokens with holes; without the holes the result is the same.
  for (DType dtype : runner.dtypes) {
    SCOPED_TRACE(name_of(dtype));
    SsdCase c({.seqlen = 90, .nheads = kHeads, .dtype = dtype});
    std::vector<std::int32_t> seq_idx(90);
    for (std::size_t t = 0; t < 90; ++t) seq_idx[t] = t % 7 == 3 || t < 2 ? -1 : t < 50 ? 0 : 1;
    c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {1, 90});
    runner.expect_right(c);
  }
}

void seq_idx_may_be_strided(const SsdRunner& runner) {
  SsdCase c({.batch = 2, .seqlen = 40, .nheads = kHeads});
  std::vector<std::int32_t> tokens_first(80);
  for (std::size_t i = 0; i < 80; ++i) {
    tokens_first[i] = static_cast<std::int32_t>(i % 2 == 0 ? i / 30 : i / 50);
  }
  c.args.seq_idx = ConstTensorView::of(tokens_first.data(), {2, 40});
  c.args.seq_idx.strides = {1, 2};
  runner.expect_right(c);
}

}  // namespace adder::test
