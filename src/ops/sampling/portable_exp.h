#pragma once

#include <bit>
#include <cstdint>

namespace adder {

/// e^v for v <= 0, by additions and multiplications alone, so that it has the same bits on every
/// platform (which the library function has not). Within 2 ulp; zero below -708, where the result
/// would be subnormal. Compile with -ffp-contract=off, in CUDA with -fmad=false.
constexpr double portable_exp(double v) {
  if (!(v >= -708.0)) return 0.0;
  // v = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 · 2^52 rounds to an integer; n · high is exact.
  constexpr double kRound = 0x1.8p52;
  const double shifted = v * 1.4426950408889634 + kRound;
  const double n = shifted - kRound;
  const double r = (v - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  // Taylor's series: the first term left out is below 2^-57.
  constexpr double kInverseFactorials[] = {1.0 / 6227020800.0,
                                           1.0 / 479001600.0,
                                           1.0 / 39916800.0,
                                           1.0 / 3628800.0,
                                           1.0 / 362880.0,
                                           1.0 / 40320.0,
                                           1.0 / 5040.0,
                                           1.0 / 720.0,
                                           1.0 / 120.0,
                                           1.0 / 24.0,
                                           1.0 / 6.0,
                                           0.5,
                                           1.0,
                                           1.0};
  double p = kInverseFactorials[0];
  for (int i = 1; i < 14; ++i) p = p * r + kInverseFactorials[i];
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023);
  return p * std::bit_cast<double>(exponent << 52);
}

}  // namespace adder
