// Decoding by a loop that a device runs by itself, ahead of whoever takes the tokens. Sessions keep
// their states from before it, and what was taken since as `ahead`.

#include <algorithm>

#include "runtime/decoding.h"
#include "runtime/together.h"

namespace adder {
namespace {

// So many tokens at most are fed again if a generation is given up.
constexpr std::size_t kMostAhead = 4096;

// Takes over row `row` of a state that all of the session's tokens were fed to; perhaps not the
// last one.
void adopt_row(Session::Impl& session, Decoder& decoder, std::int64_t row) {
  std::vector<int> fed;
  if (session.pending) fed.push_back(*session.pending);
  fed.insert(fed.end(), session.ahead.begin(), session.ahead.end());
  session.ahead.clear();
  session.pending.reset();
  // The last one has not been fed, unless another one was sampled after it, which ended all.
  const DecodeEnd end = decoder.loop().end(row);
  if (!fed.empty() && end != DecodeEnd::stop_token && end != DecodeEnd::failed) {
    session.pending = fed.back();
    fed.pop_back();
  }
  if (fed.empty()) return;
  Backend& backend = *session.model->backend;
  copy_state(backend, session.state, 0, decoder.state(), row);
  session.took(fed, backend.rows(decoder.hidden(), row, 1));
}

}  // namespace

bool Decoding::start_on_device(std::span<Session::Impl* const> sessions) {
  Backend& backend = *model_->backend;
  std::unique_ptr<Decoder> decoder =
      model_->decoders.take(*model_->network, backend, std::ssize(sessions));
  if (decoder == nullptr) return false;
  const Tensor logits =
      model_->network->logits(backend, gather_hidden(sessions, decoder->capacity()));
  std::vector<DecodeRequest> requests(static_cast<std::size_t>(decoder->capacity()),
                                      {.recent = {}, .max_tokens = 0});
  for (std::size_t sequence : round_) {
    const Member& member = members_[sequence];
    const GenerateOptions& options = member.options;
    copy_state(backend, decoder->state(), member.row, member.session->state, 0);
    requests[static_cast<std::size_t>(member.row)] = {
        .sampling = options.sampling,
        .seed = member.rng.seed(),
        .random_position = member.rng.position(),
        .repeat_window = options.repeat_window,
        .recent = member.session->recent,
        .max_tokens = options.max_tokens < 0 ? -1 : options.max_tokens - member.produced,
        .stops = options.stop_at_eos};
  }
  decoder->loop().start(logits, requests, model_->network->config().eos_token_ids);
  decoder_ = std::move(decoder);
  return true;
}

std::optional<int> Decoding::take(Member& member) {
  const std::optional<int> token = decoder_->loop().token(member.row, member.taken);
  if (!token) return std::nullopt;
  ++member.taken;
  member.session->ahead.push_back(*token);
  return token;
}

void Decoding::follow() {
  const bool is_far_behind = std::any_of(round_.begin(), round_.end(), [&](std::size_t sequence) {
    return members_[sequence].session->ahead.size() >= kMostAhead;
  });
  if (is_far_behind && decoder_->loop().settle()) adopt_states(*decoder_);
}

// The loop holds still. All that are in hand took part in its last step: who ended in a round
// before was let go of.
void Decoding::adopt_states(Decoder& decoder) {
  for (std::size_t sequence : round_) {
    const Member& member = members_[sequence];
    if (member.session != nullptr) adopt_row(*member.session, decoder, member.row);
  }
}

void Decoding::let_go_of_device() {
  std::unique_ptr<Decoder> held = std::move(decoder_);
  for (std::size_t sequence : round_) {
    Member& member = members_[sequence];
    if (member.options.sampling.temperature <= 0) continue;
    member.rng =
        Rng(member.rng.seed(), member.rng.position() + static_cast<std::uint64_t>(member.taken));
  }
  if (held->loop().settle()) {
    adopt_states(*held);
  } else {
    held->loop().cancel();
  }
  model_->decoders.give_back(std::move(held));
}

}  // namespace adder
