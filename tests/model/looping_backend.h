#pragma once

// A backend on the CPU that decodes by loops as a device does: ahead of whoever asks for tokens, in
// memory of its own, until it pauses. Sessions are tested with it where there is no device.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "ops/sampling/sampling.h"
#include "tests/model/forwarding_backend.h"

namespace adder::test {

/// How a LoopingBackend's loops behave, and what they did.
struct LoopBehaviour {
  std::int64_t ring = 4096;  ///< tokens not asked for with which a loop pauses
  std::int64_t ahead = 50;   ///< tokens that it samples at once
  int made = 0;              ///< loops
  int started = 0;
  std::int64_t steps = 0;
};

class HostLoop final : public DecodeLoop {
 public:
  using Step = std::function<Tensor(const Tensor& ids)>;

  HostLoop(Backend& backend, std::int64_t vocab_size, Step step, LoopBehaviour& behaviour)
      : backend_(backend),
        vocab_size_(static_cast<std::size_t>(vocab_size)),
        step_(std::move(step)),
        behaviour_(behaviour) {
    // As a device does: what is in the state then does not matter.
    step_(backend_.upload_ids(std::vector<std::int32_t>{0}));
  }

  void start(const Tensor& logits, std::span<const DecodeRequest> requests,
             std::span<const int> stop_tokens) override {
    ++behaviour_.started;
    request_ = requests[0];
    stops_.assign(stop_tokens.begin(), stop_tokens.end());
    rng_ = Rng(request_.seed, request_.random_position);
    tokens_.clear();
    end_ = DecodeEnd::running;
    asked_ = 0;
    limit_ = behaviour_.ring;
    sample(logits);
    run();
  }

  std::optional<int> token(std::int64_t /*sequence*/, std::int64_t n) override {
    if (n == limit_) {
      limit_ += behaviour_.ring;
      run();
    }
    while (n >= std::ssize(tokens_) && end_ == DecodeEnd::running) run();
    if (n >= std::ssize(tokens_)) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    asked_ = n + 1;
    return tokens_[static_cast<std::size_t>(n)];
  }

  DecodeEnd end(std::int64_t /*sequence*/) const override { return end_; }

  void cancel() override {
    // What is lost on a device is spoilt here, so that nobody relies on it.
    step_(backend_.upload_ids(std::vector<std::int32_t>{0}));
  }

  bool settle() override {
    return asked_ == std::ssize(tokens_) && (end_ != DecodeEnd::running || asked_ == limit_);
  }

  bool runs_alone() const override { return true; }

 private:
  void sample(const Tensor& logits) {
    std::vector<float> values(static_cast<std::size_t>(logits.view.numel()));
    backend_.download(logits, values);
    const std::span<const int> recent(request_.recent);
    const auto window = std::min(recent.size(), static_cast<std::size_t>(request_.repeat_window));
    int token = 0;
    try {
      token = sample_token(std::span(values).first(vocab_size_), request_.sampling,
                           recent.last(window), rng_, workspace_);
    } catch (...) {
      error_ = std::current_exception();
      end_ = DecodeEnd::failed;
      return;
    }
    if (std::find(stops_.begin(), stops_.end(), token) != stops_.end()) {
      end_ = DecodeEnd::stop_token;
      return;
    }
    tokens_.push_back(token);
    request_.recent.push_back(token);
    if (std::ssize(tokens_) == request_.max_tokens) end_ = DecodeEnd::max_tokens;
  }

  void run() {
    for (std::int64_t i = 0; i < behaviour_.ahead && end_ == DecodeEnd::running; ++i) {
      if (std::ssize(tokens_) >= limit_) return;
      ++behaviour_.steps;
      sample(step_(backend_.upload_ids(std::vector<std::int32_t>{tokens_.back()})));
    }
  }

  Backend& backend_;
  std::size_t vocab_size_;
  Step step_;
  LoopBehaviour& behaviour_;
  DecodeRequest request_;
  std::vector<int> stops_;
  Rng rng_;
  SamplingWorkspace workspace_;
  std::vector<int> tokens_;
  std::exception_ptr error_;
  DecodeEnd end_ = DecodeEnd::running;
  std::int64_t asked_ = 0;
  std::int64_t limit_ = 0;
};

class LoopingBackend final : public ForwardingBackend {
 public:
  LoopingBackend(std::unique_ptr<Backend> other, LoopBehaviour& behaviour)
      : ForwardingBackend(*other), owned_(std::move(other)), behaviour_(behaviour) {}

  std::unique_ptr<DecodeLoop> make_decode_loop(
      std::int64_t /*nsequences*/, std::int64_t vocab_size,
      const std::function<Tensor(const Tensor& ids)>& step) override {
    ++behaviour_.made;
    return std::make_unique<HostLoop>(other(), vocab_size, step, behaviour_);
  }

 private:
  std::unique_ptr<Backend> owned_;
  LoopBehaviour& behaviour_;
};

}  // namespace adder::test
