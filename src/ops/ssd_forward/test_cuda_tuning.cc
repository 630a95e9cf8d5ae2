// ssd_forward on a CUDA device goes by the installed tuning table, and only where it may.

#include <gtest/gtest.h>

#include "cuda/timing.h"
#include "ops/ssd_forward/cuda_variants.h"
#include "ops/ssd_forward/test_device.h"
#include "ops/ssd_forward/tuning.h"

namespace adder {
namespace {

using cuda::SsdForwardChoice;
using cuda::SsdForwardTuning;
using cuda::SsdForwardVariant;
using test::same_bits;
using test::SsdCase;
using test::SsdOnDevice;
using test::SsdOutput;

class SsdForwardCudaTuning : public test::OnDevice {
 protected:
  // A test that fails leaves no table to the next one.
  void TearDown() override { cuda::install_ssd_forward_tuning(nullptr); }

  // The choice for the shape of the arguments, as measured on this device.
  static void install(const SsdForwardArgs& args, const SsdForwardChoice& choice) {
    auto tuning = std::make_shared<SsdForwardTuning>();
    tuning->add(cuda::properties(args.x.device.index), *cuda::shape_of(args), choice);
    cuda::install_ssd_forward_tuning(tuning);
  }
};

// One that the built-in rules give to the fused kernel where there is one.
SsdCase fusible(std::int64_t seqlen = 400) {
  return SsdCase({.batch = 2,
                  .seqlen = seqlen,
                  .nheads = 4,
                  .headdim = 64,
                  .dstate = 64,
                  .dtype = DType::bf16});
}

TEST_F(SsdForwardCudaTuning, TheTablesChoiceIsCarriedOut) {
  const SsdCase c = fusible();
  SsdOnDevice call(c);
  const SsdForwardChoice built_in = cuda::built_in_ssd_forward_choice(call.args);
  for (const SsdForwardChoice& choice : cuda::ssd_forward_candidates(call.args)) {
    SCOPED_TRACE(describe(choice));
    const SsdOutput expected = call.run(choice);
    install(call.args, choice);
    const auto decision = cuda::choose_ssd_forward(call.args);
    EXPECT_TRUE(decision.tuned);
    EXPECT_EQ(decision.choice, choice);
    EXPECT_EQ(cuda::built_in_ssd_forward_choice(call.args), built_in);
    EXPECT_EQ(cuda::ssd_forward_workspace_bytes(call.args),
              cuda::ssd_forward_workspace_bytes(call.args, choice));
    call.poison();
    const SsdOutput got = call.run();
    EXPECT_TRUE(same_bits(got.y, expected.y));
    EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
  }
  cuda::install_ssd_forward_tuning(nullptr);
  EXPECT_FALSE(cuda::choose_ssd_forward(call.args).tuned);
}

// Windows give the same bits, kernels do not: what ran is to be seen in the results.
TEST_F(SsdForwardCudaTuning, AnotherKernelRoundsDifferently) {
  const SsdCase c = fusible();
  SsdOnDevice call(c);
  if (cuda::built_in_ssd_forward_choice(call.args).variant == SsdForwardVariant::general) {
    GTEST_SKIP() << "this device has one kernel only";
  }
  const SsdOutput fused = call.run();
  install(call.args, {.variant = SsdForwardVariant::general, .window_chunks = 3});
  call.poison();
  EXPECT_FALSE(same_bits(call.run().y, fused.y));
}

TEST_F(SsdForwardCudaTuning, ChoicesThatTheArgumentsDoNotAllowAreLeftAside) {
  const SsdCase c = fusible();
  SsdOnDevice call(c);
  const SsdForwardChoice built_in = cuda::built_in_ssd_forward_choice(call.args);
  for (const SsdForwardChoice& choice :
       {SsdForwardChoice{.window_chunks = 0},
        SsdForwardChoice{.variant = SsdForwardVariant::hopper, .segments = 1000},
        SsdForwardChoice{.variant = SsdForwardVariant::hopper, .segments = 0}}) {
    install(call.args, choice);
    const auto decision = cuda::choose_ssd_forward(call.args);
    EXPECT_FALSE(decision.tuned) << describe(choice);
    EXPECT_EQ(decision.choice, built_in);
  }
  // Rows that the copy engine cannot address: the fused kernel's choice does not do for them.
  for (const SsdForwardChoice& choice : cuda::ssd_forward_candidates(call.args)) {
    if (choice.variant != SsdForwardVariant::hopper) continue;
    install(call.args, choice);
    SsdOnDevice misaligned(c, 1);
    EXPECT_FALSE(cuda::choose_ssd_forward(misaligned.args).tuned);
    EXPECT_TRUE(cuda::choose_ssd_forward(call.args).tuned);
  }
}

TEST_F(SsdForwardCudaTuning, OtherShapesKeepTheBuiltInChoice) {
  const SsdCase c = fusible();
  SsdOnDevice call(c);
  install(call.args, {.window_chunks = 3});
  SsdOnDevice near(fusible(420));
  EXPECT_TRUE(cuda::choose_ssd_forward(near.args).tuned);
  SsdOnDevice far(fusible(800));
  EXPECT_FALSE(cuda::choose_ssd_forward(far.args).tuned);
  call.args.z = {};
  EXPECT_FALSE(cuda::choose_ssd_forward(call.args).tuned);
}

TEST_F(SsdForwardCudaTuning, GraphsAreCapturedWithATable) {
  const SsdCase c = fusible();
  SsdOnDevice call(c);
  const SsdForwardChoice choice{.window_chunks = 2};
  const SsdOutput expected = call.run(choice);
  install(call.args, choice);
  const auto workspace = call.workspace();
  const cuda::OwnedStream stream;
  const cuda::Graph graph(stream, [&] { call.call(workspace, {}, stream); });
  cuda::install_ssd_forward_tuning(nullptr);  // the graph keeps what was captured
  call.poison();
  graph.launch(stream);
  const SsdOutput got = call.result(stream);
  EXPECT_TRUE(same_bits(got.y, expected.y));
  EXPECT_TRUE(same_bits(got.final_states, expected.final_states));
}

TEST_F(SsdForwardCudaTuning, CandidatesAreDistinctAllowedAndBeginWithTheBuiltIn) {
  for (const SsdCase& c :
       {fusible(), fusible(40), SsdCase({.seqlen = 90, .headdim = 20, .dstate = 24})}) {
    SsdOnDevice call(c);
    const auto candidates = cuda::ssd_forward_candidates(call.args);
    ASSERT_FALSE(candidates.empty());
    EXPECT_EQ(candidates[0], cuda::built_in_ssd_forward_choice(call.args));
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      EXPECT_TRUE(test::takes(candidates[i], call.args)) << describe(candidates[i]);
      for (std::size_t j = 0; j < i; ++j) EXPECT_NE(candidates[i], candidates[j]);
    }
  }
}

}  // namespace
}  // namespace adder
