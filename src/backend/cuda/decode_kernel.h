#pragma once

// What comes after sampling in a decode loop on the device; needs no CUDA header.

#include <cstdint>

#include "adder/cuda_stream.h"
#include "cuda/while_graph.h"

namespace adder::cuda::decode {

/// Why a sequence has ended, as the device tells the host.
enum class End : std::uint32_t { running, max_tokens, stop_token, error };

/// A word that one store publishes, so that nothing needs to be ordered. Of token n in its place of
/// a sequence's ring: n + 1 above, the token below. Of a sequence's end: how many tokens it handed
/// out above, an End below.
using Word = std::uint64_t;

constexpr Word make_word(std::uint32_t above, std::uint32_t below) {
  return Word{above} << 32 | below;
}
constexpr std::uint32_t above(Word word) { return static_cast<std::uint32_t>(word >> 32); }
constexpr std::uint32_t below(Word word) { return static_cast<std::uint32_t>(word); }

/// Places in a ring, a power of two.
inline constexpr std::int64_t kRing = 4096;

struct Params {
  std::int64_t batch;
  const std::int32_t* tokens;      ///< (batch): what was sampled
  const std::int32_t* status;      ///< (batch, 2): a SampleStatus each
  std::uint8_t* active;            ///< (batch)
  std::int64_t* produced;          ///< (batch): tokens handed out
  const std::int64_t* max_tokens;  ///< (batch), negative for no limit
  const std::int64_t* limit;       ///< one: where a sequence handed out so many, the loop pauses
  const std::int32_t* stop_tokens;
  const std::int64_t* nstop_tokens;  ///< (batch): how many of them end a sequence
  // In memory of the host.
  Word* ring;                        ///< (batch, kRing)
  Word* ends;                        ///< (batch)
  const std::int32_t* is_cancelled;  ///< one, by the host
};

/// Hands out the sampled tokens of active sequences, unless `only_look`, and says in the handle (if
/// it is not 0) whether there is another turn. One block.
void launch_advance(const Params& params, bool only_look, WhileHandle handle, Stream stream);

}  // namespace adder::cuda::decode
