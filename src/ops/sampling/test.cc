#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "adder/error.h"
#include "ops/sampling/portable_exp.h"
#include "ops/sampling/ref.h"
#include "ops/sampling/rng.h"
#include "ops/sampling/sampling.h"
#include "ops/sampling/weights.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using test::error_of;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr SamplingParams kUnfiltered{
    .repeat_penalty = 1.0F, .temperature = 1.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0.0F};

int sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t seed = 0,
           std::span<const int> recent = {}) {
  Rng rng(seed);
  SamplingWorkspace workspace;
  return sample_token(logits, params, recent, rng, workspace);
}

// ---- generator ---------------------------------------------------------------------------------

TEST(Rng, GivesThePublishedNumbers) {
  // Known answers of the authors' Random123 library for philox4x32 with 10 rounds.
  using Block = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32_10({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                          {0xffffffffu, 0xffffffffu}),
            (Block{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                          {0xa4093822u, 0x299f31d0u}),
            (Block{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Rng, ContinuesFromItsPosition) {
  Rng rng(7);
  for (int i = 0; i < 5; ++i) rng.next();
  Rng resumed(rng.seed(), rng.position());
  EXPECT_EQ(resumed, rng);
  EXPECT_EQ(resumed.next(), rng.next());
  EXPECT_NE(Rng(7).next(), Rng(8).next());
}

TEST(Rng, IsUniform) {
  // Chi-square over 256 cells: 255 degrees of freedom, standard deviation 22.6.
  constexpr int kDraws = 1 << 16;
  std::vector<int> cells(256);
  Rng rng(3);
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++cells[static_cast<std::size_t>(u * 256)];
  }
  double chi_square = 0;
  for (int n : cells) chi_square += (n - kDraws / 256.0) * (n - kDraws / 256.0) / (kDraws / 256.0);
  EXPECT_NEAR(chi_square, 255, 5 * 22.6);
}

// ---- softmax and scores ------------------------------------------------------------------------

TEST(Softmax, ExpIsWithinTwoUlp) {
  test::Random random;
  for (int i = 0; i < 20000; ++i) {
    const double v = -std::exp(random.uniform(-20, std::log(708.0)));
    const double expected = std::exp(v);
    const double ulp = std::nextafter(expected, kInf) - expected;
    EXPECT_NEAR(portable_exp(v), expected, 2 * ulp) << v;
  }
  EXPECT_EQ(portable_exp(0.0), 1.0);
  EXPECT_EQ(portable_exp(-0.0), 1.0);
  EXPECT_EQ(portable_exp(-709.0), 0.0);
  EXPECT_EQ(portable_exp(-static_cast<double>(kInf)), 0.0);
}

TEST(Softmax, AgreesWithTheDefinition) {
  for (std::int64_t n : {1, 2, 15, 16, 17, 1000}) {
    for (float temperature : {0.3F, 1.0F, 4.0F}) {
      const auto logits = test::Random(static_cast<std::uint64_t>(n)).normals(n, 10.0);
      std::vector<double> truth(logits.size());
      double sum = 0;
      for (std::size_t i = 0; i < truth.size(); ++i) {
        truth[i] = std::exp(static_cast<double>(logits[i]) / static_cast<double>(temperature));
        sum += truth[i];
      }
      for (double& v : truth) v /= sum;
      std::vector<float> got(logits.size());
      softmax(logits, temperature, got);
      EXPECT_TRUE(test::all_close(got, truth, 1e-7));
    }
  }
}

TEST(Softmax, ScoresAreAccurateInTheTails) {
  // e^-50 beside 1: in float32, or as log(sum) - logit, nothing of it would be left.
  const std::vector<float> logits{1000.0F, 950.0F, -kInf};
  const double tail = std::exp(-50.0);
  EXPECT_NEAR(negative_log_likelihood(logits, 1), 50 + std::log1p(tail), 1e-12);
  EXPECT_NEAR(negative_log_likelihood(logits, 0), 0, 1e-15);
  EXPECT_EQ(negative_log_likelihood(logits, 2), static_cast<double>(kInf));
  std::vector<double> logs(3);
  log_softmax(logits, logs);
  EXPECT_NEAR(logs[1], -50, 1e-12);
  EXPECT_EQ(logs[2], -static_cast<double>(kInf));

  test::Random random;
  const auto many = random.normals(50280, 3.0);
  long double sum = 0;
  for (float v : many) sum += std::exp(static_cast<long double>(v));
  const auto expected = static_cast<double>(std::log(sum) - static_cast<long double>(many[1234]));
  EXPECT_NEAR(negative_log_likelihood(many, 1234), expected, 1e-12);
}

TEST(Softmax, ArgmaxTakesTheFirstOfEqualsAndNoPadding) {
  std::vector<float> logits(40, -1.0F);
  logits[33] = logits[17] = 2.0F;
  logits[39] = 5.0F;
  EXPECT_EQ(argmax(std::span(logits).first(39)), 17);
  EXPECT_EQ(argmax(logits), 39);
  EXPECT_EQ(argmax(std::vector<float>{-3.0F}), 0);
}

TEST(Softmax, NamesTheLogitThatIsWrong) {
  for (std::size_t at : {0, 5, 16, 33}) {
    std::vector<float> logits(34, 1.0F);
    logits[at] = kNan;
    EXPECT_EQ(error_of([&] { argmax(logits); }), "argmax: the logit of token " +
                                                     std::to_string(at) +
                                                     " is nan, expected a finite number or -inf");
    logits[at] = kInf;
    EXPECT_EQ(error_of([&] { sample(logits, kUnfiltered); }),
              "sample_token: the logit of token " + std::to_string(at) +
                  " is inf, expected a finite number or -inf");
  }
  const std::vector<float> none(20, -kInf);
  EXPECT_EQ(error_of([&] { negative_log_likelihood(none, 0); }),
            "negative_log_likelihood: all 20 logits are -inf, expected at least one finite number");
  EXPECT_EQ(error_of([] { argmax({}); }),
            "argmax: there are no logits, expected one for each token");
  const std::vector<float> good(20, 0.0F);
  EXPECT_EQ(error_of([&] { negative_log_likelihood(good, 20); }),
            "negative_log_likelihood: target is 20, expected a token id below 20");
  std::vector<float> out(19);
  EXPECT_THROW(softmax(good, 1.0F, out), Error);
  EXPECT_THROW(softmax(good, 0.0F, std::span(out)), Error);
}

// ---- weights -----------------------------------------------------------------------------------

TEST(Weights, TheirSumFitsItsInteger) {
  for (std::uint64_t vocab_size : {1u, 2u, 1000u, 50280u, 65535u, 65536u, 262144u, 0x7fffffffu}) {
    const double scale = weight_scale(vocab_size);
    EXPECT_EQ(token_weight(3.0F, 3.0F, 10.0, scale), static_cast<std::uint64_t>(scale));
    EXPECT_LT(static_cast<double>(vocab_size) * scale, 0x1p63) << vocab_size;
    EXPECT_LE(scale, 0x1p52);
    EXPECT_TRUE(scale == 0x1p52 || static_cast<double>(vocab_size) * scale >= 0x1p62) << vocab_size;
  }
  const double scale = weight_scale(50280);
  EXPECT_EQ(scale, 0x1p47);
  EXPECT_EQ(token_weight(-kInf, 3.0F, 1.0, scale), 0u);
  EXPECT_NEAR(static_cast<double>(token_weight(1.0F, 3.0F, 2.0, scale)), std::exp(-4.0) * scale,
              0.51);
}

TEST(Weights, ADrawIsAShareOfTheSum) {
  EXPECT_EQ(drawn_weight(0, 1000), 0u);
  EXPECT_EQ(drawn_weight(~std::uint64_t{0}, 1000), 999u);
  EXPECT_EQ(drawn_weight(std::uint64_t{1} << 63, 1001), 500u);
  EXPECT_EQ(drawn_weight(~std::uint64_t{0}, ~std::uint64_t{0}), ~std::uint64_t{0} - 1);
  EXPECT_EQ(drawn_weight(0x123456789abcdef0u, 0xfedcba9876543210u), 0x121fa00ad77d7422u);
}

TEST(Weights, TheLeastThatReachesAShare) {
  EXPECT_EQ(top_p_weight(0.0F, 1000), 1u);
  EXPECT_EQ(top_p_weight(0.5F, 1000), 500u);
  EXPECT_EQ(top_p_weight(0.5F, 1001), 501u);
  EXPECT_LE(top_p_weight(std::nextafter(1.0F, 0.0F), (std::uint64_t{1} << 63) - 1),
            (std::uint64_t{1} << 63) - 1);
  EXPECT_EQ(min_p_weight(0.0F, 0x1p47), 0u);
  EXPECT_EQ(min_p_weight(1.0F, 0x1p47), std::uint64_t{1} << 47);
  EXPECT_EQ(min_p_weight(1e-20F, 0x1p47), 1u);
}

// ---- sampling ----------------------------------------------------------------------------------

// Counts of `draws` tokens agree with `expected` probabilities: no token that is ruled out, and a
// chi-square within five standard deviations of its mean.
void expect_distribution(std::span<const float> logits, const SamplingParams& params,
                         std::span<const int> recent) {
  constexpr int kDraws = 5000;
  const auto expected = ref::token_probabilities(logits, params, recent);
  std::vector<int> counts(logits.size());
  Rng rng(11);
  SamplingWorkspace workspace;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(sample_token(logits, params, recent, rng, workspace))];
  }
  // Tokens that are expected fewer than ten times are taken together.
  double chi_square = 0;
  int cells = 0;
  double rare_expected = 0;
  int rare_count = 0;
  const auto add_cell = [&](double mean, int count) {
    chi_square += (count - mean) * (count - mean) / mean;
    ++cells;
  };
  for (std::size_t id = 0; id < counts.size(); ++id) {
    if (expected[id] == 0) {
      EXPECT_EQ(counts[id], 0) << "token " << id << " is ruled out";
    } else if (expected[id] * kDraws < 10) {
      rare_expected += expected[id] * kDraws;
      rare_count += counts[id];
    } else {
      add_cell(expected[id] * kDraws, counts[id]);
    }
  }
  if (rare_expected > 1) add_cell(rare_expected, rare_count);
  EXPECT_LE(chi_square, cells - 1 + 5 * std::sqrt(2.0 * cells));
}

TEST(Sampling, DrawsFromTheDefinedDistribution) {
  test::Random random;
  for (std::int64_t vocab_size : {1, 2, 17, 200}) {
    const auto logits = random.normals(vocab_size, 2.0);
    const std::vector<int> recent{0, static_cast<int>(vocab_size) - 1, 0};
    for (float temperature : {0.7F, 1.5F}) {
      for (int top_k : {0, 1, 5, 40, 2000}) {
        for (float top_p : {1.0F, 0.8F, 0.0F}) {
          for (float min_p : {0.0F, 0.1F}) {
            const SamplingParams params{1.3F, temperature, top_k, top_p, min_p};
            SCOPED_TRACE(::testing::Message()
                         << "vocab_size " << vocab_size << " temperature " << temperature
                         << " top_k " << top_k << " top_p " << top_p << " min_p " << min_p);
            expect_distribution(logits, params, recent);
          }
        }
      }
    }
  }
}

TEST(Sampling, KeepsExactlyWhatTheDefinitionKeepsOfALargeVocabulary) {
  // Many equal logits, so that which of them survive matters, in an order that makes every block of
  // the selection interesting.
  constexpr int kVocab = 5000;
  test::Random random;
  std::vector<float> logits(kVocab);
  for (int descending : {0, 1, 2}) {
    for (int i = 0; i < kVocab; ++i) {
      const int value = descending == 0   ? i
                        : descending == 1 ? kVocab - i
                                          : static_cast<int>(random.integer(0, kVocab));
      logits[static_cast<std::size_t>(i)] = static_cast<float>(value / 7) * 0.01F;
    }
    for (int top_k : {1, 3, 40, 1000, 4999}) {
      SamplingParams params = kUnfiltered;
      params.top_k = top_k;
      const auto expected = ref::token_probabilities(logits, params, {});
      SamplingWorkspace workspace;
      Rng rng(1);
      sample_token(logits, params, {}, rng, workspace);
      EXPECT_EQ(workspace.candidates.size(), static_cast<std::size_t>(top_k));
      for (const auto& c : workspace.candidates) {
        EXPECT_GT(expected[static_cast<std::size_t>(c.id)], 0) << "top_k " << top_k;
      }
    }
    for (float top_p : {0.01F, 0.5F, 0.999F}) {
      SamplingParams params = kUnfiltered;
      params.top_p = top_p;
      const auto expected = ref::token_probabilities(logits, params, {});
      SamplingWorkspace workspace;
      Rng rng(1);
      sample_token(logits, params, {}, rng, workspace);
      const auto kept =
          std::count_if(expected.begin(), expected.end(), [](double p) { return p > 0; });
      // One more or less where the sum meets top_p within rounding.
      EXPECT_NEAR(static_cast<double>(workspace.candidates.size()), static_cast<double>(kept), 1.0);
      EXPECT_LT(kept, kVocab);
    }
  }
}

TEST(Sampling, TheSameSeedGivesTheSameTokens) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i * 7919 % 1000) * 0.01F;
  }
  const auto tokens = [&](const SamplingParams& params, std::uint64_t seed) {
    std::vector<int> out;
    Rng rng(seed);
    SamplingWorkspace workspace;
    for (int i = 0; i < 8; ++i) out.push_back(sample_token(logits, params, out, rng, workspace));
    return out;
  };
  EXPECT_EQ(tokens({}, 1), (std::vector<int>{914, 593, 99, 642, 704, 210, 284, 136}));
  EXPECT_EQ(
      tokens(
          {.repeat_penalty = 1.5F, .temperature = 1.0F, .top_k = 0, .top_p = 1.0F, .min_p = 0.0F},
          42),
      (std::vector<int>{471, 322, 655, 667, 852, 285, 742, 408}));
  EXPECT_EQ(tokens({.temperature = 0.0F}, 1), tokens({.temperature = 0.0F}, 2));
}

TEST(Sampling, GreedyTakesNoRandomNumber) {
  const std::vector<float> logits{1.0F, 3.0F, 3.0F, 2.0F};
  Rng rng(5);
  SamplingWorkspace workspace;
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, {}, rng, workspace), 1);
  EXPECT_EQ(rng.position(), 0u);
  sample_token(logits, {}, {}, rng, workspace);
  EXPECT_EQ(rng.position(), 1u);
}

TEST(Sampling, ThePenaltyTakesEachTokenOnce) {
  // Positive logits are divided, negative multiplied: 3 becomes 1.5, below 2; -1 becomes -2.
  const std::vector<float> positive{3.0F, 2.0F, 1.6F};
  const std::vector<float> negative{-1.0F, -1.5F, -1.9F};
  const std::vector<int> once{0};
  const std::vector<int> often{0, 1, 0, 0, 1};
  const SamplingParams greedy{.repeat_penalty = 2.0F, .temperature = 0};
  EXPECT_EQ(sample(positive, greedy, 0, once), 1);
  EXPECT_EQ(sample(positive, greedy, 0, often), 2);
  EXPECT_EQ(sample(negative, greedy, 0, once), 1);
  EXPECT_EQ(sample(negative, greedy, 0, often), 2);
  // Taken three times, these would fall behind the other token.
  const std::vector<int> thrice{0, 0, 0};
  EXPECT_EQ(sample(std::vector<float>{3.0F, 1.2F}, greedy, 0, thrice), 0);
  EXPECT_EQ(sample(std::vector<float>{-1.0F, -2.5F}, greedy, 0, thrice), 0);
  const std::vector<int> outside{3};
  EXPECT_EQ(error_of([&] { sample(positive, greedy, 0, outside); }),
            "sample_token: recent contains token id 3, expected ids below 3");
}

TEST(Sampling, ExtremesLeaveOneToken) {
  std::vector<float> only(100, -kInf);
  only[77] = -1e30F;
  const std::vector<float> wide{-1e30F, 1e30F, 0.0F};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(sample(only, kUnfiltered, seed), 77);
    EXPECT_EQ(sample(only, {}, seed), 77);
    EXPECT_EQ(sample(wide, kUnfiltered, seed), 1);
    EXPECT_EQ(sample(std::vector<float>{2.0F, 2.1F, 2.2F}, {.temperature = 1e-30F}, seed), 2);
    EXPECT_EQ(sample(std::vector<float>{-5.0F}, {}, seed), 0);
  }
}

TEST(Sampling, ParametersAreChecked) {
  const auto message = [](const SamplingParams& params) {
    return error_of([&] { validate(params); });
  };
  EXPECT_EQ(message({}), "no error");
  EXPECT_EQ(message({.temperature = -0.5F}),
            "sampling: temperature is -0.5, expected a finite number that is not negative");
  EXPECT_EQ(message({.top_k = -1}),
            "sampling: top_k is -1, expected a number that is not negative");
  EXPECT_EQ(message({.top_p = 1.5F}), "sampling: top_p is 1.5, expected a number from 0 to 1");
  EXPECT_EQ(message({.min_p = -0.5F}), "sampling: min_p is -0.5, expected a number from 0 to 1");
  EXPECT_EQ(message({.repeat_penalty = 0}),
            "sampling: repeat_penalty is 0, expected a finite number above 0");
  EXPECT_NE(message({.temperature = kNan}), "no error");
  EXPECT_NE(message({.top_p = kNan}), "no error");
}

}  // namespace
}  // namespace adder
