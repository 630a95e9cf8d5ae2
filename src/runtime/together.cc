#include "runtime/together.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "runtime/decoding.h"

namespace adder {
namespace {

// One forward pass: the next `counts[i]` tokens of each.
void feed_pass(std::span<Feeding* const> pass, std::span<const std::size_t> counts) {
  if (pass.size() == 1) {
    Feeding& one = *pass[0];
    one.session->feed_piece(one.tokens.first(counts[0]));
    one.tokens = one.tokens.subspan(counts[0]);
    return;
  }
  const Model::Impl& model = *pass[0]->session->model;
  Backend& backend = *model.backend;
  std::vector<Session::Impl*> sessions;
  std::vector<int> ids;
  std::vector<std::int32_t> offsets{0};
  for (std::size_t i = 0; i < pass.size(); ++i) {
    sessions.push_back(pass[i]->session);
    const std::span<const int> piece = pass[i]->tokens.first(counts[i]);
    ids.insert(ids.end(), piece.begin(), piece.end());
    offsets.push_back(static_cast<std::int32_t>(ids.size()));
  }
  const Sequences sequences(std::move(offsets));
  NetworkState state = gather_states(sessions);
  const Tensor hidden = model.network->forward(backend, backend.upload_ids(ids), sequences, state);
  const Tensor last = backend.last_tokens(hidden, sequences);
  for (std::size_t i = 0; i < pass.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    copy_state(backend, sessions[i]->state, 0, state, row);
    sessions[i]->took(pass[i]->tokens.first(counts[i]), backend.rows(last, row, 1));
    pass[i]->tokens = pass[i]->tokens.subspan(counts[i]);
  }
}

// Then `after`, also if something went wrong on the way.
template <typename After>
void feed_then(std::vector<Feeding>& feedings, const After& after) {
  try {
    feed_together(feedings);
  } catch (...) {
    after();
    throw;
  }
  after();
}

}  // namespace

void feed_together(std::span<Feeding> feedings) {
  std::vector<Feeding*> left;
  for (Feeding& feeding : feedings) {
    if (!feeding.tokens.empty()) left.push_back(&feeding);
  }
  if (left.empty()) return;
  // A pass has copies of its sessions' states: not of too many at once.
  constexpr std::size_t kMostSessions = 32;
  const Session::Impl& any = *left[0]->session;
  const auto most = static_cast<std::size_t>(any.piece_tokens());
  const auto most_together = static_cast<std::size_t>(any.model->backend->piece_tokens());
  std::vector<Feeding*> pass;
  std::vector<std::size_t> counts;
  while (!left.empty()) {
    // The first one's next piece, and what fits beside it.
    pass.clear();
    counts.clear();
    std::size_t total = 0;
    for (Feeding* feeding : left) {
      const std::size_t count = std::min(most, feeding->tokens.size());
      const bool fits =
          pass.empty() || (pass.size() < kMostSessions && total + count <= most_together &&
                           (count == 1) == (counts[0] == 1));
      if (!fits) continue;
      pass.push_back(feeding);
      counts.push_back(count);
      total += count;
    }
    feed_pass(pass, counts);
    std::erase_if(left, [](const Feeding* feeding) { return feeding->tokens.empty(); });
  }
}

void flush_together(std::span<Session::Impl* const> sessions) {
  std::vector<Feeding> feedings;
  for (Session::Impl* session : sessions) {
    if (session->pending) feedings.push_back({session, {&*session->pending, 1}});
  }
  feed_then(feedings, [&] {
    for (const Feeding& feeding : feedings) {
      if (feeding.tokens.empty()) feeding.session->pending.reset();
    }
  });
}

void settle_together(std::span<Session::Impl* const> sessions) {
  std::vector<Session::Impl*> behind;
  for (Session::Impl* session : sessions) {
    if (session->driver != nullptr) session->driver->let_go();
    if (!session->ahead.empty()) behind.push_back(session);
  }
  if (behind.empty()) return;
  flush_together(behind);
  // All but the last token, which may never need to be fed.
  std::vector<Feeding> feedings;
  feedings.reserve(behind.size());
  for (Session::Impl* session : behind) {
    feedings.push_back({session, std::span(session->ahead).first(session->ahead.size() - 1)});
  }
  feed_then(feedings, [&] {
    for (const Feeding& feeding : feedings) {
      std::vector<int>& ahead = feeding.session->ahead;
      ahead.erase(ahead.begin(), ahead.end() - 1 - std::ssize(feeding.tokens));
    }
  });
  for (Session::Impl* session : behind) {
    session->pending = session->ahead.back();
    session->ahead.clear();
  }
}

NetworkState gather_states(std::span<Session::Impl* const> sessions) {
  const Model::Impl& model = *sessions[0]->model;
  const std::int64_t count = std::ssize(sessions);
  model.backend->check_room(
      count * state_bytes(model.network->config(), model.backend->state_dtype()),
      fmt::format("the states of {} sequences together", count));
  NetworkState out = model.network->new_state(*model.backend, count);
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i]->ntokens == 0) continue;  // zeros
    copy_state(*model.backend, out, static_cast<std::int64_t>(i), sessions[i]->state, 0);
  }
  return out;
}

Tensor gather_hidden(std::span<Session::Impl* const> sessions, std::int64_t rows) {
  if (rows == 1) return sessions[0]->last_hidden;
  Backend& backend = *sessions[0]->model->backend;
  const std::int64_t dims[] = {rows, sessions[0]->last_hidden.view.dim(1)};
  Tensor out = backend.new_activations(dims);
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    Tensor row = backend.rows(out, static_cast<std::int64_t>(i), 1);
    backend.copy(row, sessions[i]->last_hidden);
  }
  return out;
}

}  // namespace adder
