#include "bench/kernels.h"
#include "simd/amx.h"
#include "simd/simd.h"

namespace adder::bench::ADDER_TIER {
namespace {

using namespace simd;  // NOLINT(google-build-using-namespace): the vocabulary of kernels

constexpr TileConfig make_config() {
  TileConfig config;
  for (int i = 0; i < kTileRegisters; ++i) config.set(i, kTileRegisterRows, kTileRegisterBytes);
  return config;
}

// Six sums, enough for 52 cycles of latency at 16 cycles each.
template <bool kInt8, int kSum>
ADDER_INLINE void step() {
  if constexpr (kInt8) {
    tile_dot_int8<kSum, 6, 7>();
  } else {
    tile_dot_bf16<kSum, 6, 7>();
  }
}

template <bool kInt8>
std::int32_t products(std::int64_t rounds, std::int32_t bytes) {
  static constexpr TileConfig kConfig = make_config();
  alignas(64) std::int32_t tile[kTileRegisterRows][16];
  for (auto& row : tile) {
    for (std::int32_t& element : row) element = bytes;
  }
  configure_tiles(kConfig);
  tile_load<6>(tile, 64);
  tile_load<7>(tile, 64);
  for (std::int64_t round = 0; round < rounds; ++round) {
    step<kInt8, 0>();
    step<kInt8, 1>();
    step<kInt8, 2>();
    step<kInt8, 3>();
    step<kInt8, 4>();
    step<kInt8, 5>();
  }
  tile_store<5>(tile, 64);
  release_tiles();
  return tile[3][5];
}

constexpr std::int64_t kMultiplyAdds = 6 * 16 * 16 * 16;  // of 32-bit lanes

}  // namespace

const ProductKernel& bf16_kernel() {
  static constexpr ProductKernel kKernel{products<false>, 2 * 2 * kMultiplyAdds};
  return kKernel;
}
const ProductKernel& int8_kernel() {
  static constexpr ProductKernel kKernel{products<true>, 2 * 4 * kMultiplyAdds};
  return kKernel;
}

}  // namespace adder::bench::ADDER_TIER
