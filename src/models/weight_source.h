#pragma once

// Where a network takes its weights from: a checkpoint, or a generator of random ones.

#include <memory>
#include <string>

#include "adder/model_config.h"
#include "core/tensor.h"

namespace adder {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelConfig& config() const = 0;
  /// Canonical names (see checkpoint/checkpoint.h).
  virtual bool has(const std::string& name) const = 0;
  /// The tensor, with what keeps its bytes alive. Throws adder::Error if there is none of the name.
  virtual Tensor tensor(const std::string& name) const = 0;
  /// The tensor was copied elsewhere: its memory may be given back until it is asked for again.
  virtual void release(const std::string& name) const = 0;
};

}  // namespace adder
