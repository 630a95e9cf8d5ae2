#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "adder/sampling.h"

namespace adder {

class Model;
class Generation;
class Decoding;

/// A session's state after some token, as a value: it can be kept, restored any number of times,
/// and saved to a file. It holds the recurrent state and what sampling looks back on; its size
/// does not depend on how many tokens were fed.
class Snapshot {
 public:
  /// The number of tokens whose effect it holds.
  std::int64_t ntokens() const;
  std::int64_t size_bytes() const;

  /// Writes a versioned, checksummed file, bound to the model it came from. The file appears whole
  /// or not at all.
  void save(const std::filesystem::path& path) const;
  /// Reads a file. Throws adder::Error when it is damaged, of another version, or of another model.
  static Snapshot load(const std::filesystem::path& path, const Model& model);
  /// The same from bytes in memory; `name` stands for the file in errors.
  static Snapshot parse(std::span<const std::byte> bytes, const std::string& name,
                        const Model& model);
  std::vector<std::byte> serialize() const;

  struct Impl;
  explicit Snapshot(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

struct GenerateOptions {
  /// Tokens at most; negative means no limit.
  std::int64_t max_tokens = 128;
  SamplingParams sampling{};
  /// The same seed, model, prompt and options give the same tokens.
  std::uint64_t seed = 0;
  /// Ends before a token that ends the text (the checkpoint's eos ids). Off: such tokens are text.
  bool stop_at_eos = true;
  /// The penalty looks at this many tokens before the new one, prompt included (at most 256).
  int repeat_window = 64;
};

/// One sequence being read or written with a model: a fixed-size recurrent state. Sessions of one
/// model are independent; each is used by one thread at a time. The model stays alive with it.
class Session {
 public:
  /// Feeds tokens; the state continues from what was fed before. A prompt may come in pieces of
  /// any size. Throws (and changes nothing) if an id is outside the vocabulary.
  void prefill(std::span<const int> tokens);
  /// Feeds one token.
  void step(int token) { prefill({&token, 1}); }

  /// Logits (vocab_size) of the next token. Throws if nothing was fed yet. Valid until the next
  /// call that changes the session.
  std::span<const float> logits();

  /// Feeds tokens and hands over the logits after each of them, in order and in blocks of rows:
  /// `on_block(first, logits)` with `logits` of (rows, vocab_size), row-major, for the tokens
  /// [first, first + rows).
  void prefill(
      std::span<const int> tokens,
      const std::function<void(std::int64_t first, std::span<const float> logits)>& on_block);

  /// Feeds tokens and returns -ln p(token | all before it) for each, in nats. The first token of an
  /// empty session has no prediction and no entry.
  std::vector<double> score(std::span<const int> tokens);

  /// Generates lazily: `for (int token : session.generate(options))`. Each token is fed to the
  /// session as it is produced, so that a stop at any point leaves a state to go on from.
  Generation generate(const GenerateOptions& options = {});

  /// How many tokens were fed.
  std::int64_t position() const;
  /// Back to the empty sequence.
  void reset();

  Snapshot snapshot() const;
  /// Continues from a snapshot and returns how many tokens it holds. Throws if it is of another
  /// model.
  std::int64_t restore(const Snapshot& snapshot);
  /// An independent session that continues from the same point.
  Session fork() const;

  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Why a generation ended.
enum class StopReason { running, max_tokens, end_of_text };

/// The tokens of one `generate` call, as a single-pass range. It must not outlive the session.
class Generation {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = const int&;

    const int& operator*() const { return generation_->token_; }
    Iterator& operator++() {
      generation_->advance();
      return *this;
    }
    void operator++(int) { generation_->advance(); }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) {
      return it.generation_->stop_reason() != StopReason::running;
    }

   private:
    friend class Generation;
    explicit Iterator(Generation* generation) : generation_(generation) {}
    Generation* generation_;
  };

  /// Produces the first token.
  Iterator begin() {
    advance();
    return Iterator(this);
  }
  std::default_sentinel_t end() const { return {}; }

  StopReason stop_reason() const { return stop_reason_; }

  Generation(Generation&&) noexcept;
  ~Generation();

 private:
  friend class Session;
  explicit Generation(std::unique_ptr<Decoding> decoding);
  void advance();

  std::unique_ptr<Decoding> decoding_;
  int token_ = 0;
  StopReason stop_reason_ = StopReason::running;
};

}  // namespace adder
