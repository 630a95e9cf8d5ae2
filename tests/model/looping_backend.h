#pragma once

// A backend on the CPU that decodes by loops as a device does: ahead of whoever asks for tokens, in
// memory of its own, until it pauses. Sessions are tested with it where there is no device.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "core/check.h"
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

  HostLoop(Backend& backend, std::int64_t nsequences, std::int64_t vocab_size, Step step,
           LoopBehaviour& behaviour)
      : backend_(backend),
        vocab_size_(static_cast<std::size_t>(vocab_size)),
        step_(std::move(step)),
        behaviour_(behaviour),
        sequences_(static_cast<std::size_t>(nsequences)) {
    // As a device does: what is in the state then does not matter.
    feed();
  }

  void start(const Tensor& logits, std::span<const DecodeRequest> requests,
             std::span<const int> stop_tokens) override {
    check(requests.size() == sequences_.size(), "{} requests for {} sequences", requests.size(),
          sequences_.size());
    ++behaviour_.started;
    stops_.assign(stop_tokens.begin(), stop_tokens.end());
    for (std::size_t s = 0; s < requests.size(); ++s) {
      const DecodeRequest& request = requests[s];
      sequences_[s] = {.request = request,
                       .rng = Rng(request.seed, request.random_position),
                       .end = request.max_tokens == 0 ? DecodeEnd::max_tokens : DecodeEnd::running};
    }
    limit_ = behaviour_.ring;
    sample(logits);
    run();
  }

  std::optional<int> token(std::int64_t sequence, std::int64_t n) override {
    Sequence& s = sequences_[static_cast<std::size_t>(sequence)];
    while (n >= std::ssize(s.tokens) && s.end == DecodeEnd::running) {
      if (n == limit_) {
        for (const Sequence& other : sequences_) {
          check(other.end != DecodeEnd::running || other.asked == limit_,
                "token {} of sequence {} was asked for before those of others", n, sequence);
        }
        limit_ += behaviour_.ring;
      }
      run();
    }
    if (n >= std::ssize(s.tokens)) {
      if (s.error) std::rethrow_exception(s.error);
      return std::nullopt;
    }
    s.asked = n + 1;
    return s.tokens[static_cast<std::size_t>(n)];
  }

  DecodeEnd end(std::int64_t sequence) const override {
    return sequences_[static_cast<std::size_t>(sequence)].end;
  }

  void cancel() override {
    // What is lost on a device is spoilt here, so that nobody relies on it.
    feed();
  }

  bool settle() override {
    return std::all_of(sequences_.begin(), sequences_.end(), [&](const Sequence& s) {
      return s.asked == std::ssize(s.tokens) && (s.end != DecodeEnd::running || s.asked == limit_);
    });
  }

  bool runs_alone() const override { return true; }

 private:
  struct Sequence {
    DecodeRequest request{};
    Rng rng{};
    DecodeEnd end = DecodeEnd::running;
    std::vector<int> tokens{};
    std::exception_ptr error{};
    std::int64_t asked = 0;
  };

  bool some_run() const {
    return std::any_of(sequences_.begin(), sequences_.end(),
                       [](const Sequence& s) { return s.end == DecodeEnd::running; });
  }

  // The last token of each, also of those that have ended, whose states are worth nothing then.
  Tensor feed() {
    std::vector<std::int32_t> ids;
    for (const Sequence& s : sequences_) ids.push_back(s.tokens.empty() ? 0 : s.tokens.back());
    return step_(backend_.upload_ids(ids));
  }

  void sample(const Tensor& logits) {
    std::vector<float> values(static_cast<std::size_t>(logits.view.numel()));
    backend_.download(logits, values);
    const auto width = static_cast<std::size_t>(logits.view.dim(1));
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      if (sequences_[s].end != DecodeEnd::running) continue;
      sample(sequences_[s], std::span<const float>(values).subspan(s * width, vocab_size_));
    }
  }

  void sample(Sequence& s, std::span<const float> logits) {
    const std::span<const int> recent(s.request.recent);
    const auto window = std::min(recent.size(), static_cast<std::size_t>(s.request.repeat_window));
    int token = 0;
    try {
      token = sample_token(logits, s.request.sampling, recent.last(window), s.rng, workspace_);
    } catch (...) {
      s.error = std::current_exception();
      s.end = DecodeEnd::failed;
      return;
    }
    if (s.request.stops && std::find(stops_.begin(), stops_.end(), token) != stops_.end()) {
      s.end = DecodeEnd::stop_token;
      return;
    }
    s.tokens.push_back(token);
    s.request.recent.push_back(token);
    if (std::ssize(s.tokens) == s.request.max_tokens) s.end = DecodeEnd::max_tokens;
  }

  void run() {
    for (std::int64_t i = 0; i < behaviour_.ahead && some_run(); ++i) {
      for (const Sequence& s : sequences_) {
        if (s.end == DecodeEnd::running && std::ssize(s.tokens) >= limit_) return;
      }
      ++behaviour_.steps;
      sample(feed());
    }
  }

  Backend& backend_;
  std::size_t vocab_size_;
  Step step_;
  LoopBehaviour& behaviour_;
  std::vector<int> stops_;
  SamplingWorkspace workspace_;
  std::vector<Sequence> sequences_;
  std::int64_t limit_ = 0;
};

class LoopingBackend final : public ForwardingBackend {
 public:
  LoopingBackend(std::unique_ptr<Backend> other, LoopBehaviour& behaviour)
      : ForwardingBackend(*other), owned_(std::move(other)), behaviour_(behaviour) {}

  std::unique_ptr<DecodeLoop> make_decode_loop(
      std::int64_t nsequences, std::int64_t vocab_size,
      const std::function<Tensor(const Tensor& ids)>& step) override {
    ++behaviour_.made;
    return std::make_unique<HostLoop>(other(), nsequences, vocab_size, step, behaviour_);
  }

 private:
  std::unique_ptr<Backend> owned_;
  LoopBehaviour& behaviour_;
};

}  // namespace adder::test
