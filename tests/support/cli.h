#pragma once

// Shorthands for tests of the command line.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace adder::test {

using Json = nlohmann::json;

inline const std::string kModel = "models/books-11m";

inline std::vector<std::string> operator+(std::vector<std::string> words,
                                          const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The program that was built, with arguments.
inline std::vector<std::string> adder_command(const std::vector<std::string>& arguments) {
  return std::vector<std::string>{ADDER_BINARY} + arguments;
}

inline Outcome run_adder(const std::vector<std::string>& arguments, const std::string& input = {},
                         const std::vector<std::string>& environment = {}) {
  return run(adder_command(arguments), input, environment);
}

}  // namespace adder::test
