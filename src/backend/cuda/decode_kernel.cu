// The end of each turn of a decode loop: a few words of each sequence, and one question to the
// host, asked first: its answer takes about a microsecond.

#include <cuda_runtime.h>

#include "backend/cuda/decode_kernel.h"
#include "cuda/check.h"

namespace adder::cuda::decode {
namespace {

constexpr int kThreads = 256;

__device__ bool is_stop_token(const Params& p, std::int64_t s, std::int32_t token) {
  const std::int64_t count = p.nstop_tokens[s];
  for (std::int64_t i = 0; i < count; ++i) {
    if (p.stop_tokens[i] == token) return true;
  }
  return false;
}

// make_word(above, below), in one store.
__device__ void publish(Word* to, std::int64_t above, std::int64_t below) {
  *const_cast<volatile Word*>(to) =
      Word{static_cast<std::uint32_t>(above)} << 32 | static_cast<std::uint32_t>(below);
}

__device__ void end_sequence(const Params& p, std::int64_t s, End end) {
  p.active[s] = 0;
  publish(p.ends + s, p.produced[s], static_cast<std::int64_t>(end));
}

__device__ void hand_out(const Params& p, std::int64_t s) {
  const std::int32_t token = p.tokens[s];
  if (p.status[2 * s] != 0) return end_sequence(p, s, End::error);
  if (is_stop_token(p, s, token)) return end_sequence(p, s, End::stop_token);
  const std::int64_t n = p.produced[s];
  p.produced[s] = n + 1;
  if (n + 1 == p.max_tokens[s]) {
    end_sequence(p, s, End::max_tokens);
    __threadfence_system();  // whoever has the last token knows that it is
  }
  publish(p.ring + s * kRing + n % kRing, n + 1, token);
}

__global__ void __launch_bounds__(kThreads)
    advance_kernel(const __grid_constant__ Params p, bool only_look, WhileHandle handle) {
  const bool is_cancelled =
      threadIdx.x == 0 && *const_cast<const volatile std::int32_t*>(p.is_cancelled) != 0;
  bool is_running = false;
  bool is_full = false;
  for (std::int64_t s = threadIdx.x; s < p.batch; s += kThreads) {
    if (p.active[s] == 0) continue;
    if (!only_look) hand_out(p, s);
    if (p.active[s] == 0) continue;
    is_running = true;
    is_full = is_full || p.produced[s] >= *p.limit;
  }
  const bool some_run = __syncthreads_or(is_running) != 0;
  const bool must_pause = __syncthreads_or(is_full || is_cancelled) != 0;
#if CUDART_VERSION >= 12040
  if (threadIdx.x == 0 && handle != 0) {
    cudaGraphSetConditional(handle, some_run && !must_pause ? 1 : 0);
  }
#endif
}

}  // namespace

void launch_advance(const Params& params, bool only_look, WhileHandle handle, Stream stream) {
  advance_kernel<<<1, kThreads, 0, stream>>>(params, only_look, handle);
  check_launch("to launch the end of a decode step");
}

}  // namespace adder::cuda::decode
