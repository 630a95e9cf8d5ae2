// Decoding step by step: the states of all sequences lie in the rows of one, and a sequence that
// ends gives its row back.

#include <algorithm>

#include "runtime/decoding.h"
#include "runtime/together.h"

namespace adder {

NetworkState& Decoding::state() {
  return state_.empty() ? members_[round_[0]].session->state : state_;
}

void Decoding::start_on_host(std::span<Session::Impl* const> sessions) {
  state_ = sessions.size() > 1 ? gather_states(sessions) : NetworkState();
  hidden_ = gather_hidden(sessions, std::ssize(sessions));
  if (sessions.size() > 1) return read_logits();
  sessions[0]->logits();  // which may have them
  logits_ = sessions[0]->logits_values;
}

void Decoding::step() {
  Backend& backend = *model_->backend;
  std::vector<int> ids(round_.size());
  for (std::size_t sequence : round_) {
    const Member& member = members_[sequence];
    ids[static_cast<std::size_t>(member.row)] = *member.session->pending;
  }
  hidden_ = model_->network->forward(backend, backend.upload_ids(ids),
                                     Sequences::one_token_each(std::ssize(ids)), state());
  for (std::size_t sequence : round_) {
    Session::Impl& session = *members_[sequence].session;
    session.remember({&*session.pending, 1});
    session.pending.reset();
  }
  read_logits();
}

void Decoding::read_logits() {
  const Tensor logits = model_->network->logits(*model_->backend, hidden_);
  logits_.resize(static_cast<std::size_t>(logits.view.numel()));
  model_->backend->download(logits, logits_);
}

std::optional<int> Decoding::draw(Member& member) {
  const ModelConfig& config = model_->network->config();
  Session::Impl& session = *member.session;
  const std::size_t width = logits_.size() / static_cast<std::size_t>(hidden_.view.dim(0));
  const std::span<const float> logits = std::span<const float>(logits_).subspan(
      static_cast<std::size_t>(member.row) * width, static_cast<std::size_t>(config.vocab_size));
  const std::span<const int> recent(session.recent);
  const auto window =
      std::min(recent.size(), static_cast<std::size_t>(member.options.repeat_window));
  const int token =
      sample_token(logits, member.options.sampling, recent.last(window), member.rng, workspace_);
  const std::vector<int>& stops = config.eos_token_ids;
  if (member.options.stop_at_eos && std::find(stops.begin(), stops.end(), token) != stops.end()) {
    return std::nullopt;
  }
  session.pending = token;
  return token;
}

void Decoding::give_back_row(Member& member) {
  Backend& backend = *model_->backend;
  if (!state_.empty()) copy_state(backend, member.session->state, 0, state_, member.row);
  member.session->last_hidden = backend.clone(backend.rows(hidden_, member.row, 1));
}

// Rows from the end take the place of those that were given back.
void Decoding::close_gaps() {
  Backend& backend = *model_->backend;
  std::vector<Member*> running;
  for (std::size_t sequence : round_) {
    if (members_[sequence].is_running()) running.push_back(&members_[sequence]);
  }
  std::vector<bool> is_taken(running.size());
  for (const Member* member : running) {
    if (member->row < std::ssize(running)) is_taken[static_cast<std::size_t>(member->row)] = true;
  }
  std::size_t gap = 0;
  for (Member* member : running) {
    if (member->row < std::ssize(running)) continue;
    while (is_taken[gap]) ++gap;
    copy_state(backend, state_, static_cast<std::int64_t>(gap), state_, member->row);
    member->row = static_cast<std::int64_t>(gap++);
  }
  for (LayerState& layer : state_) {
    layer.conv = backend.rows(layer.conv, 0, std::ssize(running));
    layer.ssm = backend.rows(layer.ssm, 0, std::ssize(running));
  }
}

void Decoding::let_go_of_host() {
  for (std::size_t sequence : round_) {
    if (members_[sequence].session != nullptr) give_back_row(members_[sequence]);
  }
  state_ = {};
  hidden_ = {};
}

}  // namespace adder
