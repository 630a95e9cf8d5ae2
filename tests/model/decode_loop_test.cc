#include "tests/model/decode_loop.h"
#include "tests/model/batch.h"

#include "tests/model/batch.h"
#include "tests/model/looping_backend.h"

namespace adder {
namespace {

test::LoopBehaviour behaviour;

}  // namespace

std::unique_ptr<Backend> make_backend_with_loops() {
  behaviour = {};
  return std::make_unique<test::LoopingBackend>(std::make_unique<CpuBackend>(1), behaviour);
}
std::unique_ptr<Backend> make_backend_without_loops() { return std::make_unique<CpuBackend>(1); }
std::string why_no_backend_with_loops() { return {}; }

namespace {

TEST_P(DecodeLoops, PauseAndGoOn) {
  behaviour.ring = 16;
  behaviour.ahead = 1000;
  GenerateOptions options = kDrawn;
  options.max_tokens = 100;
  for (int given_up_after : {100, 15, 16, 17, 40}) {
    Session expected = prompted(*host_);
    Session got = prompted(*device_);
    Generation host = expected.generate(options);
    Generation device = got.generate(options);
    auto a = host.begin();
    auto b = device.begin();
    for (int i = 1; i < given_up_after; ++i, ++a, ++b) ASSERT_EQ(*b, *a);
    expect_same(got, expected);
  }
}

TEST_P(DecodeLoops, AreMadeOnceAndStartedOnce) {
  GenerateOptions options = kDrawn;
  options.max_tokens = 9000;
  for (int i = 1; i <= 3; ++i) {
    Session session = prompted(*device_);
    generate(session, options);
    EXPECT_EQ(behaviour.made, 1);
    EXPECT_EQ(behaviour.started, i);
  }
  Session sessions[] = {prompted(*device_), prompted(*device_)};
  Generation generations[] = {sessions[0].generate(kDrawn), sessions[1].generate(kDrawn)};
  for (Generation& generation : generations) generation.begin();
  EXPECT_EQ(behaviour.made, 2);
}

// Given up where the loop pauses, its state is adopted; elsewhere what was taken is fed again.
TEST_P(Batches, PauseAndGoOn) {
  behaviour.ring = 16;
  behaviour.ahead = 1000;
  std::vector<Job> all = jobs(3);
  for (Job& job : all) {
    job.options.max_tokens = 100;
    job.options.stop_at_eos = false;
  }
  all[1].options.max_tokens = 5;
  std::vector<Alone> expected;
  for (const Job& job : all) expected.push_back(alone(job));
  for (const std::size_t rounds : {15U, 16U, 17U, 32U, 40U, 100U}) {
    std::vector<Session> sessions = prompted_together(*device_, all);
    std::vector<std::vector<int>> tokens;
    {
      BatchGeneration batch = begin(sessions, all);
      tokens = take(batch, 3, 2 * rounds + 5);
    }
    for (const std::size_t i : {0U, 2U}) {
      EXPECT_EQ(tokens[i].size(), rounds);
      Session fed = host_->new_session();
      fed.prefill(all[i].prompt);
      fed.prefill(tokens[i]);
      expect_same(sessions[i], fed);
    }
    expect_same(sessions[1], expected[1].session);
  }
}

TEST_P(Batches, LoopsAreMadeOnceForASize) {
  const auto run = [&](std::size_t count) {
    const std::vector<Job> all = jobs(count);
    std::vector<Session> sessions = prompted_together(*device_, all);
    BatchGeneration batch = begin(sessions, all);
    take(batch, count, 3 * count);
    return behaviour.made;
  };
  EXPECT_EQ(run(1), 1);
  EXPECT_EQ(run(3), 2);
  EXPECT_EQ(run(3), 2);
  EXPECT_EQ(run(17), 3);
  EXPECT_EQ(run(18), 3);  // there is place for one more
  EXPECT_EQ(run(3), 4);   // given up for the larger one
  EXPECT_EQ(run(1), 4);
}

}  // namespace
}  // namespace adder
