#pragma once

// The two ways in which a session's next tokens come about.

#include <memory>

#include "ops/sampling/sampling.h"
#include "runtime/decoder.h"
#include "runtime/model_impl.h"

namespace adder {

struct Generation::Impl {
  Impl(Session::Impl& s, const GenerateOptions& o) : session(&s), options(o), rng(o.seed) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// The next token, or none where one that ends the text was sampled.
  std::optional<int> next();

  /// The session is used otherwise, or the generation is over: what the device has in hand goes
  /// back to the session. Generating may go on later.
  void let_go();

  Session::Impl* session;
  GenerateOptions options;
  Rng rng;
  SamplingWorkspace workspace;
  std::int64_t produced = 0;

 private:
  std::optional<int> next_on_host();
  std::optional<int> next_on_device();
  void start_on_device();
  void adopt_state(Decoder& decoder);
  bool ends_text(int token) const;
  std::span<const int> stop_tokens() const;

  std::unique_ptr<Decoder> decoder_;  ///< while the device decodes
  std::int64_t taken_ = 0;            ///< tokens taken from it since it started
};

}  // namespace adder
