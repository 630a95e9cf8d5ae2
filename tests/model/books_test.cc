// The bundled model against a float64 token-by-token recurrence (tests/data/books-11m).

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "adder/model.h"
#include "core/cpu_tier.h"

namespace adder {
namespace {

const nlohmann::json& expected() {
  static const nlohmann::json value =
      nlohmann::json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  return value;
}

std::vector<int> greedy(const Model& model, const std::vector<int>& prompt, std::int64_t count) {
  Session session = model.new_session();
  session.prefill(prompt);
  std::vector<int> out;
  for (int token : session.generate(
           {.max_tokens = count, .sampling = {.temperature = 0}, .stop_at_eos = false})) {
    out.push_back(token);
  }
  return out;
}

TEST(Books, GreedyContinuationsAreIdenticalInEveryTier) {
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (const char* dtype : {"f32", "bf16"}) {  // the same values: the checkpoint is bf16
      const Model model = Model::load("models/books-11m", {.dtype = dtype});
      ASSERT_EQ(expected()["greedy"].size(), 5U);
      for (const auto& example : expected()["greedy"]) {
        const auto prompt = example["prompt_ids"].get<std::vector<int>>();
        const auto truth = example["greedy_ids"].get<std::vector<int>>();
        ASSERT_EQ(truth.size(), 64U);
        EXPECT_EQ(greedy(model, prompt, 64), truth)
            << name_of(tier) << " " << dtype << ": " << example["prompt"];
      }
    }
  }
}

// The likelihood of a text that no model wrote: what a model says itself would be worse with any
// other weights.
double nll_of_text(const std::string& dtype) {
  const Model model = Model::load("models/books-11m", {.dtype = dtype});
  double sum = 0;
  for (double nll : model.new_session().score(expected()["score"]["ids"].get<std::vector<int>>())) {
    sum += nll;
  }
  return sum;
}

TEST(Books, QuantizedWeightsAreNearlyAsGood) {
  const double truth = nll_of_text("bf16");
  const double int8 = nll_of_text("int8");
  const double int4 = nll_of_text("int4");
  EXPECT_NEAR(int8 / truth, 1, 0.002);
  EXPECT_NEAR(int4 / truth, 1, 0.02);
  EXPECT_NE(int8, truth);
  EXPECT_NE(int4, int8);
}

TEST(Books, QuantizedModelsAreTheSameInEveryTier) {
  for (const char* dtype : {"int8", "int4"}) {
    std::vector<int> first;
    for (CpuTier tier : supported_cpu_tiers()) {
      const ScopedCpuTier scoped(tier);
      const Model model = Model::load("models/books-11m", {.dtype = dtype});
      EXPECT_EQ(name_of(model.weight_format()), dtype);
      const auto prompt = expected()["greedy"][0]["prompt_ids"].get<std::vector<int>>();
      const std::vector<int> tokens = greedy(model, prompt, 24);
      if (first.empty()) first = tokens;
      EXPECT_EQ(tokens, first) << name_of(tier) << " " << dtype;
    }
  }
}

TEST(Books, TextGoesInAndComesOut) {
  const Model model = Model::load("models/books-11m");
  for (const auto& example : expected()["greedy"]) {
    const std::vector<int> prompt = model.tokenizer().encode(example["prompt"].get<std::string>());
    EXPECT_EQ(prompt, example["prompt_ids"].get<std::vector<int>>());
    EXPECT_EQ(model.tokenizer().decode(greedy(model, prompt, 64)),
              example["greedy"].get<std::string>());
  }
}

TEST(Books, LikelihoodsMatchToOneTenThousandth) {
  const Model model = Model::load("models/books-11m", {.dtype = "f32"});
  const auto& score = expected()["score"];
  const auto ids = score["ids"].get<std::vector<int>>();
  const auto truth = score["nll"].get<std::vector<double>>();
  Session session = model.new_session();
  const std::vector<double> got = session.score(ids);
  ASSERT_EQ(got.size(), truth.size());
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], truth[i], 1e-4) << i;
    sum += got[i];
  }
  EXPECT_NEAR(sum, score["nll_sum"].get<double>(), 1e-3);

  // The logits of the last prediction: those before the last token.
  Session before_last = model.new_session();
  before_last.prefill(std::span(ids).first(ids.size() - 1));
  const auto last = score["last_logits_first8"].get<std::vector<double>>();
  for (std::size_t i = 0; i < last.size(); ++i) {
    EXPECT_NEAR(before_last.logits()[i], last[i], 1e-4) << i;
  }
}

TEST(Books, ScoringContinuesAcrossCalls) {
  const Model model = Model::load("models/books-11m");
  const auto ids = expected()["score"]["ids"].get<std::vector<int>>();
  Session whole = model.new_session();
  const std::vector<double> truth = whole.score(ids);
  Session pieces = model.new_session();
  std::vector<double> got;
  for (std::size_t begin = 0; begin < ids.size(); begin += 10) {
    const auto piece =
        std::span<const int>(ids).subspan(begin, std::min<std::size_t>(10, ids.size() - begin));
    const std::vector<double> part = pieces.score(piece);
    got.insert(got.end(), part.begin(), part.end());
  }
  ASSERT_EQ(got.size(), truth.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], truth[i], 1e-4) << i;
}

}  // namespace
}  // namespace adder
