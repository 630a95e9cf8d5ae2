#pragma once

// What the public Model and Session are made of.

#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "adder/batch.h"
#include "adder/model.h"
#include "adder/session.h"
#include "backend/backend.h"
#include "models/network.h"
#include "runtime/decoder.h"

namespace adder {

struct Model::Impl {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Network> network;
  std::optional<Tokenizer> tokenizer;
  std::string why_no_tokenizer;  ///< the error of asking for one that is not there
  std::string name;              ///< the path or shape the model was made from, for messages
  std::int64_t parameter_count = 0;
  std::uint64_t fingerprint = 0;
  WeightFormat weight_format = WeightFormat::f32;
  /// What was asked for: of one pass at most.
  std::int64_t piece_tokens = std::numeric_limits<std::int64_t>::max();
  mutable DecoderPool decoders;
};

struct Session::Impl {
  explicit Impl(std::shared_ptr<const Model::Impl> shared_model);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// The tokens that one pass takes at most.
  std::int64_t piece_tokens() const;
  /// `what` names them in an error.
  void check_ids(std::span<const int> tokens, std::string_view what) const;
  /// Feeds tokens piece by piece; `on_hidden` (may be empty) sees the final norm's output of each.
  using OnHidden = std::function<void(std::int64_t first, const Tensor& hidden)>;
  void feed(std::span<const int> tokens, const OnHidden& on_hidden);
  /// Feeds tokens of one forward pass, at least one, and returns the final norm's output.
  Tensor feed_piece(std::span<const int> tokens);
  /// `tokens` were fed to the state; `hidden` (1, d_model) is the output for the last of them.
  void took(std::span<const int> tokens, const Tensor& hidden);
  /// The part of `took` that the host knows.
  void remember(std::span<const int> tokens);
  /// Feeds the token that a generation handed out but had no need to feed yet.
  void flush();
  std::span<const float> logits();
  /// Ends a generation's hold on the session, if one has it, and feeds what is ahead of the state:
  /// before the session is used otherwise.
  void settle();
  /// To the empty sequence; what a generation has in hand is dropped.
  void reset();

  std::shared_ptr<const Model::Impl> model;
  NetworkState state;
  Tensor last_hidden;  ///< (1, d_model): the final norm's output for the last token fed
  std::int64_t ntokens = 0;
  std::vector<int> recent;  ///< the last tokens, oldest first, at most kRecentTokens
  std::optional<int> pending;
  Decoding* driver = nullptr;        ///< while one has this sequence's state in hand
  std::vector<Decoding*> decodings;  ///< all that will still look at this session
  std::vector<int> ahead;            ///< what was handed out since `state`, after `pending`
  std::vector<float> logits_values;
  bool logits_valid = false;
};

/// How far back sampling can look.
inline constexpr std::int64_t kRecentTokens = 256;

struct Snapshot::Impl {
  std::uint64_t fingerprint = 0;
  std::int64_t ntokens = 0;
  std::vector<int> recent;
  std::vector<float> last_hidden;
  std::vector<float> state;  ///< per layer: the convolution's window, then the SSM state
};

/// The number of floats in Snapshot::Impl::state for a model.
std::int64_t snapshot_floats(const ModelConfig& config);

}  // namespace adder
