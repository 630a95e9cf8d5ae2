#pragma once

// What the operations on chunks share around their kernels: where a chunk's rows lie, states
// between their public layout and a tile, and tasks with a scratch memory per thread.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "adder/tensor_view.h"
#include "adder/thread_pool.h"
#include "core/workspace.h"
#include "ops/chunk_cumsum/chunk_plan.h"
#include "ops/fwd_pass_state/fwd_pass_state.h"
#include "ops/fwd_pass_state/kernels.h"

namespace adder::cpu {

static_assert(kTilePadding == kStateColumns);

template <typename Void>
Void* offset_by(Void* data, std::int64_t elements, DType dtype) {
  using Byte = typename BasicTensorView<Void>::template Element<unsigned char>;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// The chunk's first token of `column` (a head or group) in a (batch, seqlen, columns, ...) view.
template <typename Void>
Void* row_pointer(const BasicTensorView<Void>& view, const Chunk& chunk, std::int64_t column) {
  return offset_by(
      view.data,
      chunk.row * view.stride(0) + chunk.begin * view.stride(1) + column * view.stride(2),
      view.dtype);
}

/// `states` (nsequences, nheads, headdim, dstate) at (sequence, head) into a (dstate, padded
/// headdim) tile; an absent tensor gives zeros.
inline void load_state(const ConstTensorView& states, std::int64_t sequence, std::int64_t head,
                       std::int64_t dstate, std::int64_t headdim, float* tile) {
  if (!states.defined()) {
    std::fill_n(tile, dstate * padded(headdim), 0.0F);
    return;
  }
  const std::int64_t offset = sequence * states.stride(0) + head * states.stride(1);
  fwd_pass_state_kernels().widen_transposed(states.as<float>() + offset, states.stride(2),
                                            DType::f32, headdim, dstate, tile);
}

/// The reverse; an absent tensor is left alone.
inline void store_state(const float* tile, std::int64_t dstate, std::int64_t headdim,
                        const TensorView& states, std::int64_t sequence, std::int64_t head) {
  if (!states.defined()) return;
  const std::int64_t offset = sequence * states.stride(0) + head * states.stride(1);
  fwd_pass_state_kernels().transpose_back(tile, padded(headdim), dstate, headdim,
                                          states.as<float>() + offset, states.stride(2));
}

/// The value or the headdim values of D for `head`; null where D is absent.
inline const float* D_of_head(const ConstTensorView& D, std::int64_t head) {
  return D.defined() ? D.as<float>() + head * D.stride(0) : nullptr;
}

/// Calls `body(slot, task)` for each task in [0, ntasks), in any order. `slot`, in
/// [0, pool.nthreads()), tells apart calls that run at the same time: it names a scratch memory.
template <typename Body>
void for_each_task(ThreadPool& pool, std::int64_t ntasks, Body&& body) {
  const std::int64_t nslots = std::min<std::int64_t>(pool.nthreads(), ntasks);
  std::atomic<std::int64_t> next{0};
  pool.parallel_for(nslots, 1, [&](std::int64_t first_slot, std::int64_t) {
    for (std::int64_t task = next.fetch_add(1); task < ntasks; task = next.fetch_add(1)) {
      body(first_slot, task);
    }
  });
}

/// The scratch memory of `slot`, of those that `take(cutter)` cuts one after the other.
template <typename Take>
auto scratch_of_slot(WorkspaceCutter cutter, std::int64_t slot, Take&& take) {
  for (std::int64_t i = 0; i < slot; ++i) take(cutter);
  return take(cutter);
}

}  // namespace adder::cpu
