// Networks on several sequences at once, below the session.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "adder/error.h"
#include "adder/model.h"
#include "backend/cpu/cpu_backend.h"
#include "models/random_weights.h"
#include "runtime/model_impl.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace adder {
namespace {

class NetworkTest : public ::testing::TestWithParam<const char*> {
 protected:
  NetworkTest()
      : model_(Model::load(std::filesystem::path("tests/data/golden") / GetParam())),
        backend_(*model_.impl().backend),
        network_(*model_.impl().network) {}

  std::vector<int> random_ids(std::int64_t count, std::uint64_t stream) const {
    test::Random random(stream);
    std::vector<int> out(static_cast<std::size_t>(count));
    for (int& id : out) id = static_cast<int>(random.integer(0, model_.config().vocab_size - 1));
    return out;
  }

  Tensor forward(const std::vector<std::vector<int>>& rows, NetworkState& state) {
    std::vector<int> ids;
    std::vector<std::int32_t> offsets{0};
    for (const auto& row : rows) {
      ids.insert(ids.end(), row.begin(), row.end());
      offsets.push_back(static_cast<std::int32_t>(ids.size()));
    }
    return network_.forward(backend_, backend_.upload_ids(ids), Sequences(offsets), state);
  }

  static std::vector<float> values(const Tensor& tensor) {
    return {tensor.span<float>().begin(), tensor.span<float>().end()};
  }

  Model model_;
  Backend& backend_;
  const Network& network_;
};

// Bug 5: sequences of different lengths need no padding, so none can leak; bug 9: a sequence may
// start inside another one's chunk; bug 13: neighbours do not matter.
TEST_P(NetworkTest, ARaggedBatchEqualsItsRowsAlone) {
  const std::vector<std::int64_t> lengths{5, 1, 0, 67, 2, 130, 3};
  std::vector<std::vector<int>> first;
  std::vector<std::vector<int>> second;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    first.push_back(random_ids(lengths[s], s));
    second.push_back(random_ids(lengths[lengths.size() - 1 - s], 100 + s));
  }
  NetworkState together = network_.new_state(backend_, std::ssize(lengths));
  std::vector<Tensor> got{forward(first, together), forward(second, together)};
  std::size_t at[2] = {0, 0};
  const auto width = static_cast<std::size_t>(network_.config().d_model);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    NetworkState alone = network_.new_state(backend_, 1);
    for (std::size_t call = 0; call < 2; ++call) {
      const std::vector<int>& row = call == 0 ? first[s] : second[s];
      const Tensor truth = forward({row}, alone);
      const auto rows = values(got[call]);
      const std::span<const float> mine(rows.data() + at[call] * width, row.size() * width);
      at[call] += row.size();
      if (row.empty()) continue;
      EXPECT_LE(test::relative_error(mine, test::to_double(values(truth))), 1e-6);
    }
    for (std::size_t layer = 0; layer < alone.size(); ++layer) {
      for (auto member : {&LayerState::conv, &LayerState::ssm}) {
        const Tensor& truth = alone[layer].*member;
        const Tensor& mine = together[layer].*member;
        const auto count = static_cast<std::size_t>(truth.view.numel());
        EXPECT_LE(test::relative_error(mine.span<float>().subspan(s * count, count),
                                       test::to_double(values(truth))),
                  1e-6);
      }
    }
  }
}

TEST_P(NetworkTest, AStepOfABatchEqualsStepsAlone) {
  NetworkState together = network_.new_state(backend_, 3);
  std::vector<NetworkState> alone;
  for (int s = 0; s < 3; ++s) alone.push_back(network_.new_state(backend_, 1));
  for (std::uint64_t t = 0; t < 10; ++t) {
    std::vector<std::vector<int>> rows;
    std::vector<float> truth;
    for (std::uint64_t s = 0; s < 3; ++s) {
      rows.push_back(random_ids(1, 10 * t + s));
      const auto row = values(forward({rows.back()}, alone[s]));
      truth.insert(truth.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(test::same_bits(values(forward(rows, together)), truth));
  }
}

TEST_P(NetworkTest, LaterTokensNeverChangeEarlierOnes) {
  std::vector<int> ids = random_ids(200, 0);
  NetworkState state = network_.new_state(backend_, 1);
  const auto truth = values(forward({ids}, state));
  const auto width = static_cast<std::size_t>(network_.config().d_model);
  for (std::size_t changed : {1U, 63U, 64U, 100U, 199U}) {
    std::vector<int> other = ids;
    other[changed] = (other[changed] + 1) % static_cast<int>(model_.config().vocab_size);
    NetworkState fresh = network_.new_state(backend_, 1);
    const auto got = values(forward({other}, fresh));
    const std::size_t before = changed * width;
    EXPECT_TRUE(test::same_bits(std::span(got).first(before), std::span(truth).first(before)));
    EXPECT_FALSE(test::same_bits(std::span(got).subspan(before), std::span(truth).subspan(before)));
  }
}

TEST_P(NetworkTest, LastTokensSkipsEmptySequences) {
  const std::vector<float> data{0, 1, 2, 3, 4, 5, 6, 7};
  Tensor x = backend_.zeros(std::vector<std::int64_t>{4, 2});
  backend_.assign(x, data);
  const Tensor last = backend_.last_tokens(x, Sequences({0, 2, 2, 3, 4}));
  EXPECT_TRUE(test::same_bits(values(last), std::vector<float>{2, 3, 4, 5, 6, 7}));
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, NetworkTest,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba2-original-groups"),
                         test::CheckpointName());

TEST(Sequences, RefusesOffsetsThatDecrease) {
  EXPECT_THROW(Sequences({0, 3, 2}), Error);
  EXPECT_THROW(Sequences({1, 3}), Error);
  EXPECT_THROW(Sequences(std::vector<std::int32_t>{}), Error);
  EXPECT_TRUE(Sequences({0, 1, 2}).is_step());
  EXPECT_FALSE(Sequences({0, 1, 1}).is_step());
}

TEST(RandomWeights, HaveThePublishedParameterCounts) {
  // Parameters in millions, as the papers' names round them.
  const std::vector<std::pair<const char*, double>> published{
      {"mamba-130m", 129},   {"mamba-370m", 372},  {"mamba-790m", 793},  {"mamba-1.4b", 1372},
      {"mamba-2.8b", 2768},  {"mamba2-130m", 129}, {"mamba2-370m", 368}, {"mamba2-780m", 780},
      {"mamba2-1.3b", 1344}, {"mamba2-2.7b", 2702}};
  for (const auto& [name, millions] : published) {
    const RandomWeights weights(published_config(name));
    EXPECT_NEAR(static_cast<double>(weights.parameter_count()) / 1e6, millions, 0.005 * millions)
        << name;
  }
  EXPECT_THROW(published_config("mamba3-1b"), Error);
}

TEST(RandomWeights, MakeAModelThatRuns) {
  for (const char* shape : {"mamba-130m", "mamba2-130m"}) {
    ModelConfig config = published_config(shape);
    config.n_layer = 2;
    config.vocab_size = 100;
    config.padded_vocab_size = 104;
    const RandomWeights weights(config);
    CpuBackend backend(2);
    const Network network(weights, backend, WeightFormat::f32, {});
    NetworkState state = network.new_state(backend, 1);
    const std::vector<int> ids{1, 2, 3, 99};
    const Tensor hidden =
        network.forward(backend, backend.upload_ids(ids), Sequences::single(4), state);
    const Tensor logits = network.logits(backend, hidden);
    for (float v : logits.span<float>()) EXPECT_TRUE(std::isfinite(v));
    EXPECT_EQ(logits.view.dim(1), 104);
  }
}

}  // namespace
}  // namespace adder
