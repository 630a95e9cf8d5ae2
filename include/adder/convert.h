#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "adder/weight_format.h"

namespace adder {

struct ConvertOptions {
  /// int8 or int4.
  WeightFormat format = WeightFormat::int8;
  /// 0 takes the cores this process may run on.
  int nthreads = 0;
  /// Called on the calling thread with the fraction done, from 0 to 1.
  std::function<void(double)> progress{};
};

struct ConvertReport {
  std::int64_t bytes_before = 0;  ///< of all tensors
  std::int64_t bytes_after = 0;
  int matrices = 0;  ///< that became integers
};

/// Writes the checkpoint at `from` (see Model::load) to the folder `to` with its large matrices as
/// integers, each 32 of a row sharing a scale: model.safetensors, in which such a matrix is
/// NAME.int8 or NAME.int4 in the layout of QuantizedMatrix beside NAME.shape, and copies of
/// config.json and tokenizer.json. Such a file is multiplied with where it is mapped: nothing is
/// unpacked to load it. A_log, D, dt_bias, convolutions, norms, biases and the small projections of
/// Mamba-1 stay as they are; so does an embedding that is not also the head.
///
/// Of a GGUF file config.json says what its metadata does, and tokenizer.gguf is that metadata
/// itself, which has the tokenizer; blocks of Q8_0 become int8, and of Q4_0 int4, without a change.
///
/// Tensors are read, quantized and written one after another, in parts: memory holds some megabytes
/// of them at a time. Throws adder::Error, and leaves neither weights nor a folder that was not
/// there before, if `from` is no such checkpoint or is an earlier result, if a weight is not
/// finite, or if `to` has weights already.
ConvertReport convert(const std::filesystem::path& from, const std::filesystem::path& to,
                      const ConvertOptions& options);

}  // namespace adder
