#pragma once

// Several sessions generated together, by steps of the host and by loops that a device runs: nobody
// may notice either. Belongs to programs that include decode_loop.h.

#include "adder/batch.h"
#include "tests/model/decode_loop.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"

namespace adder {
namespace {

/// A sequence of a batch.
struct Job {
  std::vector<int> prompt;
  GenerateOptions options;
};

class Batches : public DecodeLoops {
 protected:
  static std::vector<int> random_ids(std::int64_t count, std::uint64_t stream) {
    test::Random random(stream);
    std::vector<int> out(static_cast<std::size_t>(count));
    for (int& id : out) id = static_cast<int>(random.integer(0, 249));
    return out;
  }

  /// Prompts and options of all kinds, of which the first is the longest.
  static std::vector<Job> jobs(std::size_t count) {
    std::vector<Job> out;
    for (std::size_t i = 0; i < count; ++i) {
      GenerateOptions options = i % 3 == 1 ? kGreedy : kDrawn;
      options.seed = 100 + i;
      options.max_tokens = i == 0 ? 45 : static_cast<std::int64_t>(13 * i % 30);
      options.stop_at_eos = i % 2 == 1;
      options.repeat_window = static_cast<int>(10 * i % 64);
      out.push_back({random_ids(1 + static_cast<std::int64_t>(i * 7 % 24), i), options});
    }
    return out;
  }

  /// What a session alone makes of it.
  struct Alone {
    Session session;
    std::vector<int> tokens;
    StopReason stop_reason;
  };
  Alone alone(const Job& job) const {
    Session session = host_->new_session();
    session.prefill(job.prompt);
    Generation generation = session.generate(job.options);
    std::vector<int> tokens;
    for (int token : generation) tokens.push_back(token);
    const StopReason reason = generation.stop_reason();
    return {std::move(session), tokens, reason};
  }

  static std::vector<Session> new_sessions(const Model& model, std::size_t count) {
    std::vector<Session> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back(model.new_session());
    return out;
  }

  static void prefill_all(std::span<Session> sessions, std::vector<std::vector<int>> prompts) {
    std::vector<Session*> pointers;
    for (Session& session : sessions) pointers.push_back(&session);
    prefill(pointers, prompts);
  }

  static std::vector<Session> prompted_together(const Model& model, std::span<const Job> jobs) {
    std::vector<Session> sessions = new_sessions(model, jobs.size());
    std::vector<std::vector<int>> prompts;
    for (const Job& job : jobs) prompts.push_back(job.prompt);
    prefill_all(sessions, prompts);
    return sessions;
  }

  static BatchGeneration begin(std::span<Session> sessions, std::span<const Job> jobs) {
    BatchGeneration batch;
    for (std::size_t i = 0; i < jobs.size(); ++i) batch.add(sessions[i], jobs[i].options);
    return batch;
  }

  /// At most `count` tokens, of each of `nsequences`.
  static std::vector<std::vector<int>> take(BatchGeneration& batch, std::size_t nsequences,
                                            std::size_t count = SIZE_MAX) {
    std::vector<std::vector<int>> out(nsequences);
    for (; count > 0; --count) {
      const auto next = batch.next();
      if (!next) break;
      out.at(next->sequence).push_back(next->token);
    }
    return out;
  }
};

TEST_P(Batches, GiveEachTheTokensThatItGetsAlone) {
  const std::vector<Job> all = jobs(17);
  std::vector<Alone> expected;
  for (const Job& job : all) expected.push_back(alone(job));
  for (const Model* model : {&*host_, &*device_}) {
    for (std::size_t count : {1U, 2U, 5U, 9U, 17U}) {
      const std::span<const Job> some = std::span(all).first(count);
      std::vector<Session> sessions = prompted_together(*model, some);
      BatchGeneration batch = begin(sessions, some);
      const std::vector<std::vector<int>> tokens = take(batch, count);
      EXPECT_FALSE(batch.next());
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(tokens[i], expected[i].tokens) << i << " of " << count;
        EXPECT_EQ(batch.stop_reason(i), expected[i].stop_reason) << i << " of " << count;
        expect_same(sessions[i], expected[i].session);
      }
    }
  }
}

// One ends before a token that ends its text, the other with as many tokens: after the step that
// only the first one takes part in, the device's state is worth something for that one alone.
TEST_P(Batches, EndInOneRoundAStepApart) {
  Job ends_text{random_ids(8, 0), kDrawn};
  ends_text.options.stop_at_eos = true;
  std::optional<Alone> first;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    ends_text.options.seed = seed;
    first.emplace(alone(ends_text));
    if (first->stop_reason == StopReason::end_of_text && first->tokens.size() > 1) break;
  }
  ASSERT_EQ(first->stop_reason, StopReason::end_of_text);
  Job as_long{random_ids(5, 1), kGreedy};
  as_long.options.max_tokens = std::ssize(first->tokens);
  Alone second = alone(as_long);
  for (const Model* model : {&*host_, &*device_}) {
    for (const bool is_first : {true, false}) {
      const Job all[] = {is_first ? ends_text : as_long, is_first ? as_long : ends_text};
      std::vector<Session> sessions = prompted_together(*model, all);
      BatchGeneration batch = begin(sessions, all);
      take(batch, 2);
      expect_same(sessions[is_first ? 0 : 1], first->session);
      expect_same(sessions[is_first ? 1 : 0], second.session);
    }
  }
}

TEST_P(Batches, SessionsGoOnTogetherAndAlone) {
  for (const Model* model : {&*host_, &*device_}) {
    const std::vector<Job> all = jobs(6);
    std::vector<Session> sessions = prompted_together(*model, all);
    std::vector<Alone> expected;
    for (const Job& job : all) expected.push_back(alone(job));
    BatchGeneration first = begin(sessions, all);
    take(first, 6);
    // More of a prompt after what was generated, none for some.
    std::vector<std::vector<int>> more;
    for (std::size_t i = 0; i < 6; ++i) {
      more.push_back(random_ids(static_cast<std::int64_t>(i * 5 % 11), 50 + i));
      expected[i].session.prefill(more[i]);
    }
    prefill_all(sessions, more);
    BatchGeneration second = begin(sessions, all);
    const std::vector<std::vector<int>> tokens = take(second, 6);
    for (std::size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(tokens[i], generate(expected[i].session, all[i].options)) << i;
      EXPECT_EQ(generate(sessions[i], kDrawn), generate(expected[i].session, kDrawn)) << i;
      expect_same(sessions[i], expected[i].session);
    }
  }
}

TEST_P(Batches, MayBeGivenUpAnywhere) {
  for (const Model* model : {&*host_, &*device_}) {
    for (std::size_t count : {0U, 1U, 4U, 7U, 50U, 90U}) {
      const std::vector<Job> all = jobs(4);
      std::vector<Session> sessions = prompted_together(*model, all);
      std::vector<std::vector<int>> tokens;
      {
        BatchGeneration batch = begin(sessions, all);
        tokens = take(batch, 4, count);
      }
      for (std::size_t i = 0; i < 4; ++i) {
        Session expected = host_->new_session();
        expected.prefill(all[i].prompt);
        expected.prefill(tokens[i]);
        expect_same(sessions[i], expected);
      }
    }
  }
}

TEST_P(Batches, StandAsideWhileASessionIsUsed) {
  for (const Model* model : {&*host_, &*device_}) {
    const std::vector<Job> all = jobs(5);
    std::vector<Session> sessions = prompted_together(*model, all);
    BatchGeneration batch = begin(sessions, all);
    std::vector<std::vector<int>> tokens(5);
    for (int n = 0; const auto next = batch.next(); ++n) {
      tokens[next->sequence].push_back(next->token);
      Session& session = sessions[next->sequence];
      EXPECT_EQ(session.position(),
                std::ssize(all[next->sequence].prompt) + std::ssize(tokens[next->sequence]));
      if (n % 8 == 5) session.logits();
      if (n % 16 == 3) generate(sessions[static_cast<std::size_t>(n) % 5], {.max_tokens = 0});
      if (n == 20) {
        Session fork = sessions[0].fork();
        generate(fork, kDrawn);
      }
    }
    for (std::size_t i = 0; i < 5; ++i) {
      Alone expected = alone(all[i]);
      EXPECT_EQ(tokens[i], expected.tokens) << i;
      EXPECT_EQ(batch.stop_reason(i), expected.stop_reason) << i;
      expect_same(sessions[i], expected.session);
    }
  }
}

TEST_P(Batches, SequencesComeAndGo) {
  for (const Model* model : {&*host_, &*device_}) {
    const std::vector<Job> all = jobs(9);
    std::vector<std::optional<Session>> sessions;
    BatchGeneration batch;
    std::vector<std::vector<int>> tokens(9);
    const auto add = [&] {
      const Job& job = all[sessions.size()];
      Session& session = *sessions.emplace_back(model->new_session());
      session.prefill(job.prompt);
      EXPECT_EQ(batch.add(session, job.options), sessions.size() - 1);
    };
    sessions.reserve(9);
    add();
    add();
    for (int n = 0; const auto next = batch.next(); ++n) {
      tokens[next->sequence].push_back(next->token);
      if (n % 5 == 4 && sessions.size() < 9) add();
      if (n == 30) sessions[0].reset();  // while it runs
      // And those that have ended, whether their round is over or not.
      for (std::size_t i = 0; i < sessions.size(); ++i) {
        if (batch.stop_reason(i) != StopReason::running) sessions[i].reset();
      }
    }
    for (std::size_t i = 0; i < 9; ++i) {
      std::vector<int> expected = alone(all[i]).tokens;
      if (i == 0) {
        ASSERT_LT(tokens[0].size(), expected.size());
        expected.resize(tokens[0].size());
      }
      EXPECT_EQ(tokens[i], expected) << i;
    }
  }
}

// Two clients that go between two tokens, one that goes before its first, one while nobody decodes.
TEST_P(Batches, SessionsMayGoAtAnyTime) {
  for (const Model* model : {&*host_, &*device_}) {
    const std::vector<Job> all = jobs(5);
    std::vector<std::optional<Session>> sessions(5);
    BatchGeneration batch;
    for (std::size_t i = 0; i < 5; ++i) {
      sessions[i].emplace(model->new_session());
      sessions[i]->prefill(all[i].prompt);
      if (i < 4) batch.add(*sessions[i], all[i].options);
    }
    std::vector<int> tokens;
    const auto take = [&] {
      const auto next = batch.next();
      ASSERT_TRUE(next);
      if (next->sequence == 3) tokens.push_back(next->token);
    };
    take();
    take();
    sessions[0].reset();
    sessions[1].reset();
    take();
    batch.add(*sessions[4], all[4].options);
    sessions[4].reset();
    sessions[3]->snapshot();  // takes it back for the moment
    sessions[2].reset();
    while (const auto next = batch.next()) {
      ASSERT_EQ(next->sequence, 3);
      tokens.push_back(next->token);
    }
    EXPECT_EQ(tokens, alone(all[3]).tokens);
    EXPECT_EQ(batch.stop_reason(0), StopReason::running);
  }
}

TEST_P(Batches, EmptiedSessionsEndInAnError) {
  const std::vector<Job> all = jobs(2);
  std::vector<Session> sessions = prompted_together(*device_, all);
  BatchGeneration batch = begin(sessions, all);
  ASSERT_TRUE(batch.next());
  sessions[0].reset();
  EXPECT_THROW(while (batch.next()), Error);
  sessions[0].prefill(all[0].prompt);
  EXPECT_TRUE(batch.next());
}

// So long that sessions follow on the way, and one of them has ended long before.
TEST_P(Batches, GoOnForLong) {
  std::vector<Job> all = jobs(3);
  for (Job& job : all) job.options.stop_at_eos = false;
  all[0].options.max_tokens = 4600;
  all[1].options.max_tokens = 30;
  all[2].options.max_tokens = 4200;
  std::vector<Session> sessions = prompted_together(*device_, all);
  BatchGeneration batch = begin(sessions, all);
  const std::vector<std::vector<int>> tokens = take(batch, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    Alone expected = alone(all[i]);
    EXPECT_EQ(tokens[i], expected.tokens) << i;
    expect_same(sessions[i], expected.session);
  }
}

// Longer ones than a forward pass takes, beside short ones.
TEST_P(Batches, PromptsAreFedTogetherAsAlone) {
  for (const Model* model : {&*host_, &*device_}) {
    const std::int64_t most = model->impl().backend->piece_tokens();
    const std::vector<std::int64_t> lengths = {3, most + 1, 1, 0, most / 2, 2 * most, 1, most, 40};
    std::vector<Session> sessions = new_sessions(*model, lengths.size());
    std::vector<Session> expected = new_sessions(*host_, lengths.size());
    for (std::uint64_t turn = 0; turn < 2; ++turn) {
      std::vector<std::vector<int>> prompts;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        // The second time in another order.
        const std::size_t from = turn == 0 ? i : (i + 4) % lengths.size();
        prompts.push_back(random_ids(lengths[from], 10 * turn + i));
        expected[i].prefill(prompts[i]);
      }
      prefill_all(sessions, prompts);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        EXPECT_EQ(sessions[i].position(), expected[i].position());
        if (sessions[i].position() > 0) expect_same(sessions[i], expected[i]);
      }
    }
  }
}

TEST_P(Batches, SayWhyATokenCannotBeSampledAndKeepTheOthers) {
  for (const Model* model : {&*host_, &*device_}) {
    const std::vector<Job> all = jobs(3);
    std::vector<Session> sessions = prompted_together(*model, all);
    auto impl = std::make_shared<Snapshot::Impl>(sessions[1].snapshot().impl());
    for (float& v : impl->state) v = NAN;
    sessions[1].restore(Snapshot(std::move(impl)));
    sessions[1].step(1);
    std::vector<std::vector<int>> tokens(3);
    std::string said;
    {
      BatchGeneration batch;
      for (std::size_t i = 0; i < 3; ++i) {
        GenerateOptions options = all[i].options;
        options.max_tokens = 20;
        batch.add(sessions[i], options);
      }
      for (int attempt = 0; attempt < 2; ++attempt) {
        said = test::error_of([&] {
          while (const auto next = batch.next()) tokens[next->sequence].push_back(next->token);
        });
      }
    }
    EXPECT_NE(said.find("nan"), std::string::npos) << said;
    EXPECT_EQ(tokens[1].size(), 0U);
    for (std::size_t i : {0U, 2U}) {
      Session expected = host_->new_session();
      expected.prefill(all[i].prompt);
      expected.prefill(tokens[i]);
      expect_same(sessions[i], expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Batches,
                         ::testing::Values(Architecture::mamba2, Architecture::mamba1),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

}  // namespace
}  // namespace adder
