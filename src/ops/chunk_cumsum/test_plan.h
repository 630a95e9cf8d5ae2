#pragma once

// Chunk plans that own their arrays, and how tests write them down.

#include <string>
#include <vector>

#include "ops/chunk_cumsum/chunk_plan.h"

namespace adder::test {

struct OwnedPlan {
  explicit OwnedPlan(const ChunkPlanArgs& args) {
    const ChunkPlanSize size = chunk_plan_size(args);
    chunks.resize(static_cast<std::size_t>(size.nchunks));
    first_chunk.resize(static_cast<std::size_t>(size.nsequences) + 1);
    plan = make_chunk_plan(args, chunks.data(), first_chunk.data());
  }
  std::vector<Chunk> chunks;
  std::vector<std::int64_t> first_chunk;
  ChunkPlan plan;
};

/// "row:begin+length/sequence", with "!" where the state restarts; chunks that are not used are
/// left out.
inline std::vector<std::string> described(const ChunkPlan& plan) {
  std::vector<std::string> out;
  for (const Chunk& c : plan.chunks) {
    if (c.length == 0) continue;
    out.push_back(std::to_string(c.row) + ":" + std::to_string(c.begin) + "+" +
                  std::to_string(c.length) + "/" + std::to_string(c.sequence) +
                  (c.restarts ? "!" : ""));
  }
  return out;
}

}  // namespace adder::test
