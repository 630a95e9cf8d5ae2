#pragma once

#include <string>

#include "adder/matrix_rows.h"
#include "checkpoint/model_tensors.h"
#include "core/mapped_file.h"

namespace adder {

/// A matrix of a checkpoint, read from the mapped file row by row: plain numbers at any address,
/// blocks or panels, which are decoded. Rows that were consumed give their pages back.
class StoredRows final : public MatrixRows {
 public:
  /// The tensor, a matrix that is not strided, and its file outlive this.
  StoredRows(const StoredTensor& stored, const MappedFile& file);

  const std::string& name() const override { return name_; }
  std::int64_t rows() const override { return stored_.view.dim(0); }
  std::int64_t columns() const override { return stored_.view.dim(1); }
  ConstTensorView view() const override;
  void read(std::int64_t first, std::int64_t count, std::span<float> out) const override;
  /// Of Q8_0 those of int8, of Q4_0 those of int4: blocks of as many values with such a scale.
  bool has_panels(WeightFormat format) const override;
  void write_panel(WeightFormat format, std::int64_t panel, std::byte* to) const override;
  void consumed(std::int64_t first, std::int64_t count) const override;

 private:
  /// The bytes of rows; none of panels, which have rows side by side.
  std::span<const std::byte> bytes_of(std::int64_t first, std::int64_t count) const;

  const StoredTensor& stored_;
  const MappedFile& file_;
  std::string name_;
};

}  // namespace adder
