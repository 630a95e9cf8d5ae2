#pragma once

// Several sessions of one model advanced together: their tokens go through the weights in the same
// forward passes, which costs little more than one of them alone.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "adder/session.h"

namespace adder {

/// Feeds session i the tokens of prompt i, which may be empty, of all sessions together and without
/// padding. Each is then as after `sessions[i]->prefill(prompts[i])`: on the CPU bit for bit,
/// elsewhere up to the rounding of differently shaped products. Beside the sessions' states there
/// are copies of those that share a pass meanwhile.
///
/// Throws adder::Error, and changes nothing, if there is not one prompt for each session, if the
/// sessions are not different ones of one model, or if an id is outside the vocabulary.
void prefill(std::span<Session* const> sessions, std::span<const std::vector<int>> prompts);

/// Generates from several sessions of one model together:
///
///   BatchGeneration batch;
///   for (Session& session : sessions) batch.add(session, options);
///   while (const auto next = batch.next()) use(next->sequence, next->token);
///
/// Each sequence gets the tokens that `session.generate(options)` alone would give it, on the CPU
/// bit for bit, and its session is left as after that. It can be stopped at any point, and sessions
/// may be used in between, as with Generation; that costs time, since all of them are then taken up
/// anew. A session that is destroyed ends its sequence, for no reason that `stop_reason` knows:
/// that stays `running`.
///
/// While it runs, it holds a second state for each sequence. Used by one thread at a time.
class BatchGeneration {
 public:
  struct Token {
    std::size_t sequence;  ///< as `add` numbered it
    int token;
  };

  BatchGeneration();
  BatchGeneration(BatchGeneration&&) noexcept;
  BatchGeneration& operator=(BatchGeneration&&) noexcept;
  ~BatchGeneration();

  /// Adds a sequence, also while others run, and returns its number: 0, 1, 2, ... Throws as
  /// Session::generate does, and if the session is of another model than those before or has a
  /// running sequence here already.
  std::size_t add(Session& session, const GenerateOptions& options = {});

  /// The next token, in turns of all that still run; none once all have ended. Throws adder::Error
  /// if a token cannot be sampled, if the states have no place on the device, or if a session that
  /// still runs was emptied; the sessions are then as after the tokens handed out.
  std::optional<Token> next();

  /// Why a sequence ended; known when its turn comes after its last token.
  StopReason stop_reason(std::size_t sequence) const;

 private:
  std::unique_ptr<Decoding> decoding_;
};

}  // namespace adder
