// Models whose states of recurrences are held in bf16 on a CUDA device.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "adder/model.h"
#include "tests/model/feed.h"
#include "tests/model/rounding_states_backend.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

namespace adder {
namespace {

using test::Feed;
using test::greedy;
using test::random_ids;
using test::Rows;

class StateDTypeCuda : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string why = test::why_no_device();
    if (!why.empty()) GTEST_SKIP() << why;
  }

  static Model load(const std::string& device, const std::string& state_dtype) {
    return Model::load(std::filesystem::path("tests/data/golden") / GetParam(),
                       {.device = device, .state_dtype = state_dtype});
  }
};

// Tokens of each sequence of a batch in each call: passes, then steps.
std::vector<Rows> random_calls(const Model& model, std::uint64_t stream) {
  const std::vector<std::vector<std::int64_t>> lengths{{1, 1, 1}, {40, 0, 5}, {1, 130, 0}};
  std::vector<Rows> calls;
  for (std::size_t call = 0; call < 60; ++call) {
    Rows rows;
    for (std::size_t s = 0; s < 3; ++s) {
      const std::int64_t count = call < lengths.size() ? lengths[call][s] : 1;
      rows.push_back(random_ids(model, count, 1000 * stream + 10 * call + s));
    }
    calls.push_back(std::move(rows));
  }
  return calls;
}

std::vector<float> logits_of(const Feed& feed, const std::vector<Rows>& calls) {
  NetworkState state = feed.new_state(3);
  std::vector<float> out;
  for (const Rows& rows : calls) {
    const std::vector<float> logits = feed.logits(rows, state);
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

// What rounding states costs plain loops is what it may cost here, in a batch of passes and steps.
TEST_P(StateDTypeCuda, LogitsAreAsGoodAsPlainLoops) {
  const Model cpu = load("cpu", "f32");
  const Model cuda = load("cuda", "bf16");
  test::RoundingStatesBackend plain(*cpu.impl().backend);
  double plain_error = 0;
  double error = 0;
  for (std::uint64_t stream = 0; stream < 3; ++stream) {
    const std::vector<Rows> calls = random_calls(cpu, stream);
    const auto truth = test::to_double(logits_of(Feed(cpu), calls));
    plain_error =
        std::max(plain_error, test::relative_error(logits_of(Feed(cpu, plain), calls), truth));
    error = std::max(error, test::relative_error(logits_of(Feed(cuda), calls), truth));
  }
  EXPECT_GT(plain_error, 1e-4);  // else it would show nothing
  EXPECT_LE(error, 2 * plain_error);
  EXPECT_GE(error, plain_error / 2);  // it is the states that are rounded
}

TEST_P(StateDTypeCuda, SequencesWithoutTokensKeepTheirBits) {
  const Model model = load("cuda", "bf16");
  const Feed feed(model);
  NetworkState state = feed.new_state(3);
  feed.logits({random_ids(model, 30, 1), random_ids(model, 20, 2), random_ids(model, 10, 3)},
              state);
  const auto values = [&] {
    std::vector<std::vector<float>> out;
    for (const LayerState& layer : state) {
      EXPECT_EQ(layer.ssm.view.dtype, DType::bf16);
      EXPECT_EQ(layer.conv.view.dtype, DType::f32);
      out.push_back(feed.values(layer.ssm));
    }
    return out;
  };
  const auto before = values();
  feed.logits({random_ids(model, 1, 4), {}, random_ids(model, 40, 5)}, state);
  const auto after = values();
  for (std::size_t layer = 0; layer < before.size(); ++layer) {
    const std::size_t size = before[layer].size() / 3;
    const auto part = [&](const std::vector<float>& v, std::size_t s) {
      return std::span(v).subspan(s * size, size);
    };
    EXPECT_TRUE(test::same_bits(part(after[layer], 1), part(before[layer], 1)));
    EXPECT_FALSE(test::same_bits(part(after[layer], 0), part(before[layer], 0)));
    EXPECT_FALSE(test::same_bits(part(after[layer], 2), part(before[layer], 2)));
  }
}

TEST_P(StateDTypeCuda, SnapshotsGoFromOneDTypeToTheOther) {
  const Model wide = load("cuda", "f32");
  const Model narrow = load("cuda", "bf16");
  const std::vector<int> ids = random_ids(wide, 90, 5);
  Session first = wide.new_session();
  first.prefill(ids);
  const Snapshot exact = first.snapshot();
  Session second = narrow.new_session();
  EXPECT_EQ(second.restore(exact), 90);
  const Snapshot rounded = second.snapshot();
  const std::vector<float>& from = exact.impl().state;
  const std::vector<float>& to = rounded.impl().state;
  ASSERT_EQ(from.size(), to.size());
  EXPECT_LE(test::relative_error(to, test::to_double(from)), 0x1p-9);
  EXPECT_FALSE(test::same_bits(to, from));
  // And back: float32 has room for all of it.
  Session third = wide.new_session();
  third.restore(rounded);
  EXPECT_TRUE(test::same_bits(third.snapshot().impl().state, to));
  EXPECT_TRUE(test::same_bits(third.logits(), first.logits()));  // of the last token before
}

// What a state is rounded to depends on it and the token alone.
TEST_P(StateDTypeCuda, ASnapshotGoesOnWithTheSameBits) {
  const Model model = load("cuda", "bf16");
  Session first = model.new_session();
  first.prefill(random_ids(model, 70, 6));
  for (int token : random_ids(model, 9, 7)) first.step(token);
  Session second = model.new_session();
  second.restore(first.snapshot());
  Session third = first.fork();
  for (int token : random_ids(model, 40, 8)) {
    for (Session* session : {&first, &second, &third}) session->step(token);
  }
  for (Session* session : {&second, &third}) {
    EXPECT_TRUE(test::same_bits(session->logits(), first.logits()));
    EXPECT_TRUE(test::same_bits(session->snapshot().impl().state, first.snapshot().impl().state));
  }
}

TEST_P(StateDTypeCuda, GenerationIsReproducible) {
  const Model model = load("cuda", "bf16");
  const std::vector<int> ids = random_ids(model, 50, 9);
  std::vector<int> tokens;
  std::vector<float> state;
  for (int run = 0; run < 2; ++run) {
    Session session = model.new_session();
    session.prefill(ids);
    const std::vector<int> got = greedy(session, 40);
    const Snapshot snapshot = session.snapshot();
    if (run > 0) {
      EXPECT_EQ(got, tokens);
      EXPECT_TRUE(test::same_bits(snapshot.impl().state, state));
    }
    tokens = got;
    state = snapshot.impl().state;
  }
}

TEST_P(StateDTypeCuda, StateBytesAreThoseThatAreHeld) {
  const Model wide = load("cuda", "f32");
  const Model narrow = load("cuda", "bf16");
  EXPECT_EQ(wide.state_dtype(), DType::f32);
  EXPECT_EQ(narrow.state_dtype(), DType::bf16);
  std::int64_t bytes = 0;
  for (const LayerState& layer : Feed(narrow).new_state(1)) {
    bytes += layer.conv.view.size_bytes() + layer.ssm.view.size_bytes();
  }
  EXPECT_EQ(narrow.state_bytes(), bytes);
  EXPECT_LT(narrow.state_bytes(), wide.state_bytes());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, StateDTypeCuda,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba2-original-groups"),
                         test::CheckpointName());

// ---- the bundled model --------------------------------------------------------------------------

using BooksStateDTypeCuda = test::OnDevice;

// Token by token, so that states are rounded after each.
TEST_F(BooksStateDTypeCuda, LikelihoodsAreThoseOfFloatStatesInTheMean) {
  const auto expected = nlohmann::json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  const auto truth = expected["score"]["nll"].get<std::vector<double>>();
  const Model model =
      Model::load("models/books-11m", {.device = "cuda", .state_dtype = "bf16", .piece_tokens = 1});
  Session session = model.new_session();
  const std::vector<double> got = session.score(expected["score"]["ids"].get<std::vector<int>>());
  ASSERT_EQ(got.size(), truth.size());
  double sum_of_squares = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    sum_of_squares += (got[i] - truth[i]) * (got[i] - truth[i]);
  }
  const auto count = static_cast<double>(got.size());
  const double deviation = std::sqrt(sum_of_squares / count);
  EXPECT_LE(deviation, 0.02);
  const double mean = (std::accumulate(got.begin(), got.end(), 0.0) -
                       std::accumulate(truth.begin(), truth.end(), 0.0)) /
                      count;
  EXPECT_LE(std::abs(mean), 5 * deviation / std::sqrt(count));
}

}  // namespace
}  // namespace adder
