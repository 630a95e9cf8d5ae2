#include <algorithm>

#include "core/check.h"
#include "ops/swiglu/kernels.h"
#include "ops/swiglu/swiglu.h"

namespace adder::cpu {

void swiglu(const SwigluArgs& args, ThreadPool& pool) {
  validate(args);
  check_host("swiglu", "x", args.x);
  const std::int64_t ntokens = args.x.dim(0);
  const std::int64_t d_mlp = args.x.dim(1);
  const SwigluKernels& kernels = swiglu_kernels();
  // The unit of work is a block of a row's columns, so that one token of a wide model is shared out
  // as well; four units are worth waking a thread for.
  constexpr std::int64_t kBlock = 1024;
  const std::int64_t nblocks = (d_mlp + kBlock - 1) / kBlock;
  pool.parallel_pieces(ntokens * nblocks, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t first = unit % nblocks * kBlock;
      const auto at = [&](const auto& view) {
        return view.template as<float>() + unit / nblocks * view.stride(0) + first;
      };
      kernels.gate(at(args.x), at(args.gate), at(args.y), std::min(kBlock, d_mlp - first));
    }
  });
}

}  // namespace adder::cpu
