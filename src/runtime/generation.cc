// The public face of Decoding: of one session, and of several.

#include <algorithm>
#include <string>

#include "adder/batch.h"
#include "core/check.h"
#include "runtime/decoding.h"
#include "runtime/together.h"

namespace adder {

// ---- one session --------------------------------------------------------------------------------

Generation::Generation(std::unique_ptr<Decoding> decoding) : decoding_(std::move(decoding)) {}
Generation::Generation(Generation&&) noexcept = default;
Generation::~Generation() = default;

Generation Session::generate(const GenerateOptions& options) {
  auto decoding = std::make_unique<Decoding>();
  decoding->add(*impl_, options);
  return Generation(std::move(decoding));
}

void Generation::advance() {
  if (stop_reason_ != StopReason::running) return;
  if (const auto next = decoding_->next()) {
    token_ = next->token;
  } else {
    stop_reason_ = decoding_->stop_reason(0);
  }
}

// ---- several ------------------------------------------------------------------------------------

void prefill(std::span<Session* const> sessions, std::span<const std::vector<int>> prompts) {
  check(sessions.size() == prompts.size(), "prefill: {} sessions and {} prompts, expected as many",
        sessions.size(), prompts.size());
  std::vector<Session::Impl*> impls;
  impls.reserve(sessions.size());
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    check(sessions[i] != nullptr, "prefill: session {} is null", i);
    impls.push_back(&sessions[i]->impl());
    check(impls[i]->model == impls[0]->model,
          "prefill: session {} is of the model {}, expected {}, the one of the first", i,
          impls[i]->model->name, impls[0]->model->name);
    impls[i]->check_ids(prompts[i], "prompt " + std::to_string(i));
  }
  std::vector<Session::Impl*> sorted = impls;
  std::sort(sorted.begin(), sorted.end());
  check(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(),
        "prefill: one of the {} sessions is there twice, expected different ones", sessions.size());
  settle_together(impls);
  flush_together(impls);
  std::vector<Feeding> feedings;
  feedings.reserve(impls.size());
  for (std::size_t i = 0; i < impls.size(); ++i) feedings.push_back({impls[i], prompts[i]});
  feed_together(feedings);
}

BatchGeneration::BatchGeneration() : decoding_(std::make_unique<Decoding>()) {}
BatchGeneration::BatchGeneration(BatchGeneration&&) noexcept = default;
BatchGeneration& BatchGeneration::operator=(BatchGeneration&&) noexcept = default;
BatchGeneration::~BatchGeneration() = default;

std::size_t BatchGeneration::add(Session& session, const GenerateOptions& options) {
  return decoding_->add(session.impl(), options);
}

std::optional<BatchGeneration::Token> BatchGeneration::next() { return decoding_->next(); }

StopReason BatchGeneration::stop_reason(std::size_t sequence) const {
  return decoding_->stop_reason(sequence);
}

}  // namespace adder
