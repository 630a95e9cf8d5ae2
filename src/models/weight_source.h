#pragma once

// Where a network takes its weights from: a checkpoint, or a generator of random ones.

#include <memory>
#include <optional>
#include <string>

#include "adder/matrix_rows.h"
#include "adder/model_config.h"
#include "adder/quantized_matrix.h"
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
  /// What a matrix is kept as unless another format is asked for.
  virtual WeightFormat format(const std::string& name) const {
    return *format_of(tensor(name).view.dtype);
  }
  /// The matrix for whoever packs it, with less memory than `tensor` takes; null if there is only
  /// that. Valid as long as the source.
  virtual std::unique_ptr<const MatrixRows> rows(const std::string& name) const {
    static_cast<void>(name);
    return nullptr;
  }
  /// The matrix as it is stored, if that is in the layout of a QuantizedMatrix.
  virtual std::optional<QuantizedMatrix> quantized(const std::string& name) const {
    static_cast<void>(name);
    return std::nullopt;
  }
  /// The tensor was copied elsewhere: its memory may be given back until it is asked for again.
  virtual void release(const std::string& name) const = 0;
};

}  // namespace adder
