#include "runtime/decoding.h"

#include <algorithm>

#include "core/check.h"
#include "runtime/together.h"

namespace adder {

Decoding::~Decoding() {
  try {
    let_go();
  } catch (const std::exception&) {
    // The sessions try again when they are used.
  }
  for (Member& member : members_) leave(member);
}

void Decoding::leave(Member& member) {
  if (member.session == nullptr) return;
  std::vector<Decoding*>& all = member.session->decodings;
  all.erase(std::find(all.begin(), all.end(), this));
  member.session = nullptr;
}

std::size_t Decoding::add(Session::Impl& session, const GenerateOptions& options) {
  validate(options.sampling);
  check(options.repeat_window >= 0 && options.repeat_window <= kRecentTokens,
        "generate: repeat_window is {}, expected 0 to {}", options.repeat_window, kRecentTokens);
  check(session.ntokens > 0 || session.pending || !session.ahead.empty(),
        "generate: the session holds no token yet, expected a prompt");
  check(model_ == nullptr || session.model == model_,
        "generate: the session is of the model {}, expected {}, the one of those before",
        session.model->name, model_ == nullptr ? "" : model_->name);
  for (std::size_t sequence : round_) {
    check(members_[sequence].session != &session || !members_[sequence].is_running(),
          "generate: the session is that of sequence {}, which still runs, expected another one",
          sequence);
  }
  let_go();
  model_ = session.model;
  round_.push_back(members_.size());
  turn_ = round_.size();
  members_.push_back({.session = &session, .options = options, .rng = Rng(options.seed)});
  session.decodings.push_back(this);
  return members_.size() - 1;
}

StopReason Decoding::stop_reason(std::size_t sequence) const {
  check(sequence < members_.size(), "generate: sequence {} was asked for, expected one of {}",
        sequence, members_.size());
  return members_[sequence].stop_reason;
}

std::optional<Decoding::Token> Decoding::next() {
  try {
    return take_turns();
  } catch (const Error&) {
    let_go();
    throw;
  }
}

std::optional<Decoding::Token> Decoding::take_turns() {
  while (true) {
    if (turn_ == round_.size()) {
      begin_round();
      if (round_.empty()) return std::nullopt;
    }
    const std::size_t sequence = round_[turn_++];
    Member& member = members_[sequence];
    if (!member.is_running()) continue;
    if (const auto token = decoder_ != nullptr ? take(member) : draw(member)) {
      ++member.produced;
      return Token{sequence, *token};
    }
    member.stop_reason = StopReason::end_of_text;
  }
}

void Decoding::begin_round() {
  for (std::size_t sequence : round_) {
    Member& member = members_[sequence];
    const std::int64_t most = member.options.max_tokens;
    if (member.is_running() && most >= 0 && member.produced >= most) {
      member.stop_reason = StopReason::max_tokens;
    }
  }
  const auto is_running = [&](std::size_t sequence) { return members_[sequence].is_running(); };
  if (std::any_of(round_.begin(), round_.end(), is_running)) {
    if (is_started()) let_go_of_ended();
  } else {
    let_go();
  }
  for (std::size_t sequence : round_) {
    if (!is_running(sequence)) leave(members_[sequence]);
  }
  std::erase_if(round_, [&](std::size_t sequence) { return !is_running(sequence); });
  turn_ = round_.size();
  if (round_.empty()) return;
  if (!is_started()) {
    start();
  } else if (decoder_ != nullptr) {
    follow();
  } else {
    step();
  }
  turn_ = 0;
}

void Decoding::start() {
  std::vector<Session::Impl*> sessions;
  sessions.reserve(round_.size());
  for (std::size_t sequence : round_) sessions.push_back(members_[sequence].session);
  settle_together(sessions);
  flush_together(sessions);
  for (std::size_t i = 0; i < round_.size(); ++i) {
    check(sessions[i]->ntokens > 0,
          "generate: the session of sequence {} holds no token any more, expected what it had",
          round_[i]);
  }
  for (std::size_t i = 0; i < round_.size(); ++i) {
    members_[round_[i]].row = static_cast<std::int64_t>(i);
    members_[round_[i]].taken = 0;
  }
  if (!start_on_device(sessions)) start_on_host(sessions);
  for (Session::Impl* session : sessions) session->driver = this;
}

void Decoding::let_go_of_ended() {
  bool some_ended = false;
  for (std::size_t sequence : round_) {
    Member& member = members_[sequence];
    if (member.is_running()) continue;
    some_ended = true;
    if (member.session == nullptr) continue;
    member.session->driver = nullptr;
    // A device's state of a sequence that has ended is worth nothing after another step: should the
    // session go on, what is ahead of its own state is fed to it.
    if (decoder_ == nullptr) give_back_row(member);
  }
  if (some_ended && decoder_ == nullptr) close_gaps();
}

void Decoding::let_go() {
  if (!is_started()) return;
  turn_ = round_.size();  // the next turn begins a round
  // Whatever goes wrong from here on, the sessions are their own again.
  for (std::size_t sequence : round_) {
    if (Session::Impl* session = members_[sequence].session) session->driver = nullptr;
  }
  decoder_ != nullptr ? let_go_of_device() : let_go_of_host();
}

void Decoding::forget(const Session::Impl& session) {
  const bool was_driven = session.driver == this;
  bool was_running = false;
  for (Member& member : members_) {
    if (member.session != &session) continue;
    was_running = was_running || member.is_running();
    leave(member);
  }
  if (!was_driven || !was_running) return;
  try {
    let_go();
  } catch (const std::exception&) {
    // The other sessions try again when they are used.
  }
}

}  // namespace adder
