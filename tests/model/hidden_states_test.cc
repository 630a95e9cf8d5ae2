// The residual stream after every layer, and the final norm's output, against transformers' values
// (hidden_states.0, .1, ... in this order): where a layer goes wrong, not only that one does.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "adder/model.h"
#include "checkpoint/safetensors.h"
#include "runtime/model_impl.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"

namespace adder {
namespace {

class HiddenStates : public ::testing::TestWithParam<const char*> {};

TEST_P(HiddenStates, MatchAfterEveryLayer) {
  const std::filesystem::path folder = std::filesystem::path("tests/data/golden") / GetParam();
  const Model model = Model::load(folder);
  const SafetensorsFile expected(folder / "expected.safetensors");
  const ConstTensorView ids64 = expected.tensor("input_ids")[1];
  const std::vector<int> ids(ids64.as<std::int64_t>(), ids64.as<std::int64_t>() + ids64.dim(0));

  Backend& backend = *model.impl().backend;
  const Network& network = *model.impl().network;
  const std::int64_t n_layer = network.config().n_layer;
  const auto truth = [&](std::int64_t layer) {
    const ConstTensorView view = expected.tensor(fmt::format("hidden_states.{}", layer))[1];
    return test::to_double({view.as<float>(), static_cast<std::size_t>(view.numel())});
  };
  std::int64_t seen = 0;
  NetworkState state = network.new_state(backend, 1);
  const Tensor hidden = network.forward(
      backend, backend.upload_ids(ids), Sequences::single(std::ssize(ids)), state,
      [&](std::int64_t layer, const Tensor& residual) {
        EXPECT_EQ(layer, seen++);
        if (layer == 0) return;  // the embedding: not among the expected values
        EXPECT_LE(test::relative_error(residual.span<float>(), truth(layer - 1)), 1e-5) << layer;
      });
  EXPECT_EQ(seen, n_layer + 1);
  EXPECT_LE(test::relative_error(hidden.span<float>(), truth(n_layer)), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, HiddenStates,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny"),
                         test::CheckpointName());

}  // namespace
}  // namespace adder
