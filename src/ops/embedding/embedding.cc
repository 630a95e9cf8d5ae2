#include "ops/embedding/embedding.h"

#include "core/check.h"

namespace adder {

void validate(const EmbeddingArgs& args) {
  constexpr auto kOp = "embedding";
  const Device where = args.ids.device;
  check_shape(kOp, "ids", args.ids, {kAny}, where);
  check_dtype(kOp, "ids", args.ids, {DType::i32});
  check_contiguous(kOp, "ids", args.ids);
  check_shape(kOp, "weight", args.weight, {kAny, kAny}, where);
  check_dtype(kOp, "weight", args.weight, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "weight", args.weight);
  check_shape(kOp, "y", args.y, {args.ids.dim(0), args.weight.dim(1)}, where);
  check_float(kOp, "y", args.y);
  check_rows(kOp, "y", args.y);
  if (where.type == DeviceType::cuda) return;
  const std::int64_t vocab_rows = args.weight.dim(0);
  const auto* ids = args.ids.as<std::int32_t>();
  for (std::int64_t t = 0; t < args.ids.dim(0); ++t) {
    check(ids[t] >= 0 && ids[t] < vocab_rows,
          "embedding: id {} of token {} has no row, expected an id from 0 to {}", ids[t], t,
          vocab_rows - 1);
  }
}

}  // namespace adder
