#pragma once

// Feeding several sessions of one model in the same forward passes.

#include <span>

#include "runtime/model_impl.h"

namespace adder {

/// Tokens on their way into a session.
struct Feeding {
  Session::Impl* session;
  std::span<const int> tokens;
};

/// Feeds each session its tokens and leaves `tokens` empty; if something goes wrong on the way,
/// they are those that did not go in. No pending tokens: see flush_together.
///
/// A prompt is cut where Session::Impl::feed cuts it, whatever lies beside it, and a piece of one
/// token is a step here as there. So each result is that of feeding alone, and a pass is half full
/// at least where there are tokens enough.
void feed_together(std::span<Feeding> feedings);

/// Session::Impl::flush of all.
void flush_together(std::span<Session::Impl* const> sessions);

/// Session::Impl::settle of all.
void settle_together(std::span<Session::Impl* const> sessions);

/// The states of sessions, a row for each, in memory of their own.
NetworkState gather_states(std::span<Session::Impl* const> sessions);

/// (rows, d_model): their last hidden rows, and zeros in the rows after those.
Tensor gather_hidden(std::span<Session::Impl* const> sessions, std::int64_t rows);

}  // namespace adder
