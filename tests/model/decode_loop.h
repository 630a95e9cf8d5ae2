#pragma once

// Sessions on a backend that decodes by itself, ahead of whoever asks for tokens: nobody may
// notice. A program that includes this names its backends.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "adder/error.h"
#include "adder/model.h"
#include "models/random_weights.h"
#include "runtime/model_impl.h"
#include "tests/support/compare.h"

namespace adder {

/// The same device twice: one that has loops, and one whose steps the host takes.
std::unique_ptr<Backend> make_backend_with_loops();
std::unique_ptr<Backend> make_backend_without_loops();
/// Why tests cannot run on it; empty if they can.
std::string why_no_backend_with_loops();

namespace {

ModelConfig tiny(Architecture architecture) {
  ModelConfig config =
      published_config(architecture == Architecture::mamba2 ? "mamba2-130m" : "mamba-130m");
  config.d_model = 32;
  config.n_layer = 2;
  config.vocab_size = 250;
  config.padded_vocab_size = 256;
  config.d_inner = 64;
  config.d_state = 16;
  config.eos_token_ids = {7};
  if (architecture == Architecture::mamba2) {
    config.headdim = 16;
    config.nheads = 4;
  } else {
    config.dt_rank = 2;
  }
  return config;
}

class DecodeLoops : public ::testing::TestWithParam<Architecture> {
 protected:
  void SetUp() override {
    const std::string why = why_no_backend_with_loops();
    if (!why.empty()) GTEST_SKIP() << why;
    host_.emplace(load(make_backend_without_loops()));
    device_.emplace(load(make_backend_with_loops()));
  }

  static Model load(std::unique_ptr<Backend> backend) {
    const RandomWeights source(tiny(GetParam()));
    auto impl = std::make_shared<Model::Impl>();
    impl->network = std::make_unique<Network>(source, *backend, std::nullopt, nullptr);
    impl->backend = std::move(backend);
    impl->fingerprint = 1;
    return Model(std::move(impl));
  }

  static Session prompted(const Model& model) {
    Session session = model.new_session();
    session.prefill(std::vector<int>{3, 1, 4, 1, 5, 9, 2, 6});
    return session;
  }

  static std::vector<int> generate(Session& session, const GenerateOptions& options) {
    std::vector<int> out;
    for (int token : session.generate(options)) out.push_back(token);
    return out;
  }

  // The two sessions are at the same place: so are what they hold and what comes next.
  static void expect_same(Session& got, Session& expected) {
    EXPECT_EQ(got.position(), expected.position());
    EXPECT_LE(test::relative_error(got.logits(), test::to_double(expected.logits())), 1e-5);
    const Snapshot a = got.snapshot();
    const Snapshot b = expected.snapshot();
    EXPECT_EQ(a.ntokens(), b.ntokens());
    EXPECT_EQ(a.impl().recent, b.impl().recent);
    EXPECT_LE(test::relative_error(a.impl().state, test::to_double(b.impl().state)), 1e-5);
  }

  std::optional<Model> host_, device_;
};

const GenerateOptions kGreedy{
    .max_tokens = 40, .sampling = {.temperature = 0}, .stop_at_eos = false};
const GenerateOptions kDrawn{.max_tokens = 60,
                             .sampling = {.repeat_penalty = 1.1F, .temperature = 1.5F},
                             .seed = 11,
                             .stop_at_eos = false,
                             .repeat_window = 20};

TEST_P(DecodeLoops, GiveTheTokensOfTheHost) {
  for (const GenerateOptions& options : {kGreedy, kDrawn}) {
    for (std::int64_t count : {0, 1, 2, 51, 300}) {
      GenerateOptions counted = options;
      counted.max_tokens = count;
      Session expected = prompted(*host_);
      Session got = prompted(*device_);
      EXPECT_EQ(generate(got, counted), generate(expected, counted)) << count;
      expect_same(got, expected);
    }
  }
}

TEST_P(DecodeLoops, EndBeforeATokenThatEndsTheText) {
  int ended = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    GenerateOptions options = kDrawn;
    options.seed = seed;
    options.stop_at_eos = true;
    options.max_tokens = 400;
    Session expected = prompted(*host_);
    Session got = prompted(*device_);
    Generation host = expected.generate(options);
    Generation device = got.generate(options);
    std::vector<int> tokens[2];
    for (int token : host) tokens[0].push_back(token);
    for (int token : device) tokens[1].push_back(token);
    EXPECT_EQ(tokens[1], tokens[0]);
    EXPECT_EQ(device.stop_reason(), host.stop_reason());
    ended += host.stop_reason() == StopReason::end_of_text;
    expect_same(got, expected);
  }
  EXPECT_GT(ended, 5);
}

TEST_P(DecodeLoops, MayBeGivenUpAnywhere) {
  for (const GenerateOptions& options : {kGreedy, kDrawn}) {
    for (int count = 0; count < 60; count += 7) {
      Session expected = prompted(*host_);
      Session got = prompted(*device_);
      for (Session* session : {&expected, &got}) {
        Generation generation = session->generate(options);
        auto it = generation.begin();
        for (int i = 0; i < count && it != generation.end(); ++i) ++it;
      }
      expect_same(got, expected);
      // And the session goes on.
      EXPECT_EQ(generate(got, kGreedy), generate(expected, kGreedy)) << count;
    }
  }
}

// In between, sessions may be used for everything else, and generating goes on from there.
TEST_P(DecodeLoops, StandAsideWhileTheSessionIsUsed) {
  Session expected = prompted(*host_);
  Session got = prompted(*device_);
  Generation host = expected.generate(kDrawn);
  Generation device = got.generate(kDrawn);
  auto a = host.begin();
  auto b = device.begin();
  for (int i = 0; i < 50; ++i, ++a, ++b) {
    ASSERT_EQ(*b, *a) << i;
    EXPECT_EQ(got.position(), expected.position());
    if (i % 9 == 4) expect_same(got, expected);
    if (i == 20) {
      for (Session* session : {&expected, &got}) session->step(17);
    }
    if (i == 30) {
      Session forks[] = {expected.fork(), got.fork()};
      EXPECT_EQ(generate(forks[1], kGreedy), generate(forks[0], kGreedy));
    }
  }
}

// So long that the session follows on the way.
TEST_P(DecodeLoops, GoOnForLong) {
  GenerateOptions options = kDrawn;
  options.max_tokens = 9000;
  Session expected = prompted(*host_);
  Session got = prompted(*device_);
  EXPECT_EQ(generate(got, options), generate(expected, options));
  expect_same(got, expected);
}

TEST_P(DecodeLoops, SeveralSessionsHaveALoopEach) {
  Session sessions[] = {prompted(*device_), prompted(*device_)};
  Session expected = prompted(*host_);
  const std::vector<int> truth = generate(expected, kDrawn);
  Generation generations[] = {sessions[0].generate(kDrawn), sessions[1].generate(kDrawn)};
  Generation::Iterator at[] = {generations[0].begin(), generations[1].begin()};
  for (int token : truth) {
    for (Generation::Iterator& it : at) {
      EXPECT_EQ(*it, token);
      ++it;
    }
  }
}

TEST_P(DecodeLoops, AreLeftWhereTheyAreByRestoreAndReset) {
  Session session = prompted(*device_);
  const Snapshot snapshot = session.snapshot();
  Session reference = prompted(*host_);
  const std::vector<int> truth = generate(reference, kGreedy);
  for (int i = 0; i < 3; ++i) {
    {
      Generation generation = session.generate(kDrawn);
      auto it = generation.begin();
      for (int k = 0; k < i * 5; ++k) ++it;
      session.restore(snapshot);
    }
    EXPECT_EQ(generate(session, kGreedy), truth);
    session.reset();
    EXPECT_EQ(session.position(), 0);
    session.restore(snapshot);
  }
}

// A state that is none gives logits that are none.
TEST_P(DecodeLoops, SayWhyATokenCannotBeSampled) {
  const auto broken = [](const Model& model) {
    Session session = prompted(model);
    auto impl = std::make_shared<Snapshot::Impl>(session.snapshot().impl());
    for (float& v : impl->state) v = NAN;
    session.restore(Snapshot(std::move(impl)));
    session.step(1);
    std::string said = "nothing";
    try {
      generate(session, kGreedy);
    } catch (const Error& error) {
      said = error.what();
    }
    return said;
  };
  EXPECT_EQ(broken(*device_), broken(*host_));
  EXPECT_NE(broken(*host_), "nothing");
}

INSTANTIATE_TEST_SUITE_P(Architectures, DecodeLoops,
                         ::testing::Values(Architecture::mamba2, Architecture::mamba1),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

}  // namespace
}  // namespace adder
