#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/decode_kernel.h"
#include "backend/decode_loop.h"
#include "backend/memory_pool.h"
#include "cuda/timing.h"
#include "cuda/while_graph.h"
#include "ops/sampling/sample_tokens.h"

namespace adder {

/// The loop as a graph that repeats itself on the device; where a driver has no such graphs, the
/// same step replayed by the host.
///
///   advance (only looks)  →  while: step, sample, advance
///
/// The device hands tokens out through a ring in host memory and pauses when it is full.
class CudaDecodeLoop final : public DecodeLoop {
 public:
  /// Who begins the next turn: the device, or the host, which waits for every token.
  enum class Turns { device, host };
  /// What the driver can do.
  static Turns best_turns();

  /// Puts a step on the stream, (batch) ids to logits (batch, at least vocab_size).
  using Step = std::function<Tensor(const Tensor& ids)>;

  /// What steps are put on, where their tensors come from and what else they need as long as they
  /// may run belongs to the loop from now on. Work
  /// on `others`, which sets up state and logits, comes before what is started after it.
  CudaDecodeLoop(int device, cuda::Stream others, std::unique_ptr<cuda::OwnedStream> stream,
                 std::shared_ptr<MemoryPool> arena, std::shared_ptr<const void> recorder,
                 std::int64_t batch, std::int64_t vocab_size, const Step& step, Turns turns);
  ~CudaDecodeLoop() override;

  void start(const Tensor& logits, std::span<const DecodeRequest> requests,
             std::span<const int> stop_tokens) override;
  std::optional<int> token(std::int64_t sequence, std::int64_t n) override;
  DecodeEnd end(std::int64_t sequence) const override;
  void cancel() override;
  bool settle() override;
  bool runs_alone() const override { return while_ != nullptr; }

 private:
  SampleTokensArgs sampling_args(const ConstTensorView& logits) const;
  void sample(const ConstTensorView& logits);
  void launch();
  void go_on(std::int64_t sequence);
  void send_limit(std::int64_t limit);
  bool has_ended(std::int64_t sequence) const;
  [[noreturn]] void throw_sample_error(std::int64_t sequence) const;

  const int device_;
  const cuda::Stream others_;
  const std::unique_ptr<cuda::OwnedStream> owned_stream_;
  const cuda::Stream stream_;
  const std::shared_ptr<MemoryPool> arena_;
  const std::shared_ptr<const void> recorder_;
  const std::int64_t batch_, vocab_size_;
  // On the device.
  Tensor ids_, sampling_, position_, recent_, recent_count_, active_, status_, produced_;
  Tensor max_tokens_, limit_, stop_tokens_, nstop_tokens_, workspace_;
  Tensor first_logits_;
  // In host memory.
  std::shared_ptr<std::byte> shared_;
  cuda::decode::Params params_{};
  std::int32_t* is_cancelled_ = nullptr;

  std::unique_ptr<cuda::WhileGraph> while_;
  std::unique_ptr<cuda::Graph> turn_;  ///< where there is no while_
  std::vector<SequenceSampling> requests_;
  std::vector<std::int64_t> handed_out_;  ///< tokens that `token` gave, of each sequence
  std::int64_t limit_now_ = 0;
  bool is_settled_ = false;  ///< others may read the state until the loop goes on
};

}  // namespace adder
