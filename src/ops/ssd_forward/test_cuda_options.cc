// Optional arguments, layouts, sequences and errors of ssd_forward on a CUDA device.

#include <gtest/gtest.h>

#include <limits>

#include "ops/ssd_forward/test_device.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using SsdForwardCuda = test::OnDevice;
using cuda::SsdForwardChoice;
using test::all_choices;
using test::by_every_choice;
using test::by_every_choice_for_sequences;
using test::described;
using test::expect_right_on_device;
using test::same_bits;
using test::SsdCase;
using test::SsdOnDevice;
using test::SsdOutput;
using test::takes;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

TEST_F(SsdForwardCuda, TakesEveryOption) { by_every_choice(test::takes_every_option); }

TEST_F(SsdForwardCuda, LimitsTheTimeStep_KnownBug2) { by_every_choice(test::limits_the_time_step); }

TEST_F(SsdForwardCuda, ReadsSlicesOfTheConvolutionsOutput) {
  by_every_choice(test::reads_slices_of_the_convolutions_output);
}

TEST_F(SsdForwardCuda, NaNShowsInsteadOfBeingClampedAway) {
  by_every_choice(test::nan_shows_instead_of_being_clamped_away);
}

TEST_F(SsdForwardCuda, PackedSequencesOfOddLengthsEqualEachAlone_KnownBug9) {
  by_every_choice_for_sequences(test::packed_sequences_equal_each_alone);
}

TEST_F(SsdForwardCuda, AnEmptySequenceEndsAsItBegan) {
  by_every_choice(test::an_empty_sequence_ends_as_it_began);
}

TEST_F(SsdForwardCuda, NoSequencesAtAll) { by_every_choice(test::no_sequences_at_all); }

TEST_F(SsdForwardCuda, TheStateRestartsWhereSeqIdxChanges_KnownBug9) {
  by_every_choice_for_sequences(test::the_state_restarts_where_seq_idx_changes);
}

TEST_F(SsdForwardCuda, ResetsInsidePackedSequences) {
  by_every_choice_for_sequences(test::resets_inside_packed_sequences);
}

TEST_F(SsdForwardCuda, PaddingLeaksNowhere_KnownBug5) {
  by_every_choice_for_sequences(test::padding_leaks_nowhere);
}

TEST_F(SsdForwardCuda, PaddingBetweenTokensIsSkipped_KnownBug5) {
  by_every_choice_for_sequences(test::padding_between_tokens_is_skipped);
}

TEST_F(SsdForwardCuda, SeqIdxMayBeStrided) {
  by_every_choice_for_sequences(test::seq_idx_may_be_strided);
}

// An index of its own for every token, long runs, and padding of every length, at random.
TEST_F(SsdForwardCuda, AnySeqIdxIsAsGoodAsPlain) {
  test::Random random(5);
  for (DType dtype : kDTypes) {
    for (std::int64_t stretch : {1, 3, 20, 100}) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " stretch " << stretch);
      SsdCase c({.batch = 2, .seqlen = 210, .nheads = 2, .dtype = dtype});
      std::vector<std::int32_t> seq_idx;
      while (seq_idx.size() < 420) {
        const auto index = static_cast<std::int32_t>(random.integer(-1, 3));
        seq_idx.insert(seq_idx.end(), static_cast<std::size_t>(random.integer(1, stretch)), index);
      }
      c.args.seq_idx = ConstTensorView::of(seq_idx.data(), {2, 210});
      for (std::int64_t window : {1, 1000}) {
        expect_right_on_device(c, SsdOnDevice(c).run(SsdForwardChoice{.window_chunks = window}));
      }
    }
  }
}

TEST_F(SsdForwardCuda, TimeStepsMayHaveTheDtypeOfX) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (const SsdForwardChoice& choice : all_choices()) {
      SsdCase c({.batch = 2, .seqlen = 90, .nheads = 4, .dtype = dtype});
      c.dt = convert(c.dt.view, dtype);
      c.args.dt = c.dt.view;
      for (std::int64_t misalignment : {0, 1}) {
        SsdOnDevice call(c, misalignment);
        if (!takes(choice, call.args)) continue;
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << described(choice));
        expect_right_on_device(c, call.run(choice));
      }
    }
  }
}

// As good as plain loops whose factors have the digits of tf32, and not as those with all of them.
TEST_F(SsdForwardCuda, Tf32WhereItIsAllowed) {
  SsdCase c({.batch = 2, .seqlen = 200, .nheads = 4, .headdim = 64, .dstate = 64});
  c.args.allow_tf32 = true;
  SsdCase coarse = c;
  coarse.x = test::tf32_of(c.x.view);
  coarse.B = test::tf32_of(c.B.view);
  coarse.C = test::tf32_of(c.C.view);
  coarse.args.x = coarse.x.view;
  coarse.args.B = coarse.B.view;
  coarse.args.C = coarse.C.view;
  const auto truth = ref::ssd_forward<double>(c.args);
  const auto allowed = test::plain_chunked(coarse.args, DType::f16);
  const auto exact = test::plain_chunked(c.args);
  for (const SsdForwardChoice& choice : all_choices()) {
    SsdOnDevice call(c);
    if (!takes(choice, call.args)) continue;
    SCOPED_TRACE(described(choice));
    const SsdOutput got = call.run(choice);
    EXPECT_TRUE(test::as_good_as_plain(got.y, truth.y, allowed.y));
    EXPECT_TRUE(test::as_good_as_plain(got.final_states, truth.final_states, allowed.final_states));
    EXPECT_FALSE(test::as_good_as_plain(got.y, truth.y, exact.y));
    EXPECT_FALSE(test::as_good_as_plain(got.final_states, truth.final_states, exact.final_states));
  }
}

TEST_F(SsdForwardCuda, AllowingTf32ChangesNothingFor16Bits) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    SsdCase c({.seqlen = 90, .headdim = 64, .dstate = 64, .dtype = dtype});
    for (const SsdForwardChoice& choice : all_choices()) {
      SsdOnDevice call(c);
      if (!takes(choice, call.args)) continue;
      const SsdOutput expected = call.run(choice);
      call.args.allow_tf32 = true;
      const SsdOutput got = call.run(choice);
      EXPECT_TRUE(same_bits(got.y, expected.y)) << name_of(dtype) << " " << described(choice);
      EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
    }
  }
}

TEST_F(SsdForwardCuda, OutputMayBeTheInputOrTheGateAndStatesMayBeUpdatedInPlace) {
  for (DType dtype : kDTypes) {
    for (const SsdForwardChoice& choice : all_choices()) {
      for (std::int64_t headdim : {19, 64}) {
        for (bool over_x : {false, true}) {
          const SsdCase c(
              {.batch = 2, .seqlen = 135, .nheads = 2, .headdim = headdim, .dtype = dtype});
          SsdOnDevice call(c);
          const ConstTensorView& over = over_x ? call.args.x : call.args.z;
          TensorView y(const_cast<void*>(over.data), dtype, over.dims(), over.device);
          const ConstTensorView& initial = call.args.initial_states;
          TensorView states(const_cast<void*>(initial.data), DType::f32, initial.dims(),
                            initial.device);
          if (!takes(choice, call.args)) continue;
          const SsdOutput apart = call.run(choice);
          call.args.y = y;
          call.args.final_states = states;
          if (!takes(choice, call.args)) continue;
          SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << described(choice));
          call.run(choice);
          EXPECT_TRUE(same_bits(test::to_floats(cuda::to_host(y).view), apart.y));
          EXPECT_TRUE(same_bits(test::to_floats(cuda::to_host(states).view), apart.final_states));
        }
      }
    }
  }
}

TEST_F(SsdForwardCuda, FinalStatesMayBeAbsentAndRowsApart) {
  for (DType dtype : kDTypes) {
    for (const SsdForwardChoice& choice : all_choices()) {
      for (std::int64_t gap : {4, 16}) {
        const SsdCase c({.batch = 2, .seqlen = 75, .nheads = 2, .dtype = dtype});
        SsdOnDevice call(c);
        if (!takes(choice, call.args)) continue;
        const SsdOutput packed = call.run(choice);
        const std::int64_t width = 16 + gap;
        const test::DeviceBuffer y(dtype,
                                   std::vector<float>(static_cast<std::size_t>(300 * width), 7));
        call.args.y = y.view({2, 75, 2, width}).narrow(3, 0, 16);
        call.args.final_states = {};
        if (!takes(choice, call.args)) continue;
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << " " << described(choice) << " gap " << gap);
        call.call(call.workspace(choice), choice, nullptr);
        const auto got = y.values();
        std::vector<float> expected(got.size(), 7.0F);
        for (std::size_t i = 0; i < packed.y.size(); ++i) {
          expected[i / 16 * static_cast<std::size_t>(width) + i % 16] = packed.y[i];
        }
        EXPECT_TRUE(same_bits(got, expected));
      }
    }
  }
}

// Whatever the offsets hold, each token belongs to at most one sequence, and the rest get zeros.
TEST_F(SsdForwardCuda, BadOffsetsStayWithinTheTensors) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  for (const std::vector<std::int32_t>& offsets :
       {std::vector<std::int32_t>{0, 1000000, -5, 3, 200},
        {-100, -50, -20, -10, -1},
        {500, 400, 300, 200, 100},
        {30, 90, 20, 170, 160},
        {kMost, kLeast, kMost, 0, kMost}}) {
    for (DType dtype : kDTypes) {
      for (std::int64_t window : {1, 1000}) {
        SsdCase c({.seqlen = 200, .dtype = dtype, .nsequences = 4});
        c.args.cu_seqlens = ConstTensorView::of(offsets.data(), {5});
        const SsdOutput got = SsdOnDevice(c).run(SsdForwardChoice{.window_chunks = window});
        for (float v : got.y) ASSERT_TRUE(std::isfinite(v));
        for (float v : got.final_states) ASSERT_TRUE(std::isfinite(v));
      }
    }
  }
  // As the sequences [30, 90), none, [90, 170) and none, in 200 tokens.
  const std::vector<std::int32_t> bad{30, 90, 20, 170, 160};
  const std::vector<std::int32_t> good{0, 60, 60, 140, 140};
  SsdCase c({.seqlen = 200, .nsequences = 4});
  c.args.cu_seqlens = ConstTensorView::of(bad.data(), {5});
  const SsdOutput got = SsdOnDevice(c).run();
  SsdCase inner = c;
  inner.narrow(30, 140);
  inner.args.cu_seqlens = ConstTensorView::of(good.data(), {5});
  const SsdOutput expected = SsdOnDevice(inner).run();
  const std::size_t token = 32;
  EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
  EXPECT_TRUE(same_bits(std::span(got.y).subspan(30 * token, 140 * token), expected.y));
  EXPECT_TRUE(same_bits(std::span(got.y).first(30 * token), std::vector<float>(30 * token)));
  EXPECT_TRUE(same_bits(std::span(got.y).last(30 * token), std::vector<float>(30 * token)));
}

TEST_F(SsdForwardCuda, TheChoiceSaysWhatWillRun) {
  const SsdCase c({.batch = 2, .seqlen = 300, .nheads = 4, .headdim = 20, .dstate = 24});
  SsdOnDevice call(c);
  const auto [choice, tuned] = cuda::choose_ssd_forward(call.args);
  EXPECT_FALSE(tuned);
  EXPECT_EQ(choice, cuda::built_in_ssd_forward_choice(call.args));
  EXPECT_EQ(name_of(choice.variant), "general");  // float32
  EXPECT_EQ(choice.window_chunks, 10);
  EXPECT_EQ(cuda::ssd_forward_workspace_bytes(call.args),
            cuda::ssd_forward_workspace_bytes(call.args, choice));
  const auto error_of = [&](const SsdForwardChoice& bad) {
    return test::error_of([&] { cuda::ssd_forward_workspace_bytes(call.args, bad); });
  };
  EXPECT_EQ(error_of({.window_chunks = 0}),
            "ssd_forward: the variant general does not take this: window_chunks is 0, expected at "
            "least 1");
  EXPECT_NE(error_of({.variant = static_cast<cuda::SsdForwardVariant>(99)}), "no error");
  std::vector<std::byte> none;
  EXPECT_THROW(cuda::ssd_forward(call.args, none, nullptr), Error);
}

// The workspace of a million tokens of a large model is that of one window.
TEST_F(SsdForwardCuda, WorkspaceStaysSmallForLongSequences) {
  static std::byte memory[64];
  const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory, dtype, dims, {DeviceType::cuda, cuda::current_device()});
  };
  constexpr std::int64_t kTokens = std::int64_t{1} << 20;
  SsdForwardArgs args;
  args.x = view(DType::f32, {1, kTokens, 80, 64});
  args.dt = view(DType::f32, {1, kTokens, 80});
  args.A = view(DType::f32, {80});
  args.B = view(DType::f32, {1, kTokens, 1, 128});
  args.C = args.B;
  args.y = view(DType::f32, {1, kTokens, 80, 64});
  EXPECT_LT(cuda::ssd_forward_workspace_bytes(args), std::size_t{100} << 20);
  args.seq_idx = view(DType::i32, {1, kTokens});
  EXPECT_LT(cuda::ssd_forward_workspace_bytes(args), std::size_t{100} << 20);
  args.cu_seqlens = view(DType::i32, {100001});
  EXPECT_LT(cuda::ssd_forward_workspace_bytes(args), std::size_t{140} << 20);
}

// ---- what needs no device -----------------------------------------------------------------------

class SsdForwardCudaErrors : public ::testing::Test {
 protected:
  SsdForwardCudaErrors() {
    const auto view = [](DType dtype, std::initializer_list<std::int64_t> dims) {
      static std::byte memory[64];
      return TensorView(memory, dtype, dims, {DeviceType::cuda, 0});
    };
    good_.x = view(DType::bf16, {1, 45, 4, 16});
    good_.dt = view(DType::bf16, {1, 45, 4});
    good_.A = view(DType::f32, {4});
    good_.B = view(DType::bf16, {1, 45, 2, 16});
    good_.C = view(DType::bf16, {1, 45, 2, 16});
    good_.D = view(DType::f32, {4, 16});
    good_.z = good_.x;
    good_.dt_bias = view(DType::f32, {4});
    good_.initial_states = view(DType::f32, {3, 4, 16, 16});
    good_.seq_idx = view(DType::i32, {1, 45});
    good_.cu_seqlens = view(DType::i32, {4});
    good_.y = view(DType::bf16, {1, 45, 4, 16});
    good_.final_states = view(DType::f32, {3, 4, 16, 16});
  }

  template <typename Change>
  std::string error_of(Change&& change) {
    SsdForwardArgs args = good_;
    change(args);
    return test::error_of([&] { validate(args); });
  }

  SsdForwardArgs good_;
};

TEST_F(SsdForwardCudaErrors, NameTheArgument) {
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.dt.dtype = DType::f32; }), "no error");
  EXPECT_EQ(error_of([](auto& a) { a.dt.dtype = DType::f16; }),
            "ssd_forward: dt has dtype f16, expected f32 or bf16");
  EXPECT_EQ(error_of([](auto& a) { a.cu_seqlens.device = {}; }),
            "ssd_forward: cu_seqlens is in host memory, expected it in memory of CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.final_states.device.index = 1; }),
            "ssd_forward: final_states is in memory of CUDA device 1, expected it in memory of "
            "CUDA device 0");
  EXPECT_EQ(error_of([](auto& a) { a.x.device = {}; }),
            "ssd_forward: dt is in memory of CUDA device 0, expected it in host memory");
}

TEST_F(SsdForwardCudaErrors, EveryTensorMustBeOnTheDevice) {
  const auto rejects = [&](auto&& change) { return error_of(change) != "no error"; };
  EXPECT_TRUE(rejects([](auto& a) { a.dt.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.A.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.B.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.C.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.D.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.z.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.dt_bias.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.initial_states.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.seq_idx.device = {}; }));
  EXPECT_TRUE(rejects([](auto& a) { a.y.device = {}; }));
}

TEST_F(SsdForwardCudaErrors, EachDeviceHasItsEntry) {
  try {
    cpu::ssd_forward_workspace_bytes(good_, 1);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "ssd_forward: x is in memory of CUDA device 0, expected it in host memory");
  }
  SsdCase host({.seqlen = 5});
  try {
    cuda::choose_ssd_forward(host.args);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "ssd_forward: y is missing, expected a tensor of shape (1, 5, 2, 16)");
  }
  std::vector<float> y(5 * 32);
  host.args.y = TensorView::of(y.data(), {1, 5, 2, 16});
  try {
    cuda::choose_ssd_forward(host.args);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "ssd_forward: x is in host memory, expected it in memory of a CUDA device");
  }
}

}  // namespace
}  // namespace adder
