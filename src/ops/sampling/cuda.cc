#include <algorithm>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/workspace.h"
#include "cuda/device.h"
#include "cuda/layout.h"
#include "ops/sampling/cuda_kernel.h"
#include "ops/sampling/sample_tokens.h"

namespace adder::cuda {
namespace {

struct Workspace {
  std::uint32_t* tickets;
  sampling::Findings* findings;
  std::uint32_t* maxima;
};

std::int64_t ngroups_of(std::int64_t vocab_size) {
  return ceil_div(vocab_size, std::int64_t{sampling::kGroupTokens});
}

Workspace cut(WorkspaceCutter& cutter, std::int64_t batch, std::int64_t vocab_size) {
  return {.tickets = cutter.take<std::uint32_t>(batch),
          .findings = cutter.take<sampling::Findings>(batch * sampling::kMaxParts),
          .maxima = cutter.take<std::uint32_t>(batch * ngroups_of(vocab_size))};
}

// Enough blocks to fill the device about twice, each with a tile at least.
int parts_of_a_row(std::int64_t batch, std::int64_t vocab_size, int multiprocessors) {
  const std::int64_t tiles = ceil_div(vocab_size, std::int64_t{sampling::kTileTokens});
  const std::int64_t wanted = std::int64_t{2} * multiprocessors / batch;
  const std::int64_t most = std::min<std::int64_t>(tiles, sampling::kMaxParts);
  return static_cast<int>(std::clamp<std::int64_t>(wanted, 1, most));
}

}  // namespace

std::size_t sample_tokens_workspace_bytes(std::int64_t batch, std::int64_t vocab_size) {
  WorkspaceCutter cutter;
  cut(cutter, batch, vocab_size);
  return cutter.bytes();
}

void sample_tokens(const SampleTokensArgs& args, std::span<std::byte> workspace, Stream stream) {
  validate(args);
  const std::int64_t batch = args.logits.dim(0);
  const std::int64_t vocab_size = args.logits.dim(1);
  if (batch == 0) return;
  check_current("sample_tokens", "logits", args.logits);
  check_workspace("sample_tokens", workspace, sample_tokens_workspace_bytes(batch, vocab_size));
  WorkspaceCutter cutter(workspace);
  const Workspace memory = cut(cutter, batch, vocab_size);

  sampling::Params p{};
  p.logits = args.logits.as<float>();
  p.logits_stride = args.logits.stride(0);
  p.sampling = static_cast<const SequenceSampling*>(args.sampling.data);
  p.position = static_cast<std::uint64_t*>(args.position.data);
  if (args.recent.defined()) {
    p.recent = args.recent.as<std::int32_t>();
    p.recent_count = args.recent_count.as<std::int64_t>();
    p.capacity = static_cast<int>(args.recent.dim(1));
  }
  if (args.active.defined()) p.active = args.active.as<std::uint8_t>();
  p.tokens = args.tokens.as<std::int32_t>();
  p.status = static_cast<SampleStatus*>(args.status.data);
  p.tickets = memory.tickets;
  p.findings = memory.findings;
  p.maxima = memory.maxima;
  p.batch = batch;
  p.vocab_size = static_cast<int>(vocab_size);
  p.ngroups = static_cast<int>(ngroups_of(vocab_size));
  p.parts = parts_of_a_row(batch, vocab_size, properties(args.logits.device.index).multiprocessors);
  p.aligned = rows_aligned(args.logits);
  sampling::launch(p, stream);
}

}  // namespace adder::cuda
