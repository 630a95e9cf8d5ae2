#include "runtime/generation.h"

#include <algorithm>

#include "core/check.h"

namespace adder {
namespace {

// So many tokens at most are fed again if a generation is given up.
constexpr std::size_t kMostAhead = 4096;

}  // namespace

Generation::Impl::~Impl() {
  try {
    let_go();
  } catch (const std::exception&) {
    // The session tries again when it is used.
  }
}

std::span<const int> Generation::Impl::stop_tokens() const {
  if (!options.stop_at_eos) return {};
  return session->model->network->config().eos_token_ids;
}

bool Generation::Impl::ends_text(int token) const {
  const std::span<const int> stops = stop_tokens();
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

std::optional<int> Generation::Impl::next() {
  if (decoder_ == nullptr) start_on_device();
  return decoder_ == nullptr ? next_on_host() : next_on_device();
}

// ---- step by step on the host -------------------------------------------------------------------

std::optional<int> Generation::Impl::next_on_host() {
  const std::span<const float> logits = session->logits();
  const std::span<const int> recent(session->recent);
  const auto window = std::min(recent.size(), static_cast<std::size_t>(options.repeat_window));
  const int token = sample_token(logits, options.sampling, recent.last(window), rng, workspace);
  if (ends_text(token)) return std::nullopt;
  session->pending = token;
  return token;
}

// ---- by the device ------------------------------------------------------------------------------

void Generation::Impl::start_on_device() {
  const Model::Impl& model = *session->model;
  session->settle();
  std::unique_ptr<Decoder> decoder = model.decoders.take(*model.network, *model.backend);
  if (decoder == nullptr) return;
  const Tensor logits = session->device_logits();
  copy_state(*model.backend, decoder->state(), session->state);
  const DecodeRequest request{
      .sampling = options.sampling,
      .seed = rng.seed(),
      .random_position = rng.position(),
      .repeat_window = options.repeat_window,
      .recent = session->recent,
      .max_tokens = options.max_tokens < 0 ? -1 : options.max_tokens - produced};
  decoder->loop().start(logits, {&request, 1}, stop_tokens());
  decoder_ = std::move(decoder);
  taken_ = 0;
  session->driver = this;
}

std::optional<int> Generation::Impl::next_on_device() {
  std::optional<int> token;
  try {
    token = decoder_->loop().token(0, taken_);
  } catch (const Error&) {
    let_go();
    throw;
  }
  if (!token) {
    let_go();
    return std::nullopt;
  }
  ++taken_;
  session->ahead.push_back(*token);
  if (session->ahead.size() >= kMostAhead && decoder_->loop().settle()) adopt_state(*decoder_);
  return token;
}

// The loop holds still: its state is the session's but for the last token, which is fed only where
// something else than a token came next.
void Generation::Impl::adopt_state(Decoder& decoder) {
  const DecodeEnd end = decoder.loop().end(0);
  std::vector<int> fed;
  if (session->pending) fed.push_back(*session->pending);
  fed.insert(fed.end(), session->ahead.begin(), session->ahead.end());
  session->ahead.clear();
  session->pending.reset();
  if (fed.empty()) return;
  if (end == DecodeEnd::running || end == DecodeEnd::max_tokens) {
    session->pending = fed.back();
    fed.pop_back();
  }
  if (!fed.empty()) session->adopt(decoder.state(), decoder.hidden(), fed);
}

void Generation::Impl::let_go() {
  if (decoder_ == nullptr) return;
  // Whatever goes wrong from here on, the session is its own again.
  std::unique_ptr<Decoder> decoder = std::move(decoder_);
  session->driver = nullptr;
  if (options.sampling.temperature > 0) {
    rng = Rng(rng.seed(), rng.position() + static_cast<std::uint64_t>(taken_));
  }
  if (decoder->loop().settle()) {
    adopt_state(*decoder);
  } else {
    decoder->loop().cancel();
    session->feed_ahead();
  }
  session->model->decoders.give_back(std::move(decoder));
}

// ---- public -------------------------------------------------------------------------------------

Generation::Generation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generation::Generation(Generation&&) noexcept = default;
Generation::~Generation() = default;

Generation Session::generate(const GenerateOptions& options) {
  validate(options.sampling);
  check(options.repeat_window >= 0 && options.repeat_window <= kRecentTokens,
        "generate: repeat_window is {}, expected 0 to {}", options.repeat_window, kRecentTokens);
  check(position() > 0, "generate: the session holds no token yet, expected a prompt");
  return Generation(std::make_unique<Generation::Impl>(*impl_, options));
}

void Generation::advance() {
  if (stop_reason_ != StopReason::running) return;
  const std::int64_t most = impl_->options.max_tokens;
  if (most >= 0 && impl_->produced >= most) {
    impl_->let_go();
    stop_reason_ = StopReason::max_tokens;
    return;
  }
  const std::optional<int> token = impl_->next();
  if (!token) {
    stop_reason_ = StopReason::end_of_text;
    return;
  }
  token_ = *token;
  ++impl_->produced;
}

}  // namespace adder
