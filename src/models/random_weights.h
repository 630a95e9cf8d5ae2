#pragma once

// Models of published shapes with random weights, for benchmarks where no checkpoint is at hand.

#include <string>
#include <vector>

#include "adder/thread_pool.h"
#include "models/weight_source.h"

namespace adder {

/// The configuration of a published model, by name: "mamba-130m", "mamba2-2.7b", ... Throws
/// adder::Error for an unknown name; the message lists the known ones.
ModelConfig published_config(const std::string& name);
std::vector<std::string> published_names();

/// Makes every tensor when it is asked for, from its name: nothing is kept, and the same tensor
/// always has the same values. Distributions follow the papers' initialization (A uniform in
/// [1, 16] or S4D-real, dt log-uniform in [0.001, 0.1]) so that activations and states stay in
/// the range of trained models.
class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(ModelConfig config) : config_(std::move(config)), pool_(0) {}

  const ModelConfig& config() const override { return config_; }
  bool has(const std::string& name) const override;
  Tensor tensor(const std::string& name) const override;
  void release(const std::string&) const override {}

  std::int64_t parameter_count() const;

 private:
  std::vector<std::int64_t> dims_of(const std::string& leaf) const;

  ModelConfig config_;
  mutable ThreadPool pool_;
};

}  // namespace adder
