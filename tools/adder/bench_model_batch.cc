#include "bench_model_batch.h"

#include <algorithm>
#include <memory>

#include "bench/op_benchmark.h"
#include "ops/sampling/sampling.h"
#include "process.h"
#include "progress.h"
#include "runtime/model_impl.h"

namespace adder::cli {
namespace {

// Many sequences of a model, below the session: each step feeds one token to each.
class Batch {
 public:
  Batch(const Model& model, std::int64_t size)
      : backend_(*model.impl().backend),
        network_(*model.impl().network),
        size_(size),
        state_(network_.new_state(backend_, size)),
        step_(Sequences::one_token_each(size)) {}

  Tensor step(const Tensor& ids) {
    return network_.logits(backend_, network_.forward(backend_, ids, step_, state_));
  }

  /// The first tokens, all different.
  Tensor first_ids() {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(size_));
    const auto vocab_size = static_cast<std::int32_t>(network_.config().vocab_size);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(7919 * i % static_cast<std::size_t>(vocab_size));
    }
    return backend_.upload_ids(ids);
  }

  Backend& backend() { return backend_; }
  std::int64_t vocab_size() const { return network_.config().vocab_size; }
  std::int64_t size() const { return size_; }

 private:
  Backend& backend_;
  const Network& network_;
  std::int64_t size_;
  NetworkState state_;
  Sequences step_;
};

std::vector<double> on_device(Batch& batch, DecodeLoop& loop, std::int64_t tokens,
                              std::int64_t turn) {
  const std::vector<DecodeRequest> requests(
      static_cast<std::size_t>(batch.size()),
      {.sampling = {.temperature = 0}, .recent = {}, .max_tokens = tokens + 1});
  loop.start(batch.step(batch.first_ids()), requests, {});
  const auto take = [&](std::int64_t n) {
    for (std::int64_t s = 0; s < batch.size(); ++s) loop.token(s, n);
  };
  take(0);
  std::vector<double> samples;
  for (std::int64_t n = 1; n <= tokens; n += turn) {
    const std::int64_t count = std::min(turn, tokens + 1 - n);
    const StopWatch watch;
    for (std::int64_t i = 0; i < count; ++i) take(n + i);
    samples.push_back(watch.seconds() / static_cast<double>(count));
  }
  return samples;
}

std::vector<double> on_host(Batch& batch, std::int64_t tokens, std::int64_t turn) {
  Tensor logits = batch.step(batch.first_ids());
  std::vector<float> values(static_cast<std::size_t>(logits.view.numel()));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(batch.size()));
  const auto width = static_cast<std::size_t>(logits.view.dim(1));
  std::vector<double> samples;
  for (std::int64_t n = 0; n < tokens; n += turn) {
    const std::int64_t count = std::min(turn, tokens - n);
    const StopWatch watch;
    for (std::int64_t i = 0; i < count; ++i) {
      batch.backend().download(logits, values);
      for (std::size_t s = 0; s < ids.size(); ++s) {
        ids[s] = argmax(
            std::span(values).subspan(s * width, static_cast<std::size_t>(batch.vocab_size())));
      }
      logits = batch.step(batch.backend().upload_ids(ids));
    }
    samples.push_back(watch.seconds() / static_cast<double>(count));
  }
  return samples;
}

}  // namespace

std::vector<double> decode_batch(const Model& model, std::int64_t batch_size, std::int64_t tokens,
                                 std::int64_t turn) {
  Batch batch(model, batch_size);
  const std::unique_ptr<DecodeLoop> loop = batch.backend().make_decode_loop(
      batch_size, batch.vocab_size(), [&](const Tensor& ids) { return batch.step(ids); });
  if (loop != nullptr) return on_device(batch, *loop, tokens, turn);
  return on_host(batch, tokens, turn);
}

}  // namespace adder::cli
