#include "ops/sampling/sample_tokens.h"

#include "core/check.h"
#include "ops/sampling/sampling.h"

namespace adder {

void validate(const SampleTokensArgs& args) {
  constexpr auto kOp = "sample_tokens";
  const Device where = args.logits.device;
  check_shape(kOp, "logits", args.logits, {kAny, kAny}, where);
  check_dtype(kOp, "logits", args.logits, {DType::f32});
  check_rows(kOp, "logits", args.logits);
  const std::int64_t batch = args.logits.dim(0);
  const std::int64_t vocab_size = args.logits.dim(1);
  check(vocab_size >= 1 && vocab_size <= kMaxSampledVocabSize,
        "sample_tokens: logits has {} columns, expected 1 to {}", vocab_size, kMaxSampledVocabSize);

  const auto check_argument = [&](const char* name, const ConstTensorView& view, DType dtype,
                                  std::initializer_list<std::int64_t> shape) {
    check_shape(kOp, name, view, shape, where);
    check_dtype(kOp, name, view, {dtype});
    check_contiguous(kOp, name, view);
  };
  check_argument("sampling", args.sampling, DType::u8,
                 {batch, static_cast<std::int64_t>(sizeof(SequenceSampling))});
  check(reinterpret_cast<std::uintptr_t>(args.sampling.data) % alignof(SequenceSampling) == 0,
        "sample_tokens: sampling is not at a multiple of {} bytes", alignof(SequenceSampling));
  check_argument("position", args.position, DType::i64, {batch});
  check(args.recent.defined() == args.recent_count.defined(),
        "sample_tokens: {} is absent, expected both or neither of recent and recent_count",
        args.recent.defined() ? "recent_count" : "recent");
  if (args.recent.defined()) {
    check_argument("recent", args.recent, DType::i32, {batch, kAny});
    const std::int64_t capacity = args.recent.dim(1);
    check(capacity >= 1 && capacity <= kMaxRecentCapacity,
          "sample_tokens: recent has {} columns, expected 1 to {}", capacity, kMaxRecentCapacity);
    check_argument("recent_count", args.recent_count, DType::i64, {batch});
  }
  if (args.active.defined()) check_argument("active", args.active, DType::u8, {batch});
  check_argument("tokens", args.tokens, DType::i32, {batch});
  check_argument("status", args.status, DType::i32, {batch, 2});
}

void check_sampled(const SampleStatus& status, const SequenceSampling& sampling,
                   std::int64_t vocab_size) {
  switch (status.error) {
    case SampleError::none:
      return;
    case SampleError::not_a_number:
    case SampleError::infinite:
      fail("sample_token: the logit of token {} is {}, expected a finite number or -inf",
           status.detail, status.error == SampleError::infinite ? "inf" : "nan");
    case SampleError::all_ruled_out:
      fail("sample_token: all {} logits are -inf, expected at least one finite number", vocab_size);
    case SampleError::recent_token:
      fail("sample_token: recent contains token id {}, expected ids below {}", status.detail,
           vocab_size);
    case SampleError::invalid_params:
      validate(sampling.params);
      fail("sample_tokens: repeat_window is {}, expected a number that is not negative",
           sampling.repeat_window);
  }
  fail("sample_tokens: status is {}, expected 0 to {}", static_cast<std::int32_t>(status.error),
       static_cast<std::int32_t>(SampleError::invalid_params));
}

}  // namespace adder
