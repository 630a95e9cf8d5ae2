#include <algorithm>

#include "core/check.h"
#include "ops/selective_scan/kernels.h"
#include "ops/selective_scan/selective_scan.h"

namespace adder::cpu {
namespace {

class Scan {
 public:
  Scan(const SelectiveScanArgs& args, int nthreads)
      : args_(args),
        kernels_(selective_scan_kernels()),
        dstate_(static_cast<int>(args.A.dim(1))),
        group_size_(args.x.dim(2) / args.B.dim(2)),
        offsets_(args.cu_seqlens.defined() ? args.cu_seqlens.as<std::int32_t>() : nullptr) {
    // Large blocks use memory better, but every thread should have something to do.
    int vectors = std::clamp(kMaxScanVectorStates / dstate_, 1, kMaxScanVectors);
    do {
      block_ = vectors * kernels_.lanes;
      blocks_ = (group_size_ + block_ - 1) / block_;
      vectors /= 2;
    } while (vectors >= 1 && nunits() < 2 * nthreads);
  }

  /// Blocks of channels, which never cross a group, over all sequences.
  std::int64_t nunits() const { return nsequences() * blocks_per_sequence(); }

  void run_unit(std::int64_t unit) const {
    const std::int64_t s = unit / blocks_per_sequence();
    const std::int64_t group = unit % blocks_per_sequence() / blocks_;
    const std::int64_t offset = unit % blocks_ * block_;
    const std::int64_t channel = group * group_size_ + offset;
    const int nchannels = static_cast<int>(std::min(block_, group_size_ - offset));

    alignas(64) float decay[kMaxScanVectorStates * kMaxScanLanes];
    alignas(64) float state[kMaxScanVectorStates * kMaxScanLanes];
    kernels_.pack(args_.A.as<float>() + channel * args_.A.stride(0), args_.A.stride(0), nchannels,
                  dstate_, kScanFactor, decay);
    if (args_.initial_states.defined()) {
      const ConstTensorView& view = args_.initial_states;
      kernels_.pack(view.as<float>() + s * view.stride(0) + channel * view.stride(1),
                    view.stride(1), nchannels, dstate_, 1.0F, state);
    } else {
      clear(state);
    }
    run_sequence(s, group, channel, nchannels, decay, state);
    if (args_.final_states.defined()) {
      const TensorView& view = args_.final_states;
      kernels_.unpack(state, nchannels, dstate_,
                      view.as<float>() + s * view.stride(0) + channel * view.stride(1),
                      view.stride(1));
    }
  }

 private:
  std::int64_t nsequences() const {
    return offsets_ ? args_.cu_seqlens.dim(0) - 1 : args_.x.dim(0);
  }
  std::int64_t blocks_per_sequence() const { return blocks_ * args_.B.dim(2); }
  void clear(float* state) const { std::fill_n(state, dstate_ * block_, 0.0F); }

  // All tokens of sequence s, run by run: a run has no padding and no reset inside.
  void run_sequence(std::int64_t s, std::int64_t group, std::int64_t channel, int nchannels,
                    const float* decay, float* state) const {
    const std::int64_t row = offsets_ ? 0 : s;
    const std::int64_t end = offsets_ ? offsets_[s + 1] : args_.x.dim(1);
    const auto* seq_idx = args_.seq_idx.defined()
                              ? args_.seq_idx.as<std::int32_t>() + row * args_.seq_idx.stride(0)
                              : nullptr;
    std::int32_t current = -1;
    for (std::int64_t t = offsets_ ? offsets_[s] : 0; t < end;) {
      std::int64_t next = seq_idx ? t + 1 : end;
      while (next < end && seq_idx[next] == seq_idx[t]) ++next;
      if (seq_idx && seq_idx[t] < 0) {
        float* y = args_.y.as<float>() + row * args_.y.stride(0) + channel;
        for (; t < next; ++t) std::fill_n(y + t * args_.y.stride(1), nchannels, 0.0F);
        continue;
      }
      if (seq_idx && current >= 0 && seq_idx[t] != current) clear(state);
      if (seq_idx) current = seq_idx[t];
      kernels_.scan(span_of(row, t, next - t, group, channel, nchannels, decay, state));
      t = next;
    }
  }

  ScanSpan span_of(std::int64_t row, std::int64_t t, std::int64_t ntokens, std::int64_t group,
                   std::int64_t channel, int nchannels, const float* decay, float* state) const {
    const auto rows = [&](const ConstTensorView& view, std::int64_t column) {
      if (!view.defined()) return ScanRows{};
      return ScanRows{view.as<float>() + row * view.stride(0) + t * view.stride(1) + column,
                      view.stride(1)};
    };
    const auto per_channel = [&](const ConstTensorView& view) {
      return view.defined() ? view.as<float>() + channel : nullptr;
    };
    return {.ntokens = ntokens,
            .nchannels = nchannels,
            .dstate = dstate_,
            .x = rows(args_.x, channel),
            .dt = rows(args_.dt, channel),
            .z = rows(args_.z, channel),
            .B = rows(args_.B, group * args_.B.stride(2)),
            .C = rows(args_.C, group * args_.C.stride(2)),
            .D = per_channel(args_.D),
            .dt_bias = per_channel(args_.dt_bias),
            .dt_softplus = args_.dt_softplus,
            .decay = decay,
            .state = state,
            .y = args_.y.as<float>() + row * args_.y.stride(0) + t * args_.y.stride(1) + channel,
            .y_stride = args_.y.stride(1)};
  }

  const SelectiveScanArgs& args_;
  const SelectiveScanKernels& kernels_;
  int dstate_;
  std::int64_t group_size_;
  std::int64_t block_ = 0;   // channels of one unit, but for the last of a group
  std::int64_t blocks_ = 0;  // of one group
  const std::int32_t* offsets_;
};

}  // namespace

void selective_scan(const SelectiveScanArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("selective_scan", "x", args.x);
  const Scan scan(args, pool.nthreads());
  // A few tokens of one block take less time than waking a thread; 16 do not.
  const std::int64_t grain = 1 + 16 / (args.x.dim(1) + 1);
  pool.parallel_for(scan.nunits(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) scan.run_unit(unit);
  });
}

}  // namespace adder::cpu
