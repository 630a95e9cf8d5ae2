#pragma once

#include <array>
#include <cstdint>

namespace adder {

/// Philox4x32-10: a counter-based generator. Number n of a seed is a function of (seed, n), so that
/// the state to save is two integers and every platform gives the same numbers.
///
/// Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011),
/// section 5.3 and table 2.
constexpr std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter,
                                                     std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xd2511f53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

/// Number `position` of a seed: uniform over all 64-bit numbers.
constexpr std::uint64_t random_number(std::uint64_t seed, std::uint64_t position) {
  const std::array<std::uint32_t, 4> block = philox4x32_10(
      {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32), 0, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::uint64_t{block[1]} << 32 | block[0];
}

/// The random numbers of one sequence. A value: a copy continues where the original was.
class Rng {
 public:
  explicit Rng(std::uint64_t seed = 0, std::uint64_t position = 0)
      : seed_(seed), position_(position) {}

  std::uint64_t seed() const { return seed_; }
  /// How many numbers were taken.
  std::uint64_t position() const { return position_; }

  /// Uniform over all 64-bit numbers.
  std::uint64_t next() { return random_number(seed_, position_++); }
  /// Uniform over the multiples of 2^-53 in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  friend bool operator==(const Rng&, const Rng&) = default;

 private:
  std::uint64_t seed_;
  std::uint64_t position_;
};

}  // namespace adder
