#include "ops/convert_state/convert_state.h"

#include "core/check.h"

namespace adder {

void validate(const ConvertStateArgs& args) {
  constexpr auto kOp = "convert_state";
  const Device where = args.from.device;
  const auto check_tensor = [&](const char* name, const ConstTensorView& view, std::int64_t batch,
                                std::int64_t a, std::int64_t b, std::int64_t c) {
    if (args.from.rank == 3) {
      check_shape(kOp, name, view, {batch, a, b}, where);
    } else {
      check_shape(kOp, name, view, {batch, a, b, c}, where);
    }
    check_state(kOp, name, view);
    check_contiguous(kOp, name, view);
  };
  check_tensor("from", args.from, kAny, kAny, kAny, kAny);
  const std::int64_t* const dims = args.from.dims().data();
  check_tensor("to", args.to, dims[0], dims[1], dims[2], args.from.rank == 3 ? 1 : dims[3]);
}

}  // namespace adder
