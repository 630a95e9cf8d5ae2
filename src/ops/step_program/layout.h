#pragma once

// How a program's kernel divides the shared memory of a block.

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"
#include "ops/step_program/cuda_kernel.h"

namespace adder::cuda::program {

/// For sequences of rows of at most `in` elements; nstages is below kFewestStages, or there are no
/// slots, if `shared_bytes` are too few.
template <typename X>
Layout layout_of(int batch, int in, std::int64_t shared_bytes) {
  constexpr int kMostSlotBytes = 24 * 1024;
  const int rows = kParts<X> * kernel_batch(batch);
  const int tile_bytes = slots_of_tile(rows) * static_cast<int>(sizeof(float));
  const auto align = [](int bytes) { return static_cast<int>(round_up(bytes, 128)); };
  Layout out{};
  out.v_row = row_bytes(in);
  out.channels = out.sums + align(kWarps * static_cast<int>(sizeof(float)));
  out.v = out.channels + align(kMostChannels * kChannelBytes);
  out.slots = out.v + align(rows * out.v_row);
  // Slots have what stages leave, if those are few.
  const std::int64_t room = shared_bytes - kStaticBytes - out.slots;
  const std::int64_t room_of_slots = room - kFewestStages * kStageBytes;
  out.round_tiles = static_cast<int>(std::clamp<std::int64_t>(
      room_of_slots / tile_bytes, 0, std::min(kMostSlotBytes / tile_bytes, kMostRoundTiles)));
  out.stages = out.slots + align(out.round_tiles * tile_bytes);
  out.nstages = static_cast<int>(std::clamp<std::int64_t>(
      (shared_bytes - kStaticBytes - out.stages) / kStageBytes, 0, kMaxStages));
  return out;
}

}  // namespace adder::cuda::program
