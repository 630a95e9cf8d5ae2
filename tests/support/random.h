#pragma once

// Seeded random data for tests. The seed is fixed unless ADDER_TEST_SEED is set, and every failing
// test prints it (see compare.h).

#include <cstdint>
#include <random>
#include <vector>

namespace adder::test {

/// The seed of this run: ADDER_TEST_SEED, or a fixed number.
std::uint64_t seed();

class Random {
 public:
  /// `stream` tells apart generators of one test.
  explicit Random(std::uint64_t stream = 0) : engine_(seed() + stream * 0x9e3779b97f4a7c15ull) {}

  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  double normal(double deviation = 1.0) {
    return std::normal_distribution<double>(0.0, deviation)(engine_);
  }
  /// In [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  std::vector<float> normals(std::int64_t n, double deviation = 1.0) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& v : out) v = static_cast<float>(normal(deviation));
    return out;
  }
  std::vector<float> uniforms(std::int64_t n, double low, double high) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& v : out) v = static_cast<float>(uniform(low, high));
    return out;
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace adder::test
