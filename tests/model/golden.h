#pragma once

// Every reference checkpoint against the values that other implementations computed for it (see
// tests/data/golden/README.md): logits to 1e-5 relative and 64 identical greedy tokens, through
// prefill and through step-by-step decoding. A program that includes this names its device in
// golden_device().

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "adder/model.h"
#include "checkpoint/safetensors.h"
#include "tests/support/checkpoint_name.h"
#include "tests/support/compare.h"

namespace adder {

/// What models are loaded on: "cpu", ...
std::string golden_device();
/// Why tests cannot run on it; empty if they can.
std::string why_no_golden_device();

namespace {

constexpr double kTolerance = 1e-5;

struct Expected {
  explicit Expected(const std::filesystem::path& folder) : file(folder / "expected.safetensors") {}

  bool has(const char* name) const { return file.tensors().contains(std::string(name)); }

  std::vector<int> ids(const char* name, std::int64_t row) const {
    const ConstTensorView view = file.tensor(name)[row];
    const auto* values = view.as<std::int64_t>();
    return {values, values + view.numel()};
  }

  /// The first `columns` of every row of logits (batch, seqlen, padded vocabulary).
  template <typename T>
  std::vector<double> logits(const char* name, std::int64_t row, std::int64_t columns) const {
    const ConstTensorView view = file.tensor(name)[row];
    std::vector<double> out;
    for (std::int64_t t = 0; t < view.dim(0); ++t) {
      const T* values = view[t].as<T>();
      out.insert(out.end(), values, values + columns);
    }
    return out;
  }

  SafetensorsFile file;
};

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Golden() : folder_(std::filesystem::path("tests/data/golden") / GetParam()), expected_(folder_) {}

  void SetUp() override {
    const std::string why = why_no_golden_device();
    if (!why.empty()) GTEST_SKIP() << why;
    model_.emplace(Model::load(folder_, {.device = golden_device()}));
  }

  void expect_logits(const std::vector<float>& got, std::int64_t row) const {
    const std::int64_t columns = model_->config().vocab_size;
    if (expected_.has("logits_f64")) {
      const auto truth = expected_.logits<double>("logits_f64", row, columns);
      ASSERT_EQ(got.size(), truth.size());
      EXPECT_LE(test::relative_error(got, truth), kTolerance);
    }
    if (expected_.has("logits")) {
      const auto truth = expected_.logits<float>("logits", row, columns);
      ASSERT_EQ(got.size(), truth.size());
      EXPECT_LE(test::relative_error(got, truth), kTolerance);
    }
  }

  std::filesystem::path folder_;
  std::optional<Model> model_;
  Expected expected_;
};

TEST_P(Golden, PrefillGivesTheExpectedLogits) {
  ASSERT_TRUE(expected_.has("logits") || expected_.has("logits_f64"));
  for (std::int64_t row : {0, 1}) {
    std::vector<float> got;
    Session session = model_->new_session();
    session.prefill(expected_.ids("input_ids", row),
                    [&](std::int64_t, std::span<const float> block) {
                      got.insert(got.end(), block.begin(), block.end());
                    });
    expect_logits(got, row);
  }
}

TEST_P(Golden, StepByStepGivesTheExpectedLogits) {
  for (std::int64_t row : {0, 1}) {
    std::vector<float> got;
    Session session = model_->new_session();
    for (int token : expected_.ids("input_ids", row)) {
      session.step(token);
      const std::span<const float> logits = session.logits();
      got.insert(got.end(), logits.begin(), logits.end());
    }
    expect_logits(got, row);
  }
}

TEST_P(Golden, GreedyTokensAreIdentical) {
  const std::vector<int> prompt = expected_.ids("greedy_prompt", 0);
  const std::vector<int> truth = expected_.ids("greedy_tokens", 0);
  for (bool step_by_step : {false, true}) {
    Session session = model_->new_session();
    if (step_by_step) {
      for (int token : prompt) session.step(token);
    } else {
      session.prefill(prompt);
    }
    std::vector<int> got;
    for (int token : session.generate({.max_tokens = static_cast<std::int64_t>(truth.size()),
                     .sampling = {.temperature = 0},
                     .stop_at_eos = false})) {
      got.push_back(token);
    }
    EXPECT_EQ(got, truth) << (step_by_step ? "step by step" : "prefill");
  }
}

// Generating by feeding the whole sequence anew for every token needs no state at all.
TEST_P(Golden, GreedyTokensWithoutACacheAreIdentical) {
  std::vector<int> sequence = expected_.ids("greedy_prompt", 0);
  for (int truth : expected_.ids("greedy_tokens", 0)) {
    Session session = model_->new_session();
    session.prefill(sequence);
    Generation generation =
        session.generate({.max_tokens = 1, .sampling = {.temperature = 0}, .stop_at_eos = false});
    const int token = *generation.begin();
    ASSERT_EQ(token, truth);
    sequence.push_back(token);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Golden,
                         ::testing::Values("hf-mamba1-tiny", "hf-mamba2-tiny",
                                           "hf-falcon-mamba-tiny", "mamba1-original",
                                           "mamba2-original", "mamba2-original-groups",
                                           "mamba2-original-fp16"),
                         test::CheckpointName());

}  // namespace
}  // namespace adder
