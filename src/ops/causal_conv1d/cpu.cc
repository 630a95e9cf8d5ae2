#include <algorithm>
#include <array>
#include <cstring>

#include "core/check.h"
#include "ops/causal_conv1d/causal_conv1d.h"
#include "ops/causal_conv1d/kernels.h"

namespace adder::cpu {
namespace {

// Channels of one unit of work: the rows and weights of a tile of four tokens then take 15 KB,
// which stay in L1 from one tile to the next, and a row's piece is long enough for the prefetchers.
constexpr std::int64_t kBlock = 256;
constexpr int kMaxHistory = kMaxConvWidth - 1;

alignas(64) constexpr float kZeros[kBlock] = {};

// The inputs that come before some token, oldest first: rows of x or of conv_state from channel 0
// on. Null is a row of zeros. Only the first width - 1 entries are used.
struct History {
  std::array<const float*, kMaxHistory> rows{};
  std::int32_t index = -1;  // seq_idx of the latest token; negative if the call has none before
};

class Convolution {
 public:
  explicit Convolution(const CausalConv1dArgs& args)
      : args_(args),
        kernels_(causal_conv1d_kernels()),
        width_(static_cast<int>(args.weight.dim(1))),
        offsets_(args.cu_seqlens.defined() ? args.cu_seqlens.as<std::int32_t>() : nullptr),
        seq_idx_(args.seq_idx.defined() ? args.seq_idx.as<std::int32_t>() : nullptr) {}

  std::int64_t ntokens() const { return args_.x.dim(0); }
  std::int64_t channels() const { return args_.x.dim(1); }
  std::int64_t nsequences() const { return offsets_ ? args_.cu_seqlens.dim(0) - 1 : 1; }

  /// The tokens [begin, end) of all sequences for the channels of one block.
  void run_tokens(std::int64_t begin, std::int64_t end, std::int64_t block) const {
    Block b = block_of(block);
    float gathered[kMaxConvWidth * kBlock];
    if (args_.weight.stride(0) != 1) gather_weight(b, gathered);
    for (std::int64_t s = sequence_of(begin); s < nsequences() && sequence_begin(s) < end; ++s) {
      run_sequence(s, std::max(begin, sequence_begin(s)), std::min(end, sequence_end(s)), b);
    }
  }

  /// All sequences from start to end, each followed by the update of its state.
  void run_sequences(std::int64_t block) const {
    Block b = block_of(block);
    float gathered[kMaxConvWidth * kBlock];
    if (args_.weight.stride(0) != 1) gather_weight(b, gathered);
    for (std::int64_t s = 0; s < nsequences(); ++s) {
      run_sequence(s, sequence_begin(s), sequence_end(s), b);
      if (args_.conv_state.defined()) save_state(s, b.first, b.count);
    }
  }

  /// The states after the last tokens, once all tokens have been computed.
  void save_states(std::int64_t block) const {
    const Block b = block_of(block);
    for (std::int64_t s = 0; s < nsequences(); ++s) save_state(s, b.first, b.count);
  }

 private:
  struct Block {
    std::int64_t first;
    std::int64_t count;
    const float* weight;
    std::int64_t weight_stride;
  };

  Block block_of(std::int64_t block) const {
    const std::int64_t first = block * kBlock;
    const auto* weight = args_.weight.as<float>() + first * args_.weight.stride(0);
    return {first, std::min(kBlock, channels() - first), weight, args_.weight.stride(1)};
  }

  // Replaces the block's weight by a copy with adjacent channels.
  void gather_weight(Block& block, float* gathered) const {
    for (int k = 0; k < width_; ++k) {
      for (std::int64_t c = 0; c < block.count; ++c) {
        gathered[k * kBlock + c] =
            block.weight[c * args_.weight.stride(0) + k * args_.weight.stride(1)];
      }
    }
    block.weight = gathered;
    block.weight_stride = kBlock;
  }

  std::int64_t sequence_begin(std::int64_t s) const { return offsets_ ? offsets_[s] : 0; }
  std::int64_t sequence_end(std::int64_t s) const { return offsets_ ? offsets_[s + 1] : ntokens(); }
  // The sequence that holds token t.
  std::int64_t sequence_of(std::int64_t t) const {
    if (!offsets_) return 0;
    const auto* ends = offsets_ + 1;
    return std::upper_bound(ends, ends + nsequences(), t) - ends;
  }
  const float* x_row(std::int64_t t) const { return args_.x.as<float>() + t * args_.x.stride(0); }
  float* y_row(std::int64_t t) const { return args_.y.as<float>() + t * args_.y.stride(0); }
  float* state_row(std::int64_t s, int k) const {
    return args_.conv_state.as<float>() + s * args_.conv_state.stride(0) +
           k * args_.conv_state.stride(1);
  }
  std::int32_t index_of(std::int64_t t) const { return seq_idx_ ? seq_idx_[t] : 0; }

  // What comes before token t of sequence s, t being at most the sequence's end.
  History history_before(std::int64_t s, std::int64_t t) const {
    History history;
    int k = width_ - 2;  // the newest row that is still to be found
    for (--t; t >= sequence_begin(s) && k >= 0; --t) {
      const std::int32_t index = index_of(t);
      if (index < 0) continue;
      if (history.index >= 0 && index != history.index) return history;  // a reset: zeros before it
      history.index = index;
      history.rows[static_cast<std::size_t>(k--)] = x_row(t);
    }
    if (args_.conv_state.defined()) {
      const int found = width_ - 2 - k;
      for (; k >= 0; --k) history.rows[static_cast<std::size_t>(k)] = state_row(s, k + found);
    }
    return history;
  }

  // Tokens at and after t, at most kConvTile, that follow one another without padding or reset: a
  // whole tile, or one.
  int tile_at(std::int64_t t, std::int64_t end) const {
    if (t + kConvTile > end) return 1;
    for (int i = 1; seq_idx_ && i < kConvTile; ++i) {
      if (seq_idx_[t + i] != seq_idx_[t]) return 1;
    }
    return kConvTile;
  }

  // The tokens [t, end) of sequence s for one block of channels.
  void run_sequence(std::int64_t s, std::int64_t t, std::int64_t end, const Block& block) const {
    History history = history_before(s, t);
    std::array<const float*, kMaxHistory + kConvTile> x;
    std::array<float*, kConvTile> y;
    const float* bias = args_.bias.defined() ? args_.bias.as<float>() + block.first : nullptr;
    const ConvTile tile{x.data(), y.data(),    block.weight, block.weight_stride,
                        bias,     block.count, args_.silu};
    const auto before = static_cast<std::size_t>(width_ - 1);
    while (t < end) {
      if (index_of(t) < 0) {
        std::fill_n(y_row(t) + block.first, block.count, 0.0F);
        ++t;
        continue;
      }
      if (history.index >= 0 && index_of(t) != history.index) history.rows.fill(nullptr);
      history.index = index_of(t);
      const auto n = static_cast<std::size_t>(tile_at(t, end));
      for (std::size_t k = 0; k < before; ++k) {
        x[k] = history.rows[k] != nullptr ? history.rows[k] + block.first : kZeros;
      }
      for (std::size_t i = 0; i < n; ++i) {
        x[before + i] = x_row(t + static_cast<std::int64_t>(i)) + block.first;
        y[i] = y_row(t + static_cast<std::int64_t>(i)) + block.first;
      }
      kernels_.tile(tile, width_, static_cast<int>(n));
      for (std::size_t k = 0; k < before; ++k) {
        history.rows[k] = k + n < before ? history.rows[k + n]
                                         : x_row(t + static_cast<std::int64_t>(k + n - before));
      }
      t += static_cast<std::int64_t>(n);
    }
  }

  // Rows move towards the front only, so that they can be copied in place from front to back.
  void save_state(std::int64_t s, std::int64_t first, std::int64_t count) const {
    const History history = history_before(s, sequence_end(s));
    for (int k = 0; k < width_ - 1; ++k) {
      float* to = state_row(s, k) + first;
      const float* from = history.rows[static_cast<std::size_t>(k)];
      if (from == nullptr) {
        std::fill_n(to, count, 0.0F);
      } else if (from + first != to) {
        std::memcpy(to, from + first, static_cast<std::size_t>(count) * sizeof(float));
      }
    }
  }

  const CausalConv1dArgs& args_;
  const CausalConv1dKernels& kernels_;
  int width_;
  const std::int32_t* offsets_;
  const std::int32_t* seq_idx_;
};

}  // namespace

void causal_conv1d(const CausalConv1dArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("causal_conv1d", "x", args.x);
  const Convolution convolution(args);
  const std::int64_t ntokens = convolution.ntokens();
  const std::int64_t nblocks = (convolution.channels() + kBlock - 1) / kBlock;

  // Blocks of channels are independent and take their state along. Tokens are split as well only
  // where there are too few blocks for the threads: the states must then wait for a second loop,
  // since the first tokens of a sequence may still be reading them.
  constexpr std::int64_t kMinChunk = 64;
  const std::int64_t wanted_chunks = (2 * pool.nthreads() + nblocks) / (nblocks + 1);
  const std::int64_t nchunks =
      std::clamp<std::int64_t>(wanted_chunks, 1, std::max<std::int64_t>(1, ntokens / kMinChunk));
  // A range of fewer than 4K elements costs less than waking a thread for it.
  constexpr std::int64_t kMinRange = 4096;
  if (nchunks == 1) {
    const std::int64_t grain = 1 + kMinRange / (kBlock * (ntokens + 1));
    pool.parallel_pieces(nblocks, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) convolution.run_sequences(block);
    });
    return;
  }
  pool.parallel_for(nchunks * nblocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t chunk = unit / nblocks;
      convolution.run_tokens(ntokens * chunk / nchunks, ntokens * (chunk + 1) / nchunks,
                             unit % nblocks);
    }
  });
  if (args.conv_state.defined()) {
    pool.parallel_for(nblocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) convolution.save_states(block);
    });
  }
}

}  // namespace adder::cpu
