#pragma once

// What cuda.cc, which checks, and cuda.cu, which computes, tell each other. Needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"
#include "ops/sampling/sample_tokens.h"

namespace adder::cuda::sampling {

/// Blocks that share a row at most.
inline constexpr int kMaxParts = 64;
/// Adjacent tokens of which the greatest logit is noted: four for each lane of a warp.
inline constexpr int kGroupTokens = 128;
inline constexpr int kThreads = 512;
/// Tokens that a block looks at in one go.
inline constexpr int kTileTokens = kThreads * 4;

/// What one block finds in its part of a row.
struct Findings {
  std::uint32_t best_key;    ///< of the greatest logit, penalized (see cuda_row.cuh)
  std::uint32_t best_id;     ///< the lowest of its tokens
  std::uint32_t bad_raw;     ///< the lowest token whose logit is NaN or +inf, or kNone
  std::uint32_t bad;         ///< likewise once penalized
  std::uint32_t bad_recent;  ///< the least recent id that is no token, its sign bit flipped
  std::uint32_t flags;       ///< kFinite, kBadRecent
};

inline constexpr std::uint32_t kNone = 0xffffffffu;
inline constexpr std::uint32_t kFinite = 1;     ///< some raw logit is not -inf
inline constexpr std::uint32_t kBadRecent = 2;  ///< bad_recent is one

/// Pointers into device memory.
struct Params {
  const float* logits;
  std::int64_t logits_stride;  ///< elements between rows
  const SequenceSampling* sampling;
  std::uint64_t* position;
  std::int32_t* recent;  ///< or null
  std::int64_t* recent_count;
  const std::uint8_t* active;  ///< or null
  std::int32_t* tokens;
  SampleStatus* status;
  std::uint32_t* tickets;  ///< (batch): blocks of a row that are done; zero between calls
  Findings* findings;      ///< (batch, kMaxParts)
  std::uint32_t* maxima;   ///< (batch, ngroups): the greatest key of each group
  std::int64_t batch;
  int vocab_size;
  int ngroups;
  int capacity;  ///< of `recent`
  int parts;     ///< blocks of a row
  bool aligned;  ///< rows of logits start at multiples of 16 bytes
};

void launch(const Params& params, Stream stream);

}  // namespace adder::cuda::sampling
