#include "runtime/decoder.h"

namespace adder {

std::unique_ptr<Decoder> Decoder::make(const Network& network, Backend& backend) {
  std::unique_ptr<Decoder> decoder(new Decoder());
  decoder->state_ = network.new_state(backend, 1);
  decoder->loop_ = backend.make_decode_loop(
      1, network.config().vocab_size, [&network, &backend, d = decoder.get()](const Tensor& ids) {
        // Kept, so that nothing else gets its memory within a step.
        d->hidden_ = network.forward(backend, ids, Sequences::single(1), d->state_);
        return network.logits(backend, d->hidden_);
      });
  if (decoder->loop_ == nullptr) return nullptr;
  return decoder;
}

std::unique_ptr<Decoder> DecoderPool::take(const Network& network, Backend& backend) {
  {
    const std::lock_guard lock(mutex_);
    if (has_none_) return nullptr;
    if (!idle_.empty()) {
      std::unique_ptr<Decoder> decoder = std::move(idle_.back());
      idle_.pop_back();
      return decoder;
    }
  }
  std::unique_ptr<Decoder> decoder = Decoder::make(network, backend);
  if (decoder == nullptr) {
    const std::lock_guard lock(mutex_);
    has_none_ = true;
  }
  return decoder;
}

void DecoderPool::give_back(std::unique_ptr<Decoder> decoder) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(decoder));
}

}  // namespace adder
