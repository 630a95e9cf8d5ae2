#include "backend/backend.h"

#include <numeric>

#include "core/check.h"

namespace adder {

Sequences::Sequences(std::vector<std::int32_t> cu_seqlens)
    : cu_seqlens_(std::move(cu_seqlens)), is_step_(true) {
  const auto size = static_cast<std::int64_t>(cu_seqlens_.size());
  check_cu_seqlens("sequences", ConstTensorView::of(cu_seqlens_.data(), {size}),
                   cu_seqlens_.empty() ? 0 : cu_seqlens_.back());
  for (std::size_t s = 1; s < cu_seqlens_.size(); ++s) {
    is_step_ = is_step_ && cu_seqlens_[s] - cu_seqlens_[s - 1] == 1;
  }
}

Sequences Sequences::single(std::int64_t ntokens) {
  check(ntokens >= 0 && ntokens <= INT32_MAX,
        "sequences: {} tokens in one call, expected at most {}", ntokens, INT32_MAX);
  return Sequences({0, static_cast<std::int32_t>(ntokens)});
}

Sequences Sequences::one_token_each(std::int64_t count) {
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(count) + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  return Sequences(std::move(offsets));
}

}  // namespace adder
