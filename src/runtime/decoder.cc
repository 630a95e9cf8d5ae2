#include "runtime/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>

namespace adder {
namespace {

// Few distinct sizes, since a loop is made for one: up to 16 all of them, then an eighth of the
// power of two below apart. An idle row costs as much as one in use.
std::int64_t capacity_for(std::int64_t nsequences) {
  const auto n = static_cast<std::uint64_t>(nsequences);
  const std::uint64_t step = std::max<std::uint64_t>(std::bit_floor(n) / 8, 1);
  return static_cast<std::int64_t>((n + step - 1) / step * step);
}

}  // namespace

std::unique_ptr<Decoder> Decoder::make(const Network& network, Backend& backend,
                                       std::int64_t capacity) {
  backend.check_room(capacity * state_bytes(network.config(), backend.state_dtype()),
                     fmt::format("the states of {} sequences decoded together", capacity));
  std::unique_ptr<Decoder> decoder(new Decoder(capacity));
  decoder->state_ = network.new_state(backend, capacity);
  decoder->loop_ =
      backend.make_decode_loop(capacity, network.config().vocab_size,
                               [&network, &backend, d = decoder.get()](const Tensor& ids) {
                                 // Kept, so that nothing else gets its memory within a step.
                                 d->hidden_ = network.forward(backend, ids, d->step_, d->state_);
                                 return network.logits(backend, d->hidden_);
                               });
  if (decoder->loop_ == nullptr) return nullptr;
  return decoder;
}

std::unique_ptr<Decoder> DecoderPool::take(const Network& network, Backend& backend,
                                           std::int64_t nsequences) {
  const std::int64_t capacity = capacity_for(nsequences);
  std::vector<std::unique_ptr<Decoder>> given_up;
  {
    const std::lock_guard lock(mutex_);
    if (has_none_) return nullptr;
    const auto found = std::find_if(idle_.rbegin(), idle_.rend(), [&](const auto& decoder) {
      return decoder->capacity() == capacity;
    });
    if (found != idle_.rend()) {
      std::unique_ptr<Decoder> decoder = std::move(*found);
      idle_.erase(std::next(found).base());
      return decoder;
    }
    if (capacity > 1) {
      const auto large = std::partition(
          idle_.begin(), idle_.end(), [](const auto& decoder) { return decoder->capacity() == 1; });
      std::move(large, idle_.end(), std::back_inserter(given_up));
      idle_.erase(large, idle_.end());
    }
  }
  given_up.clear();
  std::unique_ptr<Decoder> decoder = Decoder::make(network, backend, capacity);
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
