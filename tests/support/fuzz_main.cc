// Stands in for libFuzzer where the compiler has none: calls the fuzz target on every file of the
// folders named on the command line, on the empty input, and on mutations of all of them drawn from
// the seed of the tests.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/support/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr int kMutations = 500;

std::vector<Input> read_seeds(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) continue;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());  // the order on disk is no one's choice
  std::vector<Input> seeds{{}};
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

// A few bytes changed, a piece cut out, the tail cut off, or a piece repeated.
Input mutate(Input input, adder::test::Random& random) {
  const auto size = static_cast<std::int64_t>(input.size());
  const auto at = [&](std::int64_t i) { return input.begin() + i; };
  const std::int64_t begin = random.integer(0, size);
  const std::int64_t end = random.integer(begin, std::min(size, begin + 64));
  switch (random.integer(0, 3)) {
    case 0:
      for (std::int64_t i = 0; i < 4 && size > 0; ++i) {
        *at(random.integer(0, size - 1)) = static_cast<std::uint8_t>(random.integer(0, 255));
      }
      break;
    case 1:
      input.erase(at(begin), at(end));
      break;
    case 2:
      input.resize(static_cast<std::size_t>(begin));
      break;
    default: {
      const Input piece(at(begin), at(end));
      input.insert(at(random.integer(0, size)), piece.begin(), piece.end());
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Input> seeds = read_seeds(argc, argv);
  adder::test::Random random;
  for (const Input& seed : seeds) {
    LLVMFuzzerTestOneInput(seed.data(), seed.size());
    for (int i = 0; i < kMutations; ++i) {
      const Input mutated = mutate(seed, random);
      LLVMFuzzerTestOneInput(mutated.data(), mutated.size());
    }
  }
  std::printf("%zu seeds, %d mutations of each (seed %llu)\n", seeds.size(), kMutations,
              static_cast<unsigned long long>(adder::test::seed()));
  return 0;
}
