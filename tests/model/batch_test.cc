// Sessions fed and generated together on the CPU: bit for bit as each alone, on checkpoints of
// every architecture.

#include "adder/batch.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "adder/model.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"

namespace adder {
namespace {

class BatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  BatchTest() : model_(Model::load(std::filesystem::path("tests/data/golden") / GetParam())) {}

  std::vector<int> random_ids(std::int64_t count, std::uint64_t stream) const {
    test::Random random(stream);
    std::vector<int> out(static_cast<std::size_t>(count));
    for (int& id : out) id = static_cast<int>(random.integer(0, model_.config().vocab_size - 1));
    return out;
  }

  static GenerateOptions options(std::size_t i) {
    return {.max_tokens = static_cast<std::int64_t>(3 + 17 * i % 40),
            .sampling = {.temperature = i % 4 == 0 ? 0.0F : 1.2F},
            .seed = i,
            .stop_at_eos = i % 2 == 0};
  }

  Model model_;
};

TEST_P(BatchTest, EverySequenceIsTheOneAloneBitForBit) {
  constexpr std::int64_t kLengths[] = {1, 40, 300, 1, 700, 2, 0, 5, 513, 90, 1, 260};
  constexpr std::size_t kCount = std::size(kLengths);
  std::vector<Session> sessions;
  std::vector<Session> expected;
  std::vector<Session*> pointers;
  std::vector<std::vector<int>> prompts;
  for (std::size_t i = 0; i < kCount; ++i) {
    sessions.push_back(model_.new_session());
    expected.push_back(model_.new_session());
    prompts.push_back(random_ids(kLengths[i], i));
  }
  for (Session& session : sessions) pointers.push_back(&session);
  for (int turn = 0; turn < 2; ++turn) {
    prefill(pointers, prompts);
    BatchGeneration batch;
    std::vector<std::vector<int>> tokens(kCount);
    std::vector<std::size_t> members;
    for (std::size_t i = 0; i < kCount; ++i) {
      expected[i].prefill(prompts[i]);
      if (expected[i].position() == 0) continue;
      batch.add(sessions[i], options(i));
      members.push_back(i);
    }
    while (const auto next = batch.next()) tokens[members[next->sequence]].push_back(next->token);
    for (std::size_t n = 0; n < members.size(); ++n) {
      const std::size_t i = members[n];
      Generation generation = expected[i].generate(options(i));
      std::vector<int> alone;
      for (int token : generation) alone.push_back(token);
      EXPECT_EQ(tokens[i], alone) << i;
      EXPECT_EQ(batch.stop_reason(n), generation.stop_reason()) << i;
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(sessions[i].snapshot().serialize(), expected[i].snapshot().serialize()) << i;
    }
  }
}

TEST_P(BatchTest, ManySequencesTogether) {
  constexpr std::size_t kCount = 512;
  std::vector<Session> sessions;
  std::vector<Session*> pointers;
  std::vector<std::vector<int>> prompts;
  for (std::size_t i = 0; i < kCount; ++i) {
    sessions.push_back(model_.new_session());
    prompts.push_back(random_ids(1 + static_cast<std::int64_t>(i % 7), i));
  }
  for (Session& session : sessions) pointers.push_back(&session);
  prefill(pointers, prompts);
  BatchGeneration batch;
  for (Session& session : sessions) {
    batch.add(session, {.max_tokens = 4, .sampling = {.temperature = 0}, .stop_at_eos = false});
  }
  std::vector<std::vector<int>> tokens(kCount);
  while (const auto next = batch.next()) tokens[next->sequence].push_back(next->token);
  for (std::size_t i = 0; i < kCount; i += 73) {
    Session alone = model_.new_session();
    alone.prefill(prompts[i]);
    std::vector<int> expected;
    for (int token :
         alone.generate({.max_tokens = 4, .sampling = {.temperature = 0}, .stop_at_eos = false})) {
      expected.push_back(token);
    }
    EXPECT_EQ(tokens[i], expected) << i;
  }
}

TEST_P(BatchTest, BadInputIsRefusedAndChangesNothing) {
  Session a = model_.new_session();
  Session b = model_.new_session();
  const std::vector<std::vector<int>> prompts = {{1, 2, 3}, {4}};
  Session* both[] = {&a, &b};
  prefill(both, prompts);
  const std::vector<std::byte> before = b.snapshot().serialize();
  const auto refused = [&](std::vector<Session*> sessions, std::vector<std::vector<int>> ids,
                           const std::string& why) {
    const std::string said = test::error_of([&] { prefill(sessions, ids); });
    EXPECT_NE(said.find(why), std::string::npos) << said;
    EXPECT_EQ(a.position(), 3);
    EXPECT_EQ(b.snapshot().serialize(), before);
  };
  const int rows = static_cast<int>(model_.config().padded_vocab_size);
  refused({&a, &b}, {{1}, {2, rows}}, "token 1 of prompt 1 is " + std::to_string(rows));
  refused({&a, &b}, {{-1}, {2}}, "token 0 of prompt 0 is -1");
  refused({&a, &b}, {{1}}, "2 sessions and 1 prompts");
  refused({&a, nullptr}, {{1}, {2}}, "session 1 is null");
  refused({&b, &a, &b}, {{1}, {2}, {3}}, "twice");
  const std::string name =
      GetParam() == std::string("hf-mamba1-tiny") ? "hf-mamba2-tiny" : "hf-mamba1-tiny";
  const Model other = Model::load("tests/data/golden/" + name);
  Session foreign = other.new_session();
  refused({&b, &foreign}, {{1}, {2}}, name);
  prefill({}, {});

  BatchGeneration batch;
  batch.add(a);
  const auto not_added = [&](Session& session, const GenerateOptions& with,
                             const std::string& why) {
    const std::string said = test::error_of([&] { batch.add(session, with); });
    EXPECT_NE(said.find(why), std::string::npos) << said;
  };
  not_added(a, {}, "sequence 0");
  not_added(b, {.repeat_window = 257}, "257");
  not_added(b, {.sampling = {.top_p = 2}}, "top_p");
  Session empty = model_.new_session();
  not_added(empty, {}, "no token");
  foreign.step(1);
  not_added(foreign, {}, name);
  EXPECT_EQ(batch.add(b), 1U);
  EXPECT_NE(test::error_of([&] { static_cast<void>(batch.stop_reason(2)); }).find("sequence 2"),
            std::string::npos);
  EXPECT_FALSE(BatchGeneration().next());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, BatchTest,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba2-original-groups",
                                           "mamba2-original-fp16"),
                         test::CheckpointName());

}  // namespace
}  // namespace adder
