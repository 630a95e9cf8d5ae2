#pragma once

// The two ways in which the next tokens of sessions come about: step by step on the host, or by a
// loop of the device.

#include <memory>
#include <optional>
#include <vector>

#include "ops/sampling/sampling.h"
#include "runtime/decoder.h"
#include "runtime/model_impl.h"

namespace adder {

/// Generates from sessions of one model, in rounds: a step of all that run, then a token of each in
/// turn. Between its start and `let_go` their states are its own, and it is their `driver`; they
/// know of each token in the meantime, as `pending` or `ahead`.
class Decoding {
 public:
  using Token = BatchGeneration::Token;

  Decoding() = default;
  ~Decoding();
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  /// See BatchGeneration.
  std::size_t add(Session::Impl& session, const GenerateOptions& options);
  std::optional<Token> next();
  StopReason stop_reason(std::size_t sequence) const;

  /// A session is used otherwise, or all is over: they are their own again. Generating may go on
  /// later.
  void let_go();
  /// The session is going, driven or not: it has no more tokens.
  void forget(const Session::Impl& session);

 private:
  struct Member {
    Session::Impl* session;  ///< null once it has ended and nothing of it is in hand
    GenerateOptions options;
    Rng rng;
    StopReason stop_reason = StopReason::running;
    std::int64_t produced = 0;
    std::int64_t row = 0;    ///< of the state, from the start on
    std::int64_t taken = 0;  ///< tokens taken from the device since it started
    bool is_running() const { return session != nullptr && stop_reason == StopReason::running; }
  };

  /// The member's session is not looked at again.
  void leave(Member& member);

  bool is_started() const { return decoder_ != nullptr || hidden_.defined(); }
  std::optional<Token> take_turns();
  void begin_round();
  void start();
  /// Lets go of those that have ended while others run.
  void let_go_of_ended();

  // Step by step on the host.
  void start_on_host(std::span<Session::Impl* const> sessions);
  void step();
  void read_logits();
  std::optional<int> draw(Member& member);
  void give_back_row(Member& member);
  void close_gaps();
  void let_go_of_host();
  NetworkState& state();

  // By the device.
  bool start_on_device(std::span<Session::Impl* const> sessions);
  std::optional<int> take(Member& member);
  /// Takes over the states of a loop that has run far ahead of the sessions and pauses.
  void follow();
  void let_go_of_device();
  void adopt_states(Decoder& decoder);

  std::shared_ptr<const Model::Impl> model_;  ///< of all sessions
  std::vector<Member> members_;
  std::vector<std::size_t> round_;  ///< the members that have a turn in this round
  std::size_t turn_ = 0;            ///< the next one of them

  NetworkState state_;  ///< a row each; of one session alone, its own is used
  Tensor hidden_;       ///< (rows, d_model): the final norm's output of the last step
  std::vector<float> logits_;
  SamplingWorkspace workspace_;

  std::unique_ptr<Decoder> decoder_;  ///< while the device decodes
};

}  // namespace adder
