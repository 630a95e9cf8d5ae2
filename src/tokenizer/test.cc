#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "adder/tokenizer.h"

namespace adder {
namespace {

nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

TEST(Tokenizer, BundledModelCases) {
  const Tokenizer tokenizer = Tokenizer::load("models/books-11m");
  const auto cases = read_json("tests/data/books-11m/tokenizer_cases.json");
  ASSERT_GE(cases.size(), 20u);
  for (const auto& c : cases) {
    const auto ids = c["ids"].get<std::vector<int>>();
    EXPECT_EQ(tokenizer.encode(c["text"].get<std::string>()), ids) << c["text"];
    EXPECT_EQ(tokenizer.decode(ids), c["decoded"].get<std::string>());
  }
}

}  // namespace
}  // namespace adder
