#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/json_document.h"
#include "core/json_object.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

using test::error_of;

using nlohmann::json;

TEST(JsonDocument, RefusesWhatReadersDisagreeOn) {
  EXPECT_EQ(parse_json_object(R"({"a": [NaN, -Infinity]})", "file").dump(),
            R"({"a":["NaN","-Infinity"]})");
  const auto error = [](std::string_view text) {
    return error_of([&] { parse_json_object(text, "file"); });
  };
  EXPECT_EQ(error("{\"a\": 1,"), "file is not valid JSON: the parser stopped at byte 9");
  EXPECT_EQ(error("[1]"), "file holds a JSON array, expected an object");
  EXPECT_EQ(error(R"({"a": 1, "a": 2})"), "file has the key \"a\" twice in one object");
  EXPECT_EQ(error(R"({"a": 1e999})"), "file is not valid JSON: it has a number out of range");
  EXPECT_EQ(error("{\"a\": " + std::string(70, '[')),
            "file nests deeper than 64 levels, expected at most that many");
  EXPECT_NE(error("{\"a\": \"\xff\"}"), "no error");
}

TEST(JsonObject, GivesEachKeyByTypeAndRange) {
  const json value = json::parse(
      R"({"n": 3, "least": -9223372036854775808, "yes": true, "name": "x", "o": {}, "a": [1]})");
  JsonObject object(value, "here");
  EXPECT_EQ(object.integer("n", 1, 3), 3);
  EXPECT_EQ(object.integer("least", INT64_MIN, 0), INT64_MIN);
  EXPECT_TRUE(object.boolean("yes"));
  EXPECT_EQ(object.text("name"), "x");
  EXPECT_TRUE(object.object("o").empty());
  EXPECT_EQ(object.array("a").size(), 1U);
  EXPECT_FALSE(object.has("missing"));
  EXPECT_NO_THROW(object.done());
}

TEST(JsonObject, ErrorsSayWhereWhatAndWhatWasExpected) {
  const json value = json::parse(R"({"n": 4, "big": 18446744073709551615, "half": 3.0, "s": "x"})");
  JsonObject object(value, "here");
  EXPECT_EQ(error_of([&] { object.integer("n", 1, 3); }),
            "here: n is \"4\", expected an integer from 1 to 3");
  EXPECT_EQ(error_of([&] { object.integer("big", 0, INT64_MAX); }),
            "here: big is \"18446744073709551615\", expected an integer from 0 to "
            "9223372036854775807");
  EXPECT_EQ(error_of([&] { object.integer("half", 1, 3); }),
            "here: half is \"3.0\", expected an integer from 1 to 3");
  EXPECT_EQ(error_of([&] { object.boolean("n"); }), "here: n is \"4\", expected true or false");
  EXPECT_EQ(error_of([&] { object.text("n"); }), "here: n is \"4\", expected a string");
  EXPECT_EQ(error_of([&] { object.object("n"); }), "here: n is \"4\", expected an object");
  EXPECT_EQ(error_of([&] { object.array("n"); }), "here: n is \"4\", expected an array");
  EXPECT_EQ(error_of([&] { object.integer("m", 1, 3); }),
            "here has no m, expected an integer from 1 to 3");
  EXPECT_EQ(error_of([&] { object.done(); }), "here has the key \"s\", expected no such key");
  EXPECT_EQ(error_of([&] { JsonObject(value["n"], "here.n"); }),
            "here.n is a JSON number, expected an object");
}

}  // namespace
}  // namespace adder
