// Models on a CUDA device beside the same models on the CPU.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "adder/error.h"
#include "adder/model.h"
#include "tests/model/feed.h"
#include "tests/model/rounding_backend.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using test::Feed;
using test::greedy;
using test::random_ids;
using test::Rows;

class BackendCuda : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string why = test::why_no_device();
    if (!why.empty()) GTEST_SKIP() << why;
  }

  static Model load(const std::string& device, const std::string& dtype = "f32") {
    return Model::load(std::filesystem::path("tests/data/golden") / GetParam(),
                       {.device = device, .dtype = dtype});
  }
};

constexpr double kFloatTolerance = 2e-5;

TEST_P(BackendCuda, LogitsEqualTheCpus) {
  const Model cpu = load("cpu");
  const Model cuda = load("cuda");
  for (std::int64_t count : {1, 2, 9, 64, 300, 1000}) {
    const Rows rows{random_ids(cpu, count, 1)};
    NetworkState cpu_state = Feed(cpu).new_state(1);
    NetworkState cuda_state = Feed(cuda).new_state(1);
    const auto truth = test::to_double(Feed(cpu).logits(rows, cpu_state));
    EXPECT_LE(test::relative_error(Feed(cuda).logits(rows, cuda_state), truth), kFloatTolerance)
        << count << " tokens";
  }
}

// Bug 5: sequences of different lengths need no padding, so none can leak.
TEST_P(BackendCuda, ARaggedBatchEqualsItsRowsAlone) {
  const Model model = load("cuda");
  const Feed feed(model);
  const std::vector<std::int64_t> lengths{5, 1, 0, 67, 2, 130, 3};
  NetworkState together = feed.new_state(std::ssize(lengths));
  std::vector<NetworkState> alone;
  for (std::size_t s = 0; s < lengths.size(); ++s) alone.push_back(feed.new_state(1));
  const auto width = static_cast<std::size_t>(model.config().padded_vocab_size);
  for (std::size_t call = 0; call < 3; ++call) {
    Rows rows;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      const std::int64_t count = call == 2 ? 1 : lengths[(s + call) % lengths.size()];
      rows.push_back(random_ids(model, count, 10 * s + call));
    }
    const std::vector<float> got = feed.logits(rows, together);
    std::size_t at = 0;
    for (std::size_t s = 0; s < rows.size(); ++s) {
      if (rows[s].empty()) continue;
      const auto truth = test::to_double(feed.logits({rows[s]}, alone[s]));
      EXPECT_LE(test::relative_error(std::span(got).subspan(at, rows[s].size() * width), truth),
                kFloatTolerance)
          << "call " << call << ", sequence " << s;
      at += rows[s].size() * width;
    }
  }
}

TEST_P(BackendCuda, LastTokensSkipsEmptySequences) {
  const Model model = load("cuda");
  Backend& backend = *model.impl().backend;
  Tensor x = backend.zeros(std::vector<std::int64_t>{4, 2});
  backend.assign(x, std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
  const Tensor last = backend.last_tokens(x, Sequences({0, 2, 2, 3, 4}));
  EXPECT_TRUE(test::same_bits(Feed(model).values(last), std::vector<float>{2, 3, 4, 5, 6, 7}));
}

TEST_P(BackendCuda, APromptInPiecesEqualsOnePass) {
  const Model model = load("cuda");
  const std::vector<int> ids = random_ids(model, 200, 3);
  Session whole = model.new_session();
  whole.prefill(ids);
  const std::vector<float> logits(whole.logits().begin(), whole.logits().end());
  for (std::size_t piece : {1U, 7U, 64U, 150U}) {
    Session session = model.new_session();
    for (std::size_t first = 0; first < ids.size(); first += piece) {
      session.prefill(std::span(ids).subspan(first, std::min(piece, ids.size() - first)));
    }
    EXPECT_LE(test::relative_error(session.logits(), test::to_double(logits)), kFloatTolerance)
        << piece;
  }
}

// What 16 bits cost plain loops is what they may cost here.
TEST_P(BackendCuda, SixteenBitsAreAsGoodAsPlainLoops) {
  for (const char* dtype : {"bf16", "f16"}) {
    const Model cpu = load("cpu", dtype);
    const Model cuda = load("cuda", dtype);
    test::RoundingBackend plain(*cpu.impl().backend,
                                dtype == std::string("bf16") ? DType::bf16 : DType::f16);
    double plain_error = 0;
    double error = 0;
    for (std::uint64_t stream = 0; stream < 4; ++stream) {
      for (std::int64_t count : {1, 20, 300}) {
        const Rows rows{random_ids(cpu, count, stream)};
        NetworkState states[] = {Feed(cpu).new_state(1), Feed(cpu).new_state(1),
                                 Feed(cuda).new_state(1)};
        const auto truth = test::to_double(Feed(cpu).logits(rows, states[0]));
        plain_error = std::max(
            plain_error, test::relative_error(Feed(cpu, plain).logits(rows, states[1]), truth));
        error = std::max(error, test::relative_error(Feed(cuda).logits(rows, states[2]), truth));
      }
    }
    EXPECT_GT(plain_error, 1e-4) << dtype;  // else it would show nothing
    EXPECT_LE(error, 2 * plain_error) << dtype;
  }
}

TEST_P(BackendCuda, SnapshotsGoOnElsewhere) {
  const Model cpu = load("cpu");
  const Model cuda = load("cuda");
  const std::vector<int> ids = random_ids(cpu, 90, 5);
  Session reference = cpu.new_session();
  reference.prefill(ids);
  const std::vector<int> truth = greedy(reference, 32);
  for (const auto& [from, to] :
       {std::pair{&cpu, &cuda}, std::pair{&cuda, &cpu}, std::pair{&cuda, &cuda}}) {
    Session first = from->new_session();
    first.prefill(ids);
    const Snapshot snapshot = first.snapshot();
    const std::vector<std::byte> bytes = snapshot.serialize();
    Session second = to->new_session();
    EXPECT_EQ(second.restore(Snapshot::parse(bytes, "snapshot", *to)), 90);
    EXPECT_EQ(greedy(second, 32), truth);
    EXPECT_EQ(greedy(first, 32), truth) << "the session it was taken from";
  }
}

TEST_P(BackendCuda, RunsAgreeBitForBit) {
  const Model model = load("cuda", "bf16");
  const std::vector<int> ids = random_ids(model, 700, 6);
  std::vector<float> before;
  for (int i = 0; i < 3; ++i) {
    Session session = model.new_session();
    session.prefill(ids);
    session.step(1);
    const std::vector<float> got(session.logits().begin(), session.logits().end());
    if (i > 0) {
      EXPECT_TRUE(test::same_bits(got, before));
    }
    before = got;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, BackendCuda,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba1-original",
                                           "mamba2-original", "mamba2-original-groups"),
                         test::CheckpointName());

// ---- the bundled model --------------------------------------------------------------------------

using BooksCuda = test::OnDevice;

TEST_F(BooksCuda, GreedyContinuationsAreIdentical) {
  const auto expected = nlohmann::json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  const Model model = Model::load("models/books-11m", {.device = "cuda"});
  ASSERT_EQ(expected["greedy"].size(), 5U);
  for (const auto& example : expected["greedy"]) {
    Session session = model.new_session();
    session.prefill(example["prompt_ids"].get<std::vector<int>>());
    EXPECT_EQ(greedy(session, 64), example["greedy_ids"].get<std::vector<int>>())
        << example["prompt"];
  }
}

TEST_F(BooksCuda, LikelihoodsMatchToOneTenThousandth) {
  const auto expected = nlohmann::json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  const Model model = Model::load("models/books-11m", {.device = "cuda"});
  const auto truth = expected["score"]["nll"].get<std::vector<double>>();
  Session session = model.new_session();
  const std::vector<double> got = session.score(expected["score"]["ids"].get<std::vector<int>>());
  ASSERT_EQ(got.size(), truth.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], truth[i], 1e-4) << i;
}

TEST_F(BooksCuda, DevicesThatAreNotThereAreNamed) {
  EXPECT_EQ(
      test::error_of([] { Model::load("models/books-11m", {.device = "cuda:99"}); }).substr(0, 33),
      "cuda: there is no device 99, expe");
}

}  // namespace
}  // namespace adder
