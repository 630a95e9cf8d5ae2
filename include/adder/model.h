#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adder/dtype.h"
#include "adder/model_config.h"
#include "adder/session.h"
#include "adder/tokenizer.h"
#include "adder/weight_format.h"

namespace adder {

struct LoadOptions {
  /// Where the model runs: "cpu", "cuda" (the first NVIDIA GPU) or "cuda:N".
  std::string device = "cpu";
  /// The precision of weight matrices: "f32" keeps every value as the checkpoint has it, "bf16" and
  /// "f16" round values that do not fit. Arithmetic and the residual stream are float32 in every
  /// case. Matrices that a checkpoint stores in 16 bits stay in 16 bits with "f32" too: widening
  /// them in registers is exact, and a decoded token has half as much to read. On a GPU "bf16" and
  /// "f16" are the precision of activations too, so that tensor cores multiply; with "f32" no digit
  /// is dropped there either, and long prompts take several times as long. "int8" and "int4", on
  /// the CPU, hold the large matrices as integers of which each 32 in a row share a scale, and
  /// quantize their inputs to 8 bits as they come: half and a quarter of the bytes of bf16, and
  /// products in integers.
  std::string dtype = "f32";
  /// The precision that states of recurrences are held in between tokens: "f32", or on a GPU
  /// "bf16", which halves what a decoded token reads and writes of them, the greater part of what
  /// it moves in a large batch. Arithmetic stays float32; what is stored is rounded at random, so
  /// that the mean is right, and the same tokens in the same pieces give the same results every
  /// time. Snapshots hold float32 in both cases and go from one to the other.
  std::string state_dtype = "f32";
  /// Tokens of a sequence that one pass over the model takes at most; 0, or more than suit the
  /// device, takes as many as suit it. One feeds prompts token by token, as decoding does.
  std::int64_t piece_tokens = 0;
  /// Threads of the CPU backend; 0 takes the cores this process may run on.
  int nthreads = 0;
  /// Called on the loading thread with the fraction done, from 0 to 1.
  std::function<void(double)> progress{};
};

/// A loaded model: immutable, cheap to copy (copies share it), safe to use from several threads.
class Model {
 public:
  /// Opens a checkpoint: a folder with config.json and weights (Hugging Face or state-spaces
  /// layout), or one of its weight files; or a GGUF file, or a folder that holds one. A
  /// tokenizer.json beside it, or the tokenizer of the GGUF file, is loaded too.
  static Model load(const std::filesystem::path& path, const LoadOptions& options = {});

  /// A model of a published shape with random weights, for benchmarks: mamba-130m, -370m, -790m,
  /// -1.4b, -2.8b; mamba2-130m, -370m, -780m, -1.3b, -2.7b.
  static Model random(const std::string& shape, const LoadOptions& options = {});
  /// The names that `random` takes.
  static std::vector<std::string> random_shapes();

  Session new_session() const;

  const ModelConfig& config() const;
  bool has_tokenizer() const;
  /// Throws adder::Error when the checkpoint came without a tokenizer, or its GGUF file with one
  /// that is not supported.
  const Tokenizer& tokenizer() const;

  /// Parameters of the checkpoint (a tied head is counted once).
  std::int64_t parameter_count() const;
  /// Bytes of weights that one decoded token must read: matrices as they are held, vectors as f32.
  std::int64_t bytes_per_token() const;
  /// Floating-point operations of the weight matrices and the scan for one token of prefill
  /// without the head, multiply and add counted apart.
  std::int64_t flops_per_token() const;
  /// Bytes of recurrent state that a session holds, as it is held, whatever the length of its
  /// context.
  std::int64_t state_bytes() const;
  /// What weight matrices are held as (those of the first layer, should they differ).
  WeightFormat weight_format() const;
  /// The dtype that states of recurrences are held in.
  DType state_dtype() const;
  int nthreads() const;
  /// Identifies the weights and the configuration: what snapshots are bound to.
  std::uint64_t fingerprint() const;

  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace adder
