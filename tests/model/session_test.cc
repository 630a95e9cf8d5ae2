// Sessions: pieces, steps, snapshots, forks and neighbours, on checkpoints of every architecture.

#include "adder/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "adder/error.h"
#include "adder/model.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"

namespace adder {
namespace {

std::vector<float> logits_of(Session& session) {
  const std::span<const float> logits = session.logits();
  return {logits.begin(), logits.end()};
}

std::vector<int> generate(Session& session, GenerateOptions options) {
  std::vector<int> out;
  for (int token : session.generate(options)) out.push_back(token);
  return out;
}

class SessionTest : public ::testing::TestWithParam<const char*> {
 protected:
  SessionTest() : model_(Model::load(std::filesystem::path("tests/data/golden") / GetParam())) {}

  std::vector<int> random_ids(std::int64_t count, std::uint64_t stream = 0) const {
    test::Random random(stream);
    std::vector<int> out(static_cast<std::size_t>(count));
    for (int& id : out) id = static_cast<int>(random.integer(0, model_.config().vocab_size - 1));
    return out;
  }

  Session fed(std::span<const int> ids) const {
    Session session = model_.new_session();
    session.prefill(ids);
    return session;
  }

  void expect_same(Session& got, Session& truth) const {
    EXPECT_LE(test::relative_error(logits_of(got), test::to_double(logits_of(truth))), 1e-5);
    EXPECT_EQ(got.position(), truth.position());
  }

  Model model_;
};

// Bugs 3 and 4: more than one token with a state must use and extend it.
TEST_P(SessionTest, EverySplitOfAPromptEqualsOnePass) {
  const std::vector<int> ids = random_ids(40);
  Session truth = fed(ids);
  for (std::size_t split = 0; split <= ids.size(); ++split) {
    Session session = fed(std::span(ids).first(split));
    session.prefill(std::span(ids).subspan(split));
    expect_same(session, truth);
  }
}

TEST_P(SessionTest, PiecesOfAnySizeEqualOnePass) {
  // Longer than the pieces a session feeds to the network at a time.
  const std::vector<int> ids = random_ids(1100);
  Session truth = fed(ids);
  for (std::size_t size : {1U, 3U, 17U, 63U, 64U, 65U, 256U, 511U, 512U, 513U}) {
    Session session = model_.new_session();
    for (std::size_t begin = 0; begin < ids.size(); begin += size) {
      session.prefill(std::span(ids).subspan(begin, std::min(size, ids.size() - begin)));
    }
    expect_same(session, truth);
  }
}

// Bug 14.
TEST_P(SessionTest, PromptsShorterThanTheConvolutionWindow) {
  for (std::int64_t length : {1, 2, 3}) {
    const std::vector<int> ids = random_ids(length);
    Session prefilled = fed(ids);
    Session stepped = model_.new_session();
    for (int id : ids) stepped.step(id);
    expect_same(prefilled, stepped);
    const std::vector<int> more = random_ids(5, 1);
    prefilled.prefill(more);
    for (int id : more) stepped.step(id);
    expect_same(prefilled, stepped);
  }
}

// Bugs 10, 11 and 17: a snapshot at every position, restored, continues bit for bit as the
// original did, whatever was fed in between.
TEST_P(SessionTest, RestoringASnapshotOfAnyPositionRollsBackBitForBit) {
  const std::vector<int> ids = random_ids(24);
  Session session = model_.new_session();
  std::vector<Snapshot> snapshots{session.snapshot()};
  std::vector<std::vector<float>> logits{{}};
  for (int id : ids) {
    session.step(id);
    logits.push_back(logits_of(session));
    snapshots.push_back(session.snapshot());
  }
  for (std::size_t n = ids.size(); n > 0; --n) {
    session.prefill(random_ids(7, n));  // tokens that are rejected
    EXPECT_EQ(session.restore(snapshots[n]), static_cast<std::int64_t>(n));
    EXPECT_EQ(snapshots[n].ntokens(), static_cast<std::int64_t>(n));
    EXPECT_EQ(session.position(), static_cast<std::int64_t>(n));
    EXPECT_TRUE(test::same_bits(logits_of(session), logits[n]));
    for (std::size_t i = n; i < ids.size(); ++i) session.step(ids[i]);
    EXPECT_TRUE(test::same_bits(logits_of(session), logits.back()));
  }
  EXPECT_EQ(session.restore(snapshots[0]), 0);
  EXPECT_THROW(session.logits(), Error);
}

TEST_P(SessionTest, AForkIsIndependent) {
  const std::vector<int> ids = random_ids(20);
  Session session = fed(ids);
  Session fork = session.fork();
  fork.prefill(random_ids(30, 1));
  Session truth = fed(ids);
  EXPECT_TRUE(test::same_bits(logits_of(session), logits_of(truth)));
  const std::vector<int> more = random_ids(9, 2);
  Session fork2 = session.fork();
  session.prefill(more);
  fork2.prefill(more);
  EXPECT_TRUE(test::same_bits(logits_of(session), logits_of(fork2)));
}

// Bug 13.
TEST_P(SessionTest, InterleavedSessionsEqualSingleOnes) {
  constexpr std::size_t kSessions = 4;
  std::vector<std::vector<int>> ids;
  std::vector<Session> sessions;
  for (std::size_t s = 0; s < kSessions; ++s) {
    ids.push_back(random_ids(30, s));
    sessions.push_back(model_.new_session());
  }
  for (std::size_t t = 0; t < ids[0].size(); t += 3) {
    for (std::size_t s = 0; s < kSessions; ++s) {
      sessions[s].prefill(std::span(ids[s]).subspan(t, 3));
    }
  }
  for (std::size_t s = 0; s < kSessions; ++s) {
    Session truth = model_.new_session();
    for (std::size_t t = 0; t < ids[s].size(); t += 3) {
      truth.prefill(std::span(ids[s]).subspan(t, 3));
    }
    EXPECT_TRUE(test::same_bits(logits_of(sessions[s]), logits_of(truth)));
  }
}

TEST_P(SessionTest, SessionsOnSeveralThreadsEqualSingleOnes) {
  constexpr std::size_t kThreads = 4;
  std::vector<std::vector<int>> got(kThreads);
  const auto work = [&](std::size_t s) {
    Session session = fed(random_ids(20, s));
    return generate(session, {.max_tokens = 20, .seed = s, .stop_at_eos = false});
  };
  std::vector<std::thread> threads;
  for (std::size_t s = 0; s < kThreads; ++s) {
    threads.emplace_back([&, s] { got[s] = work(s); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t s = 0; s < kThreads; ++s) EXPECT_EQ(got[s], work(s));
}

TEST_P(SessionTest, TheNumberOfThreadsChangesNothing) {
  const std::vector<int> ids = random_ids(300);
  std::vector<float> truth;
  for (int nthreads : {1, 2, 3}) {
    const Model model = Model::load(std::filesystem::path("tests/data/golden") / GetParam(),
                                    {.nthreads = nthreads});
    Session session = model.new_session();
    session.prefill(ids);
    session.step(ids[0]);
    if (truth.empty()) truth = logits_of(session);
    EXPECT_TRUE(test::same_bits(logits_of(session), truth));
  }
}

TEST_P(SessionTest, GenerationIsReproducibleAndLeavesAStateToGoOnFrom) {
  const std::vector<int> prompt = random_ids(10);
  Session first = fed(prompt);
  Session second = fed(prompt);
  const GenerateOptions options{.max_tokens = 30, .seed = 42, .stop_at_eos = false};
  const std::vector<int> tokens = generate(first, options);
  EXPECT_EQ(tokens.size(), 30U);
  EXPECT_EQ(generate(second, options), tokens);
  // All generated tokens are part of the state, the last one too.
  EXPECT_EQ(first.position(), 40);
  EXPECT_EQ(first.snapshot().ntokens(), 40);
  Session replay = fed(prompt);
  for (int token : tokens) replay.step(token);
  EXPECT_TRUE(test::same_bits(logits_of(first), logits_of(replay)));
  GenerateOptions other = options;
  other.seed = 43;
  Session third = fed(prompt);
  EXPECT_NE(generate(third, other), tokens);
}

TEST_P(SessionTest, PiecesAreAsLongAsWasAskedFor) {
  const std::vector<int> ids = random_ids(50);
  for (std::size_t piece : {1U, 7U, 1000U}) {
    const Model model =
        Model::load(std::filesystem::path("tests/data/golden") / GetParam(),
                    {.piece_tokens = static_cast<std::int64_t>(piece), .nthreads = 1});
    Session whole = model.new_session();
    whole.prefill(ids);
    Session parts = model_.new_session();
    for (std::size_t first = 0; first < ids.size(); first += piece) {
      parts.prefill(std::span(ids).subspan(first, std::min(piece, ids.size() - first)));
    }
    EXPECT_TRUE(test::same_bits(logits_of(whole), logits_of(parts))) << piece;
    EXPECT_EQ(whole.position(), 50);
  }
}

TEST_P(SessionTest, WhatCannotBeLoadedIsNamed) {
  const auto error_of = [](const LoadOptions& options) {
    return test::error_of(
        [&] { Model::load(std::filesystem::path("tests/data/golden") / GetParam(), options); });
  };
  EXPECT_EQ(error_of({.state_dtype = "bf16"}),
            "device cpu: states of dtype bf16 were asked for, expected f32, or a CUDA device");
  EXPECT_EQ(error_of({.state_dtype = "f16"}),
            "state dtype \"f16\" is unknown, expected f32 or bf16");
  EXPECT_EQ(error_of({.piece_tokens = -1}),
            "pieces of -1 tokens were asked for, expected at least 1, or 0");
}

TEST_P(SessionTest, BadTokensAreRefusedAndChangeNothing) {
  Session session = fed(random_ids(5));
  const std::vector<float> before = logits_of(session);
  const auto rows = static_cast<int>(model_.config().padded_vocab_size);
  EXPECT_THROW(session.step(-1), Error);
  EXPECT_THROW(session.prefill(std::vector<int>{1, 2, rows}), Error);
  EXPECT_THROW(session.score(std::vector<int>{1, -7}), Error);
  EXPECT_EQ(session.position(), 5);
  EXPECT_TRUE(test::same_bits(logits_of(session), before));
  session.prefill({});
  EXPECT_EQ(session.position(), 5);
  session.reset();
  EXPECT_EQ(session.position(), 0);
  EXPECT_THROW(session.logits(), Error);
  EXPECT_THROW(session.generate(), Error);
  EXPECT_TRUE(session.score({}).empty());
}

TEST_P(SessionTest, StateBytesAreWhatASnapshotHolds) {
  Session session = fed(random_ids(5));
  const std::int64_t rest = session.snapshot().size_bytes() - model_.state_bytes();
  EXPECT_GT(rest, 0);
  EXPECT_LT(rest, 4096);
  session.prefill(random_ids(2000));
  EXPECT_LT(session.snapshot().size_bytes() - model_.state_bytes(), 4096);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, SessionTest,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba2-original-groups",
                                           "mamba2-original-fp16"),
                         test::CheckpointName());

}  // namespace
}  // namespace adder
