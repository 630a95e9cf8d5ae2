// ssd_forward on a CUDA device, where kernels make use of what heads forget: how long a head
// remembers decides which tokens a segment's state is found from, and by which kernel.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "ops/ssd_forward/test_device.h"

namespace adder {
namespace {

using SsdForwardCuda = test::OnDevice;
using cuda::SsdForwardChoice;
using cuda::SsdForwardVariant;
using test::SsdCase;
using test::SsdOnDevice;

// 26 chunks, the last of one token: segments of 26, 9, 6 and 2 chunks.
constexpr std::int64_t kSeqlen = 25 * 64 + 1;

std::vector<SsdForwardChoice> choices() {
  std::vector<SsdForwardChoice> out{{.variant = SsdForwardVariant::general, .window_chunks = 100}};
  for (std::int64_t segments : {1, 3, 5, 13}) {
    for (bool warm_up : {false, true}) {
      out.push_back(
          {.variant = SsdForwardVariant::hopper, .segments = segments, .warm_up = warm_up});
    }
  }
  return out;
}

// dt of each head and token; A is -1, so that a token's decay is 2^(-1.44 dt).
using TimeStep = std::function<float(std::int64_t head, std::int64_t token)>;

void expect_right_by_every_choice(const char* label, const TimeStep& dt) {
  // Heads of several blocks, one of them not full; states of one to four slices, and of two passes.
  for (const auto& [nheads, headdim, dstate, dtype] :
       {std::tuple{5, 32, 64, DType::bf16}, std::tuple{4, 16, 128, DType::f16},
        std::tuple{2, 8, 192, DType::bf16}, std::tuple{3, 8, 256, DType::bf16},
        std::tuple{2, 8, 512, DType::f16}}) {
    SsdCase c({.seqlen = kSeqlen,
               .nheads = nheads,
               .headdim = headdim,
               .dstate = dstate,
               .dtype = dtype});
    c.args.dt_softplus = false;
    c.args.dt_bias = {};
    for (std::int64_t h = 0; h < nheads; ++h) {
      c.A.as<float>()[h] = -1;
      for (std::int64_t t = 0; t < kSeqlen; ++t) c.dt.as<float>()[t * nheads + h] = dt(h, t);
    }
    const test::SsdJudge judge(c);
    test::Pooled y, final_states;
    for (const SsdForwardChoice& choice : choices()) {
      SsdOnDevice call(c);
      if (!test::takes(choice, call.args)) continue;
      judge.add(call.run(choice),
                fmt::format("{}: {} heads, dstate {}, {}, {}", label, nheads, dstate,
                            name_of(dtype), test::described(choice)),
                y, final_states);
    }
    EXPECT_TRUE(y.as_good_as_plain());
    EXPECT_TRUE(final_states.as_good_as_plain());
  }
}

TEST_F(SsdForwardCuda, MemoriesOfEveryLength) {
  // Chunks that 2^-160 takes at these steps: more than there are, 9, 4, 1 and a part of one.
  for (float dt : {0.01F, 0.2F, 0.5F, 2.0F, 60.0F}) {
    expect_right_by_every_choice(fmt::format("dt {}", dt).c_str(),
                                 [&](std::int64_t, std::int64_t) { return dt; });
  }
}

TEST_F(SsdForwardCuda, HeadsThatForgetBesideHeadsThatDoNot) {
  expect_right_by_every_choice(
      "by head", [](std::int64_t head, std::int64_t) { return head % 2 == 0 ? 3.0F : 0.01F; });
}

// What one segment forgets the next may need: states are handed over, found anew and left out side
// by side.
TEST_F(SsdForwardCuda, HeadsThatForgetNowAndThen) {
  expect_right_by_every_choice("in turns", [](std::int64_t head, std::int64_t token) {
    return (token / 320 + head / 2) % 2 == 0 ? 2.0F : 0.02F;
  });
  expect_right_by_every_choice("at single tokens", [](std::int64_t, std::int64_t token) {
    return token % 300 == 200 ? 120.0F : 0.02F;
  });
  expect_right_by_every_choice(
      "early", [](std::int64_t, std::int64_t token) { return token < 500 ? 4.0F : 0.002F; });
}

// Heads of a block walk together, as far back as the one that remembers longest. The others find
// nothing there.
TEST_F(SsdForwardCuda, AHeadsNeighboursChangeNothingBitForBit) {
  for (std::int64_t dstate : {64, 128, 256}) {
    for (const SsdForwardChoice& choice : choices()) {
      std::vector<float> before;
      for (float neighbours_dt : {2.0F, 0.3F, 0.01F}) {
        SsdCase c({.seqlen = kSeqlen,
                   .nheads = 2,
                   .headdim = 16,
                   .dstate = dstate,
                   .dtype = DType::bf16});
        c.args.dt_softplus = false;
        for (std::int64_t t = 0; t < kSeqlen; ++t) {
          c.dt.as<float>()[2 * t] = 2;
          c.dt.as<float>()[2 * t + 1] = neighbours_dt;
        }
        for (std::int64_t h = 0; h < 2; ++h) c.A.as<float>()[h] = -1;
        c.args.dt_bias = {};
        SsdOnDevice call(c);
        if (!test::takes(choice, call.args)) continue;
        const auto got = call.run(choice);
        std::vector<float> head(got.final_states.begin(), got.final_states.begin() + 16 * dstate);
        for (std::int64_t t = 0; t < kSeqlen; ++t) {
          head.insert(head.end(), got.y.begin() + t * 32, got.y.begin() + t * 32 + 16);
        }
        if (!before.empty()) {
          EXPECT_TRUE(test::same_bits(head, before))
              << dstate << ", " << test::described(choice) << ", " << neighbours_dt;
        }
        before = std::move(head);
      }
    }
  }
}

// Which block a sequence's tokens fall to changes nothing.
TEST_F(SsdForwardCuda, SequencesLaidEndToEndBitForBit) {
  for (const auto& [nheads, dstate, dtype] :
       {std::tuple{16, 64, DType::bf16}, std::tuple{12, 128, DType::f16},
        std::tuple{8, 256, DType::bf16}, std::tuple{8, 512, DType::bf16}}) {
    for (std::int64_t seqlen : {1, 290, 1000}) {
      const SsdCase c({.batch = 50,
                       .seqlen = seqlen,
                       .nheads = nheads,
                       .headdim = 16,
                       .dstate = dstate,
                       .dtype = dtype});
      SsdOnDevice call(c);
      const SsdForwardChoice end_to_end{.variant = SsdForwardVariant::hopper, .end_to_end = true};
      if (!test::takes(end_to_end, call.args)) GTEST_SKIP() << "the device has other kernels";
      const auto expected = call.run(SsdForwardChoice{.variant = SsdForwardVariant::hopper});
      for (int i = 0; i < 3; ++i) {
        call.poison();
        const auto got = call.run(end_to_end);
        EXPECT_TRUE(test::same_bits(got.y, expected.y)) << dstate << " " << seqlen;
        EXPECT_TRUE(test::same_bits(got.final_states, expected.final_states));
      }
    }
  }
}

}  // namespace
}  // namespace adder
