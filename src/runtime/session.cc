#include "adder/session.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/sampling/sampling.h"
#include "runtime/decoding.h"
#include "runtime/model_impl.h"
#include "runtime/together.h"

namespace adder {

Session::Impl::Impl(std::shared_ptr<const Model::Impl> shared_model)
    : model(std::move(shared_model)) {
  reset();
}

Session::Impl::~Impl() {
  while (!decodings.empty()) decodings.back()->forget(*this);
}

void Session::Impl::reset() {
  ahead.clear();
  pending.reset();
  if (driver != nullptr) driver->let_go();  // with nothing left to feed
  state = model->network->new_state(*model->backend, 1);
  last_hidden = {};
  ntokens = 0;
  recent.clear();
  logits_valid = false;
}

std::int64_t Session::Impl::piece_tokens() const {
  return std::min(model->piece_tokens, model->backend->piece_tokens());
}

void Session::Impl::check_ids(std::span<const int> tokens, std::string_view what) const {
  const std::int64_t vocab_size = model->network->config().padded_vocab_size;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i] >= 0 && tokens[i] < vocab_size,
          "token {} of {} is {}, expected an id from 0 to {}", i, what, tokens[i], vocab_size - 1);
  }
}

void Session::Impl::feed(std::span<const int> tokens, const OnHidden& on_hidden) {
  check_ids(tokens, "the input");
  flush();
  const auto most = static_cast<std::size_t>(piece_tokens());
  for (std::size_t first = 0; first < tokens.size(); first += most) {
    const Tensor hidden = feed_piece(tokens.subspan(first, std::min(most, tokens.size() - first)));
    if (on_hidden) on_hidden(static_cast<std::int64_t>(first), hidden);
  }
}

Tensor Session::Impl::feed_piece(std::span<const int> tokens) {
  Backend& backend = *model->backend;
  const std::int64_t count = std::ssize(tokens);
  Tensor hidden =
      model->network->forward(backend, backend.upload_ids(tokens), Sequences::single(count), state);
  took(tokens, backend.rows(hidden, count - 1, 1));
  return hidden;
}

void Session::Impl::took(std::span<const int> tokens, const Tensor& hidden) {
  last_hidden = model->backend->clone(hidden);
  remember(tokens);
}

void Session::Impl::remember(std::span<const int> tokens) {
  ntokens += std::ssize(tokens);
  const std::size_t keep = std::min<std::size_t>(tokens.size(), kRecentTokens);
  recent.insert(recent.end(), tokens.end() - static_cast<std::ptrdiff_t>(keep), tokens.end());
  if (recent.size() > kRecentTokens) recent.erase(recent.begin(), recent.end() - kRecentTokens);
  logits_valid = false;
}

void Session::Impl::flush() {
  Impl* self = this;
  flush_together({&self, 1});
}

void Session::Impl::settle() {
  Impl* self = this;
  settle_together({&self, 1});
}

std::span<const float> Session::Impl::logits() {
  flush();
  check(ntokens > 0, "logits: the session holds no token yet, expected at least one");
  const auto vocab_size = static_cast<std::size_t>(model->network->config().vocab_size);
  if (!logits_valid) {
    const Tensor device = model->network->logits(*model->backend, last_hidden);
    logits_values.resize(static_cast<std::size_t>(device.view.dim(1)));
    model->backend->download(device, logits_values);
    logits_valid = true;
  }
  return std::span<const float>(logits_values).first(vocab_size);
}

// ---- public ------------------------------------------------------------------------------------

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

void Session::prefill(std::span<const int> tokens) {
  impl_->settle();
  impl_->feed(tokens, {});
}

std::span<const float> Session::logits() {
  impl_->settle();
  return impl_->logits();
}

void Session::prefill(std::span<const int> tokens,
                      const std::function<void(std::int64_t, std::span<const float>)>& on_block) {
  // Few rows at a time: a row is a whole vocabulary.
  constexpr std::int64_t kRows = 32;
  impl_->settle();
  Backend& backend = *impl_->model->backend;
  const Network& network = *impl_->model->network;
  const auto vocab_size = static_cast<std::size_t>(network.config().vocab_size);
  std::vector<float> padded;
  std::vector<float> block;
  impl_->feed(tokens, [&](std::int64_t first, const Tensor& hidden) {
    for (std::int64_t row = 0; row < hidden.view.dim(0); row += kRows) {
      const std::int64_t count = std::min(kRows, hidden.view.dim(0) - row);
      const Tensor logits = network.logits(backend, backend.rows(hidden, row, count));
      const auto width = static_cast<std::size_t>(logits.view.dim(1));
      padded.resize(static_cast<std::size_t>(count) * width);
      backend.download(logits, padded);
      block.resize(static_cast<std::size_t>(count) * vocab_size);
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        std::copy_n(padded.data() + i * width, vocab_size, block.data() + i * vocab_size);
      }
      on_block(first + row, block);
    }
  });
}

std::vector<double> Session::score(std::span<const int> tokens) {
  std::vector<double> out;
  if (tokens.empty()) return out;
  const auto vocab_size = static_cast<std::size_t>(impl_->model->network->config().vocab_size);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i] >= 0 && static_cast<std::size_t>(tokens[i]) < vocab_size,
          "score: token {} is {}, expected an id from 0 to {}", i, tokens[i], vocab_size - 1);
  }
  out.reserve(tokens.size());
  if (position() > 0) out.push_back(negative_log_likelihood(logits(), tokens[0]));
  prefill(tokens, [&](std::int64_t first, std::span<const float> logits) {
    const std::size_t rows = logits.size() / vocab_size;
    for (std::size_t i = 0; i < rows; ++i) {
      const std::size_t next = static_cast<std::size_t>(first) + i + 1;
      if (next == tokens.size()) return;
      out.push_back(
          negative_log_likelihood(logits.subspan(i * vocab_size, vocab_size), tokens[next]));
    }
  });
  return out;
}

std::int64_t Session::position() const {
  return impl_->ntokens + (impl_->pending ? 1 : 0) + std::ssize(impl_->ahead);
}

void Session::reset() { impl_->reset(); }

Session Session::fork() const {
  Session other(std::make_unique<Impl>(impl_->model));
  other.restore(snapshot());
  return other;
}

}  // namespace adder
