#include "ops/ssd_forward/test_properties.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/dispatch.h"

namespace adder::test {
namespace {

constexpr std::int64_t kQ = 32;  // the chunk_size of SsdCase

// Writes `value` to elements [begin, end) of a contiguous tensor; an infinity only where the dtype
// would have made one of a larger finite number and the value is none.
void set_elements(const Tensor& tensor, std::int64_t begin, std::int64_t end, float value) {
  constexpr float kMostF16 = 65504.0F;
  if (tensor.view.dtype == DType::f16 && std::isfinite(value)) {
    value = std::clamp(value, -kMostF16, kMostF16);
  }
  visit_float(tensor.view.dtype, [&]<typename T>(TypeTag<T>) {
    std::fill(tensor.as<T>() + begin, tensor.as<T>() + end, from_float<T>(value));
  });
}

void scale(const Tensor& tensor, float factor) {
  visit_float(tensor.view.dtype, [&]<typename T>(TypeTag<T>) {
    for (T& v : tensor.span<T>()) v = from_float<T>(to_float(v) * factor);
  });
}

}  // namespace

void chunk_size_changes_nothing(const SsdRunner& runner) {
  SsdCase c({.seqlen = 131, .nheads = 3, .headdim = 20, .dstate = 24});
  for (std::int64_t chunk_size : {1, 2, 7, 16, 31, 63, 64, 65, 100, 256, 100000}) {
    SCOPED_TRACE(chunk_size);
    c.args.chunk_size = chunk_size;
    runner.expect_right(c);
  }
}

void states_add_up_over_many_chunks(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    for (std::int64_t seqlen : {2 * kQ + 1, 3 * kQ, 7 * kQ + 9}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " seqlen " << seqlen);
      // Slow decay, so that the first chunk still matters in the last.
      SsdCase c({.seqlen = seqlen, .nheads = 3, .dtype = dtype});
      scale(c.A, 0.01F);
      runner.expect_right(c);
    }
  }
}

// A float32 prefix sum over a chunk of 64 reaches -128 here; differences of neighbors would keep 17
// bits of it.
void prefix_sums_cost_no_accuracy(const SsdRunner& runner) {
  SsdCase c({.seqlen = 256, .nheads = 2, .headdim = 32, .dstate = 32});
  c.args.chunk_size = 64;
  c.args.dt_softplus = false;
  c.args.dt_bias = {};
  c.args.D = {};
  Random random(7);
  for (float& v : c.dt.span<float>()) v = static_cast<float>(random.uniform(0.5, 1.5));
  set_elements(c.A, 0, 2, -2);
  runner.expect_right(c);
}

void any_split_resumes_from_the_state(const SsdRunner& runner) {
  constexpr std::int64_t kSeqlen = 2 * kQ + 3;
  for (DType dtype : runner.dtypes) {
    const SsdCase whole(
        {.seqlen = kSeqlen, .nheads = 2, .headdim = 12, .dstate = 8, .dtype = dtype});
    for (std::int64_t n = 0; n <= kSeqlen; ++n) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " split at " << n);
      SsdCase first = whole;
      first.narrow(0, n);
      const SsdOutput head = runner.run(first);
      SsdCase second = whole;
      second.narrow(n, kSeqlen - n);
      second.args.initial_states = ConstTensorView::of(head.final_states.data(), {1, 2, 12, 8});
      SsdOutput tail = runner.run(second);
      tail.y.insert(tail.y.begin(), head.y.begin(), head.y.end());
      runner.judge(whole, tail);
    }
  }
}

void later_tokens_never_change_earlier_outputs(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    for (float garbage : runner.garbage) {
      const SsdShape shape{.seqlen = 2 * kQ + 3, .nheads = 2, .dtype = dtype};
      const SsdCase whole(shape);
      const auto before = runner.run(whole).y;
      for (std::int64_t t :
           {std::int64_t{1}, std::int64_t{5}, kQ - 1, kQ, kQ + 8, 2 * kQ - 1, 2 * kQ, 2 * kQ + 2}) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " token " << t << " " << garbage);
        SsdCase changed(shape);
        for (const Tensor* tensor : {&changed.x, &changed.z, &changed.B, &changed.C, &changed.dt}) {
          set_elements(*tensor, t * tensor->view.stride(1), tensor->view.numel(), garbage);
        }
        const auto size = static_cast<std::size_t>(t * 2 * 16);
        const auto after = runner.run(changed).y;
        EXPECT_TRUE(same_bits(std::span(after).first(size), std::span(before).first(size)));
        // Nor does their absence.
        SsdCase shorter = whole;
        shorter.narrow(0, t);
        EXPECT_TRUE(same_bits(runner.run(shorter).y, std::span(before).first(size)));
      }
    }
  }
}

void zero_time_step_keeps_the_state(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    SsdCase c({.batch = 2, .seqlen = 2 * kQ + 3, .dtype = dtype});
    c.args.dt_softplus = false;
    c.args.dt_bias = {};
    set_elements(c.dt, 0, c.dt.view.numel(), 0);
    EXPECT_TRUE(same_bits(runner.run(c).final_states, c.initial_states.span<float>()))
        << name_of(dtype);
  }
}

void is_linear_in_x(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    if (dtype == DType::f16) continue;  // small results have fewer digits there
    SsdCase c({.seqlen = kQ + 7, .dtype = dtype});
    c.args.initial_states = {};
    const auto once = runner.run(c);
    scale(c.x, 4);
    auto four = runner.run(c);
    for (float& v : four.y) v /= 4;
    for (float& v : four.final_states) v /= 4;
    EXPECT_TRUE(same_bits(four.y, once.y)) << name_of(dtype);
    EXPECT_TRUE(same_bits(four.final_states, once.final_states)) << name_of(dtype);
  }
}

void groups_equal_repeated_B_and_C(const SsdRunner& runner) {
  constexpr std::int64_t kSeqlen = kQ + 7;
  for (DType dtype : runner.dtypes) {
    SsdCase c({.seqlen = kSeqlen, .nheads = 6, .ngroups = 2, .dstate = 24, .dtype = dtype});
    const auto grouped = runner.run(c);
    const auto repeat = [&](const Tensor& groups) {
      Tensor heads = Tensor::empty(dtype, {1, kSeqlen, 6, 24});
      const std::size_t row_bytes = 24 * size_of(dtype);
      for (std::int64_t t = 0; t < kSeqlen; ++t) {
        for (std::int64_t h = 0; h < 6; ++h) {
          std::memcpy(heads.view.narrow(1, t, 1).narrow(2, h, 1).data,
                      groups.view.narrow(1, t, 1).narrow(2, h / 3, 1).data, row_bytes);
        }
      }
      return heads;
    };
    const Tensor B = repeat(c.B);
    const Tensor C = repeat(c.C);
    c.args.B = B.view;
    c.args.C = C.view;
    const auto repeated = runner.run(c);
    EXPECT_TRUE(same_bits(repeated.y, grouped.y)) << name_of(dtype);
    EXPECT_TRUE(same_bits(repeated.final_states, grouped.final_states)) << name_of(dtype);
  }
}

void a_row_equals_the_row_alone(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    const SsdCase all({.batch = 3, .seqlen = 70, .nheads = 2, .dtype = dtype});
    const auto together = runner.run(all);
    for (std::int64_t b = 0; b < 3; ++b) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " row " << b);
      SsdCase row = all;
      row.shape.batch = 1;
      for (ConstTensorView* view : {&row.args.x, &row.args.dt, &row.args.B, &row.args.C,
                                    &row.args.z, &row.args.initial_states}) {
        *view = view->narrow(0, b, 1);
      }
      const auto alone = runner.run(row);
      const auto part = [&](const std::vector<float>& values, std::size_t size) {
        return std::span(values).subspan(static_cast<std::size_t>(b) * size, size);
      };
      EXPECT_TRUE(same_bits(alone.y, part(together.y, alone.y.size())));
      EXPECT_TRUE(
          same_bits(alone.final_states, part(together.final_states, alone.final_states.size())));
    }
  }
}

void extreme_decays_stay_finite(const SsdRunner& runner) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (float raw : {-100.0F, 1.0F, 100.0F}) {
      for (float decay : {-1e-6F, -1.0F, -100.0F}) {  // dt · A down to -1e4
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " dt " << raw << " A " << decay);
        SsdCase c({.seqlen = kQ + 9, .nheads = 1, .dtype = dtype});
        set_elements(c.dt, 0, c.dt.view.numel(), raw);
        set_elements(c.A, 0, 1, decay);
        c.args.dt_bias = {};
        const auto got = runner.run(c);
        for (float v : got.y) ASSERT_TRUE(std::isfinite(v));
        for (float v : got.final_states) ASSERT_TRUE(std::isfinite(v));
        runner.judge(c, got);
      }
    }
  }
}

void mixed_extreme_steps_keep_their_order(const SsdRunner& runner) {
  // Steps that forget everything between steps that forget nothing.
  for (DType dtype : runner.dtypes) {
    SsdCase c({.seqlen = 2 * kQ, .nheads = 1, .dtype = dtype});
    c.args.dt_softplus = false;
    c.args.dt_bias = {};
    for (std::int64_t t = 0; t < 2 * kQ; ++t) c.dt.as<float>()[t] = t % 5 == 0 ? 1e4F : 1e-3F;
    set_elements(c.A, 0, 1, -1);
    runner.expect_right(c);
  }
}

void all_equal_inputs_stay_finite(const SsdRunner& runner) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    SsdCase c({.seqlen = 2 * kQ + 3, .dtype = dtype});
    for (const Tensor* tensor : {&c.x, &c.z, &c.B, &c.C, &c.dt}) {
      set_elements(*tensor, 0, tensor->view.numel(), 1);
    }
    runner.expect_right(c);
  }
}

void takes_every_option(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    for (int options = 0; options < 64; ++options) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " options " << options);
      SsdCase c(
          {.seqlen = 45, .nheads = 3, .headdim = 10, .ngroups = 3, .dstate = 12, .dtype = dtype});
      if ((options & 1) != 0) c.args.D = (options & 2) != 0 ? c.dt_bias.view : ConstTensorView();
      if ((options & 4) != 0) c.args.z = {};
      if ((options & 8) != 0) c.args.dt_bias = {};
      if ((options & 16) != 0) c.args.dt_softplus = false;
      if ((options & 32) != 0) c.args.initial_states = {};
      runner.expect_right(c);
    }
  }
}

void limits_the_time_step(const SsdRunner& runner) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, float>> limits{
      {0.0F, kInfinity}, {0.0F, 0.1F}, {0.001F, kInfinity}, {0.05F, 0.2F}, {0.1F, 0.1F}};
  for (DType dtype : runner.dtypes) {
    for (const auto& [low, high] : limits) {
      for (bool softplus : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " " << low << " to " << high << " softplus " << softplus);
        SsdCase c({.seqlen = 45, .dtype = dtype});
        c.args.dt_softplus = softplus;
        c.args.dt_min = low;
        c.args.dt_max = high;
        runner.expect_right(c);
      }
    }
  }
}

void reads_slices_of_the_convolutions_output(const SsdRunner& runner) {
  constexpr std::int64_t kHeads = 4;
  constexpr std::int64_t kInner = kHeads * 16;
  for (std::int64_t gap : {3, 16}) {  // after a row: aligned accesses cannot take the first
    const std::int64_t width = kInner + 2 * 2 * 16 + gap;
    SsdCase c({.batch = 2, .seqlen = 40, .nheads = kHeads, .ngroups = 2});
    const auto packed = runner.run(c);
    std::vector<float> rows(static_cast<std::size_t>(80 * width), std::nanf(""));
    for (std::int64_t t = 0; t < 80; ++t) {
      float* row = rows.data() + t * width;
      std::memcpy(row, c.x.as<float>() + t * kInner, kInner * sizeof(float));
      std::memcpy(row + kInner, c.B.as<float>() + t * 32, 32 * sizeof(float));
      std::memcpy(row + kInner + 32, c.C.as<float>() + t * 32, 32 * sizeof(float));
    }
    const auto whole = ConstTensorView::of(rows.data(), {2, 40, width});
    c.args.x = whole.narrow(2, 0, kInner).split_last(kHeads);
    c.args.B = whole.narrow(2, kInner, 32).split_last(2);
    c.args.C = whole.narrow(2, kInner + 32, 32).split_last(2);
    // Heads first in dt.
    std::vector<float> dt(c.dt.span<float>().size());
    for (std::int64_t t = 0; t < 80; ++t) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        dt[static_cast<std::size_t>(h * 80 + t)] = c.dt.as<float>()[t * kHeads + h];
      }
    }
    c.args.dt.data = dt.data();
    c.args.dt.strides = {40, 1, 80};
    const auto sliced = runner.run(c);
    EXPECT_TRUE(same_bits(sliced.y, packed.y)) << "gap " << gap;
    EXPECT_TRUE(same_bits(sliced.final_states, packed.final_states)) << "gap " << gap;
  }
}

void nan_shows_instead_of_being_clamped_away(const SsdRunner& runner) {
  for (DType dtype : runner.dtypes) {
    const SsdCase c({.seqlen = 10, .nheads = 2, .dtype = dtype});
    c.dt.span<float>()[8] = std::nanf("");  // token 4, head 0
    const auto got = runner.run(c);
    for (std::size_t t = 0; t < 10; ++t) {
      EXPECT_EQ(std::isnan(got.y[t * 32]), t >= 4) << name_of(dtype) << " token " << t;
      EXPECT_FALSE(std::isnan(got.y[t * 32 + 16])) << name_of(dtype) << " token " << t;
    }
  }
}

}  // namespace adder::test
