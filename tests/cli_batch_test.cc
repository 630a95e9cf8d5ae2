// `adder generate` with several prompts, beside the same prompts one by one.

#include <gtest/gtest.h>

#include <csignal>
#include <sstream>

#include "tests/support/cli.h"

namespace adder::test {
namespace {

using Words = std::vector<std::string>;

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(Json::parse(line));
  return out;
}

std::vector<Json> run_lines(const Words& arguments, const std::string& input = {}) {
  const Outcome outcome = run_adder(Words{"generate", "-t", "1"} + arguments, input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return lines_of(outcome.out);
}

Json run_alone(const Words& arguments) {
  const Outcome outcome = run_adder(Words{"generate", "-t", "1", "--json"} + arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

const Words kPrompts = {"It was a dark night", "", "She said", "{}", "The sea was calm, and the"};

// With seeds that count up.
void expect_each_as_alone(const std::vector<Json>& lines, const Words& options) {
  ASSERT_EQ(lines.size(), kPrompts.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Json alone =
        run_alone(options + Words{"-p", kPrompts[i], "--seed", std::to_string(5 + i)});
    EXPECT_EQ(lines[i]["index"], i);
    EXPECT_EQ(lines[i]["prompt"], kPrompts[i]);
    EXPECT_EQ(lines[i]["text"], alone["text"]);
    EXPECT_EQ(lines[i]["stop"], alone["stop"]);
    EXPECT_EQ(lines[i]["prompt_tokens"], alone["stats"]["prompt_tokens"]);
    EXPECT_EQ(lines[i]["generated_tokens"], alone["stats"]["generated_tokens"]);
    EXPECT_EQ(lines[i]["seed"], alone["stats"]["seed"]);
    EXPECT_EQ(lines[i]["prompt_ids"], alone["prompt_ids"]);
    EXPECT_EQ(lines[i]["ids"], alone["ids"]);
  }
}

Words given_as_options() {
  Words out = {"--seed", "5", "--json"};
  for (const std::string& prompt : kPrompts) out = out + Words{"-p", prompt};
  return out;
}

TEST(CliBatch, EachPromptGetsTheTextThatItGetsAlone) {
  const Words options = {"-n", "24", "--repeat-penalty", "1.1"};
  expect_each_as_alone(run_lines(given_as_options() + options), options);
}

// As sequences end, others begin.
TEST(CliBatch, AFewAtATimeAreTheSame) {
  std::string prompts;
  for (int i = 1; i <= 14; ++i) {
    prompts += "{\"prompt\": [" + std::to_string(i) + ", " + std::to_string(2 * i) + "]}\n";
  }
  const Words options = {"-m",      "tests/data/golden/hf-mamba2-tiny",
                         "--seed",  "5",
                         "-n",      "100",
                         "--temp",  "5",
                         "--top-k", "0",
                         "--top-p", "1",
                         "--min-p", "0",
                         "--json",  "--prompts",
                         "-"};
  const std::vector<Json> all = run_lines(options, prompts);
  ASSERT_EQ(all.size(), 14U);
  std::size_t early = 0;
  for (const Json& line : all) early += line["stop"] == "end_of_text";
  EXPECT_GT(early, 2U);
  EXPECT_LT(early, 14U);
  for (const std::string most : {"1", "2", "5", "8"}) {
    EXPECT_EQ(run_lines(options + Words{"--batch", most}, prompts), all) << most;
  }
}

TEST(CliBatch, PromptsOfAFile) {
  const TemporaryFolder folder;
  const std::string jsonl =
      "{\"prompt\": \"It was a dark night\", \"id\": 7}\r\n\n{\"prompt\": [40, 507, 79]}\n"
      "{\"prompt\": \"two\\nlines\"}";
  const Words options = {"-n", "8", "--seed", "5", "--json"};
  const std::vector<Json> lines =
      run_lines(options + Words{"--prompts", folder.write("prompts.jsonl", jsonl)});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["text"], run_alone({"-n", "8", "--seed", "5", "-p", kPrompts[0]})["text"]);
  EXPECT_EQ(lines[1]["prompt"], Json::array({40, 507, 79}));
  EXPECT_EQ(lines[1]["ids"], run_alone({"-n", "8", "--seed", "6", "--ids", "40,507,79"})["ids"]);
  EXPECT_EQ(lines[2]["prompt"], "two\nlines");
  EXPECT_EQ(run_lines(options + Words{"--prompts", "-"}, jsonl), lines);

  const std::vector<Json> texts =
      run_lines(options + Words{"--prompts", "-"}, "It was a dark night\n\n{\n She said\r\n");
  ASSERT_EQ(texts.size(), 3U);
  EXPECT_EQ(texts[0], lines[0]);
  EXPECT_EQ(texts[1]["prompt"], "{");
  EXPECT_EQ(texts[2]["prompt"], " She said");
  // One is a list too.
  EXPECT_EQ(run_lines(options + Words{"--prompts", "-"}, kPrompts[0]), std::vector<Json>{lines[0]});
}

TEST(CliBatch, PromptsOfIdsWithoutATokenizer) {
  const Words model = {"-m", "tests/data/golden/hf-mamba2-tiny", "-n", "4", "--temp", "0"};
  const std::vector<Json> lines = run_lines(model + Words{"--prompts", "-", "--json"},
                                            "{\"prompt\": [1, 2, 3]}\n{\"prompt\": [4]}\n");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0]["ids"], run_alone(model + Words{"--ids", "1,2,3"})["ids"]);
  EXPECT_EQ(lines[1]["text"], run_alone(model + Words{"--ids", "4"})["text"]);
}

TEST(CliBatch, AllContinueFromALoadedState) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  run_alone({"-p", "It was a dark night, and", "-n", "0", "--save-state", state});
  const Words options = {"--load-state", state, "-n", "12"};
  expect_each_as_alone(run_lines(given_as_options() + options), options);
}

TEST(CliBatch, ResultsGoToStandardOutputAndSpeedToStandardError) {
  const Outcome outcome = run_adder({"generate", "-p", "a", "-p", "b", "-n", "3", "--seed", "9"});
  EXPECT_EQ(outcome.exit_code, 0);
  const std::vector<Json> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_FALSE(lines[0].contains("ids"));
  EXPECT_NE(outcome.err.find("2 of 2 prompts"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("generated 6 tokens"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("seed 9"), std::string::npos) << outcome.err;
  for (const Json& line : run_lines({"-p", "a", "-p", "b", "-n", "0"})) {
    EXPECT_EQ(line["text"], "");
    EXPECT_EQ(line["stop"], "max_tokens");
  }
}

TEST(CliBatch, InterruptEndsTheTextsAndExitsWith130) {
  const TemporaryFolder folder;
  std::string prompts;
  for (int i = 0; i < 300; ++i) prompts += "It was number " + std::to_string(i) + "\n";
  Subprocess process(adder_command({"generate", "--prompts", folder.write("prompts", prompts), "-n",
                                    "100", "--ignore-eos", "--batch", "2", "-t", "1"}));
  ASSERT_TRUE(process.wait_for_output());
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_NE(outcome.err.find("of 300 prompts"), std::string::npos) << outcome.err;
  const std::vector<Json> lines = lines_of(outcome.out);
  ASSERT_LT(lines.size(), 300U);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["index"], i);
    const bool is_whole = lines[i]["generated_tokens"] == 100;
    EXPECT_EQ(lines[i]["stop"], is_whole ? "max_tokens" : "interrupted");
  }
}

TEST(CliBatch, ReaderThatGoesAwayEndsItQuietly) {
  const TemporaryFolder folder;
  std::string prompts;
  for (int i = 0; i < 100; ++i) prompts += "It was\n";
  const Outcome outcome =
      run({"bash", "-c",
           "set -o pipefail; " + std::string(ADDER_BINARY) + " generate -t 1 --batch 1 --prompts " +
               folder.write("prompts", prompts) + " | head -c 1"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "{");
  EXPECT_EQ(outcome.err, "");
}

TEST(CliBatch, WhatOnePromptHasAndSeveralHaveNotIsWrongUsage) {
  const Words two = {"generate", "-p", "a", "-p", "b"};
  const struct {
    Words arguments;
    std::string named;
  } cases[] = {{two + Words{"--save-state", "x"}, "--save-state"},
               {two + Words{"--echo"}, "--echo"},
               {two + Words{"--no-echo"}, "--no-echo"},
               {two + Words{"-f", "x"}, "--file"},
               {two + Words{"--prompts", "x"}, "--prompts"},
               {{"generate", "--ids", "1", "--prompts", "x"}, "--prompts"},
               {{"generate", "-p", "a", "b"}, "b"},
               {two + Words{"--batch", "0"}, "'0'"}};
  for (const auto& [arguments, named] : cases) {
    const Outcome outcome = run_adder(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << Json(arguments) << outcome.err;
    EXPECT_EQ(outcome.out, "") << Json(arguments);
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
  }
}

TEST(CliBatch, BadPromptsAreRefusedBeforeAnyIsContinued) {
  const struct {
    std::string file;
    std::string said;
  } cases[] = {
      {"", "standard input: it holds no prompt"},
      {"\n\r\n", "standard input: it holds no prompt"},
      {"{\"prompt\": \"a\"}\n\n{\"text\": \"b\"}",
       "standard input, line 3: there is no \"prompt\""},
      {"{\"prompt\": \"a\"}\nb", "standard input, line 2"},
      {"{\"prompt\": \"a\"}\n{\"prompt\": 3}", "line 2: \"prompt\" is neither"},
      {"{\"prompt\": [1, -2]}", "line 1: \"prompt\" is neither"},
      {"{\"prompt\": [1, 2.5]}", "line 1: \"prompt\" is neither"},
      {"{\"prompt\": [1, 99999999999]}", "line 1: \"prompt\" is neither"},
      {"{\"prompt\": [1]}\n{\"prompt\": [1, 4096]}", "line 2: it has the token 4096"},
  };
  for (const auto& [file, said] : cases) {
    const Outcome outcome = run_adder({"generate", "--prompts", "-", "-n", "1"}, file);
    EXPECT_EQ(outcome.exit_code, 1) << file << outcome.err;
    EXPECT_EQ(outcome.out, "") << file;
    EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
  }
  const Outcome missing = run_adder({"generate", "--prompts", "/no/such/file"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_NE(missing.err.find("/no/such/file"), std::string::npos) << missing.err;
}

}  // namespace
}  // namespace adder::test
