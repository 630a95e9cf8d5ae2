// Work per element: 4 bytes of logits read once, about 10 instructions. Bound: device memory, which
// for few sequences is not reached: a row of 50,280 tokens is 200 KB, and what counts is latency,
// of one read by many blocks and one exchange between them.
//
// Map: a row belongs to `parts` blocks of 16 warps; a warp takes a group of 128 tokens at a time,
// four to a lane, the next group's logits being under way. Each block keeps the greatest logit and
// what is wrong; for draws, a warp also notes the greatest of each group. The last block of a row
// to come decides. Greedy: it has the token. top_k: the k-th greatest of the groups' maxima bounds
// the k-th greatest logit from below, so that only groups that reach it, hardly more than k, are
// read again, and only tokens that reach it sorted, by counting for each how many are before it.
// Everything else, and more tokens than a block can sort: cuda_select.cuh.
//
// All that blocks and threads add up are integers and all that they compare has one order, so that
// neither timing nor `parts` shows in the result. Shared memory: 17 KB and a bit for each token.
// Arithmetic: see weights.h; no multiply-add is fused here (-fmad=false). Registers, sm_90: 64, for
// two blocks to a multiprocessor; 16 bytes spilled where a draw begins, none in the scan.

#include "cuda/launch.cuh"
#include "ops/sampling/cuda_select.cuh"
#include "ops/sampling/rng.h"

namespace adder::cuda::sampling {
namespace {

__device__ bool are_valid(const SequenceSampling& s) {
  const SamplingParams& p = s.params;
  const float infinity = __uint_as_float(0x7f800000u);
  return p.temperature >= 0 && p.temperature < infinity && p.top_k >= 0 && p.top_p >= 0 &&
         p.top_p <= 1 && p.min_p >= 0 && p.min_p <= 1 && p.repeat_penalty > 0 &&
         p.repeat_penalty < infinity && s.repeat_window >= 0;
}

// Whether a list of candidates may do.
__device__ bool is_listed(const SamplingParams& s, const Params& p) {
  return s.temperature > 0 && s.top_k > 0 && s.top_k < p.vocab_size && s.top_k <= kListed &&
         (s.top_k <= p.ngroups || p.vocab_size <= kListed);
}

// Marks the recent tokens in a map of all; says if one is none.
__device__ void mark_recent(const Params& p, std::int64_t sequence, int window,
                            std::uint32_t* marks, Findings& findings) {
  for (int i = static_cast<int>(threadIdx.x); i < recent_words(p.vocab_size); i += kThreads) {
    marks[i] = 0;
  }
  __syncthreads();
  const std::int64_t count = p.recent_count[sequence];
  const auto nrecent =
      static_cast<int>(min(count, static_cast<std::int64_t>(min(window, p.capacity))));
  const auto next =
      static_cast<int>(static_cast<std::uint64_t>(count) % static_cast<std::uint64_t>(p.capacity));
  const std::int32_t* ring = p.recent + sequence * p.capacity;
  for (int i = static_cast<int>(threadIdx.x); i < nrecent; i += kThreads) {
    const int slot = next - 1 - i;
    const std::int32_t id = ring[slot < 0 ? slot + p.capacity : slot];
    if (id >= 0 && id < p.vocab_size) {
      atomicOr(&marks[id / 32], 1u << (id % 32));
    } else {
      findings.flags |= kBadRecent;
      findings.bad_recent = min(findings.bad_recent, static_cast<std::uint32_t>(id) ^ 0x80000000u);
    }
  }
  __syncthreads();
}

// What this thread finds in its block's part of a row. Keys of groups go to `maxima` unless it is
// null.
__device__ void scan_part(const Row& row, int part, int parts, std::uint32_t* maxima,
                          Findings& findings) {
  const float infinity = __uint_as_float(0x7f800000u);
  const int tiles = (row.vocab_size + kTileTokens - 1) / kTileTokens;
  // At most 2^7 tiles and 2^6 parts.
  const int end = (part + 1) * tiles / parts * kTileTokens;
  int id = part * tiles / parts * kTileTokens + 4 * static_cast<int>(threadIdx.x);
  Four next = row.raw(id);
  for (; id < end; id += kTileTokens) {
    const Four raw = next;
    if (id + kTileTokens < end) next = row.raw(id + kTileTokens);
    const Four four = row.penalized(id, raw);
    std::uint32_t greatest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto token = static_cast<std::uint32_t>(id + i);
      if (!(raw.logits[i] < infinity)) findings.bad_raw = min(findings.bad_raw, token);
      if (!(four.logits[i] < infinity)) findings.bad = min(findings.bad, token);
      if (raw.logits[i] > -infinity) findings.flags |= kFinite;
      const std::uint32_t key = key_of(four.logits[i]);
      greatest = max(greatest, key);
      if (key > findings.best_key) {
        findings.best_key = key;
        findings.best_id = token;
      }
    }
    if (maxima == nullptr) continue;
    greatest = __reduce_max_sync(kFullWarp, greatest);
    if (lane_index() == 0 && id < row.vocab_size) maxima[id / kGroupTokens] = greatest;
  }
}

// True in the block of a row that comes last, which then sees what the others wrote.
__device__ bool is_last(std::uint32_t* ticket, int parts, Shared& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto most = static_cast<unsigned>(parts) - 1;
    shared.last = atomicInc(ticket, most) == most ? 1 : 0;  // 0 again after the last
  }
  __syncthreads();
  if (shared.last == 0) return false;
  __threadfence();
  return true;
}

__device__ Findings read_findings(const Findings* from) {
  return {__ldcg(&from->best_key), __ldcg(&from->best_id),    __ldcg(&from->bad_raw),
          __ldcg(&from->bad),      __ldcg(&from->bad_recent), __ldcg(&from->flags)};
}

__device__ SampleStatus status_of(const Findings& f, const Row& row) {
  if (f.bad_raw != kNone) {
    const float logit = row.logits[f.bad_raw];
    return {logit != logit ? SampleError::not_a_number : SampleError::infinite,
            static_cast<std::int32_t>(f.bad_raw)};
  }
  if ((f.flags & kFinite) == 0) return {SampleError::all_ruled_out, 0};
  if ((f.flags & kBadRecent) != 0) {
    return {SampleError::recent_token, static_cast<std::int32_t>(f.bad_recent ^ 0x80000000u)};
  }
  if (f.bad != kNone) return {SampleError::infinite, static_cast<std::int32_t>(f.bad)};
  // A penalty can take a logit out of the range of floats.
  if (logit_of(f.best_key) == -__uint_as_float(0x7f800000u)) {
    return {SampleError::all_ruled_out, 0};
  }
  return {SampleError::none, 0};
}

__device__ void append(const Params& p, std::int64_t sequence, std::uint32_t token, bool drawn) {
  const auto id = static_cast<std::int32_t>(token);
  p.tokens[sequence] = id;
  if (drawn) ++p.position[sequence];
  if (p.recent == nullptr) return;
  const auto count = static_cast<std::uint64_t>(p.recent_count[sequence]);
  const auto slot = static_cast<std::int64_t>(count % static_cast<std::uint64_t>(p.capacity));
  p.recent[sequence * p.capacity + slot] = id;
  p.recent_count[sequence] = static_cast<std::int64_t>(count + 1);
}

__global__ void __launch_bounds__(kThreads, 2)
    sample_tokens_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  auto* marks = reinterpret_cast<std::uint32_t*>(memory + sizeof(Shared));
  const auto nparts = static_cast<unsigned>(p.parts);
  const std::int64_t sequence = blockIdx.x / nparts;
  const auto part = static_cast<int>(blockIdx.x % nparts);
  // The status is written by the last block alone, when all others have read it, or to say the same
  // as what follows.
  const bool active = p.active == nullptr || p.active[sequence] != 0;
  const SampleError error = p.status[sequence].error;
  const SequenceSampling sampling = p.sampling[sequence];
  if (!active || error != SampleError::none) return;
  const SamplingParams& params = sampling.params;
  if (!are_valid(sampling)) {
    if (part == 0 && threadIdx.x == 0) p.status[sequence] = {SampleError::invalid_params, 0};
    return;
  }

  Findings findings = nothing();
  Row row{p.logits + sequence * p.logits_stride, p.vocab_size, p.aligned, params.repeat_penalty,
          nullptr};
  if (p.recent != nullptr && params.repeat_penalty != 1 && sampling.repeat_window > 0) {
    mark_recent(p, sequence, sampling.repeat_window, marks, findings);
    row.recent = marks;
  }
  std::uint32_t* maxima = nullptr;
  if (is_listed(params, p)) maxima = p.maxima + sequence * p.ngroups;
  scan_part(row, part, p.parts, maxima, findings);
  findings = block_merge(findings, shared);
  if (p.parts > 1) {
    Findings* all = p.findings + sequence * kMaxParts;
    if (threadIdx.x == 0) all[part] = findings;
    if (!is_last(p.tickets + sequence, p.parts, shared)) return;
    const auto other = static_cast<int>(threadIdx.x);
    findings = block_merge(other < p.parts ? read_findings(all + other) : nothing(), shared);
  }

  const SampleStatus status = status_of(findings, row);
  if (status.error != SampleError::none) {
    if (threadIdx.x == 0) p.status[sequence] = status;
    return;
  }
  std::uint32_t token = findings.best_id;
  if (params.temperature > 0) {
    const std::uint64_t random = random_number(sampling.seed, p.position[sequence]);
    const double scale = weight_scale(static_cast<std::uint64_t>(p.vocab_size));
    const Weigher weigher{logit_of(findings.best_key),
                          1.0 / static_cast<double>(params.temperature), scale,
                          min_p_weight(params.min_p, scale)};
    const int listed =
        maxima == nullptr ? kListed + 1 : list_top_k(row, params.top_k, maxima, p.ngroups, shared);
    token = listed <= kListed
                ? draw_from_list(listed, params.top_k, params.top_p, weigher, random, shared)
                : draw_from_row(row, params, weigher, random, shared);
  }
  // All have read the position.
  __syncthreads();
  if (threadIdx.x == 0) append(p, sequence, token, params.temperature > 0);
}

}  // namespace

void launch(const Params& params, Stream stream) {
  const std::size_t shared_bytes =
      sizeof(Shared) +
      sizeof(std::uint32_t) * static_cast<std::size_t>(recent_words(params.vocab_size));
  cuda::launch("to launch sample_tokens", sample_tokens_kernel, params.batch * params.parts,
               kThreads, shared_bytes, stream, params);
}

}  // namespace adder::cuda::sampling
