// `adder generate`, `score` and `logits` as a user runs them, against the bundled model's expected
// values and against the library.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "adder/model.h"
#include "checkpoint/safetensors.h"
#include "tests/support/cli.h"

namespace adder::test {
namespace {

using Words = std::vector<std::string>;

Json run_json(Words arguments, const std::string& input = {}) {
  arguments.push_back("--json");
  const Outcome outcome = run_adder(arguments, input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

const Json& expected() {
  static const Json value = Json::parse(read_file("tests/data/books-11m/expected.json"));
  return value;
}

/// A text longer than what is read from a file at once.
std::string long_text() {
  std::string text;
  while (text.size() < 20'000) text += expected()["score"]["text"].get<std::string>() + "\n";
  return text;
}

TEST(CliGenerate, GreedyTextIsTheReferenceText) {
  for (const Json& item : expected()["greedy"]) {
    const Json out = run_json({"generate", "-m", kModel, "-p", item["prompt"], "--temp", "0", "-n",
                               std::to_string(item["greedy_ids"].size())});
    EXPECT_EQ(out["prompt_ids"], item["prompt_ids"]);
    EXPECT_EQ(out["ids"], item["greedy_ids"]);
    EXPECT_EQ(out["text"], item["greedy"]);
    EXPECT_EQ(out["stop"], "max_tokens");
  }
}

TEST(CliGenerate, JsonHasEveryField) {
  const Json out = run_json({"generate", "-p", "Hell", "-n", "3", "--seed", "7", "-t", "1"});
  for (const char* name : {"prompt_ids", "ids", "text", "stop", "stats"}) {
    EXPECT_TRUE(out.contains(name)) << name;
  }
  const Json& stats = out["stats"];
  for (const char* name : {"prefill_tokens_per_s", "decode_tokens_per_s", "load_s", "first_token_s",
                           "peak_rss_bytes"}) {
    EXPECT_GT(stats[name].get<double>(), 0) << name;
  }
  const Model model = Model::load(kModel);
  EXPECT_EQ(stats["state_bytes"], model.state_bytes());
  EXPECT_EQ(stats["state_dtype"], "f32");
  EXPECT_EQ(stats["seed"], 7);
  EXPECT_EQ(stats["threads"], 1);
  EXPECT_EQ(stats["generated_tokens"], 3);
}

TEST(CliGenerate, TextGoesToStandardOutputAndSpeedToStandardError) {
  const Json& item = expected()["greedy"][0];
  const std::string prompt = item["prompt"];
  const Words command = {
      "generate", "-p", prompt, "--temp", "0", "-n", std::to_string(item["greedy_ids"].size())};
  const std::string text = item["greedy"].get<std::string>() + "\n";
  const Outcome echoed = run_adder(command);
  EXPECT_EQ(echoed.out, prompt + text);
  EXPECT_NE(echoed.err.find("tokens/s"), std::string::npos) << echoed.err;
  EXPECT_NE(echoed.err.find("seed"), std::string::npos) << echoed.err;
  EXPECT_EQ(run_adder(command + Words{"--no-echo"}).out, text);

  const TemporaryFolder folder;
  const std::string file = folder.write("prompt", prompt);
  const Words from_file = {"generate", "-f", file, "--temp", "0", "-n", command.back()};
  EXPECT_EQ(run_adder(from_file).out, text);
  EXPECT_EQ(run_adder(from_file + Words{"--echo"}).out, prompt + text);
}

TEST(CliGenerate, PromptFromStandardInput) {
  const Json& item = expected()["greedy"][1];
  const std::string prompt = item["prompt"];
  const Words rest = {"--temp", "0", "-n", "8"};
  const Json ids = run_json(Words{"generate"} + rest, prompt)["ids"];
  EXPECT_EQ(ids,
            Json(std::vector<int>(item["greedy_ids"].begin(), item["greedy_ids"].begin() + 8)));
  EXPECT_EQ(run_json(Words{"generate", "-f", "-"} + rest, prompt)["ids"], ids);
}

TEST(CliGenerate, PromptOfIdsWithoutATokenizer) {
  const Words command = {"generate",    "-m",     "tests/data/golden/hf-mamba2-tiny",
                         "--ids",       "1,2,3",  "-n",
                         "4",           "--temp", "0",
                         "--ignore-eos"};
  const Json out = run_json(command);
  EXPECT_EQ(out["prompt_ids"], Json::array({1, 2, 3}));
  ASSERT_EQ(out["ids"].size(), 4U);
  const std::string text = fmt::format("{}", fmt::join(out["ids"].get<std::vector<int>>(), " "));
  EXPECT_EQ(run_adder(command).out, text + "\n");
}

TEST(CliGenerate, EmptyPromptBeginsAText) {
  const Json out = run_json({"generate", "-p", "", "-n", "2"});
  EXPECT_EQ(out["prompt_ids"], Json::array({0}));
  EXPECT_EQ(out["ids"].size(), 2U);
}

TEST(CliGenerate, SeedRepeatsTheText) {
  const Words command = {"generate", "-p", "It was", "-n", "24"};
  const Json first = run_json(command);
  const std::string seed = std::to_string(first["stats"]["seed"].get<std::uint64_t>());
  EXPECT_EQ(run_json(command + Words{"--seed", seed})["ids"], first["ids"]);
  const Json one = run_json(command + Words{"--seed", "1"});
  const Json two = run_json(command + Words{"--seed", "2"});
  EXPECT_NE(one["ids"], two["ids"]);
}

TEST(CliGenerate, LongFileIsReadInPieces) {
  const TemporaryFolder folder;
  const std::string text = long_text();
  const Json out =
      run_json({"generate", "-f", folder.write("long", text), "--temp", "0", "-n", "8"});
  const Model model = Model::load(kModel);
  const std::vector<int> ids = model.tokenizer().encode(text);
  EXPECT_EQ(out["prompt_ids"], Json(ids));
  Session session = model.new_session();
  session.prefill(ids);
  std::vector<int> continuation;
  GenerateOptions options{.max_tokens = 8, .sampling = {.temperature = 0}};
  Generation generation = session.generate(options);
  for (int token : generation) continuation.push_back(token);
  EXPECT_EQ(out["ids"], Json(continuation));
}

TEST(CliGenerate, SavedStateGoesOnAsIfThereHadBeenNoBreak) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  const Json& item = expected()["greedy"][2];
  const std::size_t total = item["greedy_ids"].size();
  const std::size_t part = 20;
  const Json first = run_json({"generate", "-p", item["prompt"], "--temp", "0", "-n",
                               std::to_string(part), "--save-state", state});
  const Json second = run_json(
      {"generate", "--load-state", state, "--temp", "0", "-n", std::to_string(total - part)});
  Json ids = first["ids"];
  for (const Json& id : second["ids"]) ids.push_back(id);
  EXPECT_EQ(ids, item["greedy_ids"]);
  EXPECT_EQ(first["text"].get<std::string>() + second["text"].get<std::string>(), item["greedy"]);
  EXPECT_EQ(second["stats"]["restored_tokens"], item["prompt_ids"].size() + part);
}

TEST(CliGenerate, PromptAfterASavedStateEqualsOnePrompt) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  const Json& item = expected()["greedy"][3];
  const std::vector<int> ids = item["prompt_ids"];
  std::string head;
  std::string tail;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    (i < ids.size() / 2 ? head : tail) += std::to_string(ids[i]) + ",";
  }
  run_json({"generate", "--ids", head, "-n", "0", "--save-state", state});
  const Json out = run_json({"generate", "--load-state", state, "--ids", tail, "--temp", "0", "-n",
                             std::to_string(item["greedy_ids"].size())});
  EXPECT_EQ(out["ids"], item["greedy_ids"]);
}

TEST(CliGenerate, InterruptSavesTheStateAndExitsWith130) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  Subprocess process(adder_command({"generate", "-p", "It was", "-n", "-1", "--ignore-eos",
                                    "--no-echo", "--save-state", state}));
  ASSERT_TRUE(process.wait_for_output());
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(outcome.out.back(), '\n');
  EXPECT_NE(outcome.err.find("tokens/s"), std::string::npos) << outcome.err;
  const Json next = run_json({"generate", "--load-state", state, "-n", "1"});
  EXPECT_GT(next["stats"]["restored_tokens"].get<int>(), 1);
}

TEST(CliGenerate, ReaderThatGoesAwayEndsItQuietly) {
  const Outcome outcome = run({"bash", "-c",
                               "set -o pipefail; " + std::string(ADDER_BINARY) +
                                   " generate -p Hell -n -1 --ignore-eos | head -c 1"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "H");
  EXPECT_EQ(outcome.err, "");
}

TEST(CliGenerate, FullDiskIsAnError) {
  const Outcome outcome =
      run({"bash", "-c", std::string(ADDER_BINARY) + " generate -p Hell -n 2 > /dev/full"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "adder: standard output: No space left on device\n");
}

TEST(CliGenerate, DamagedStateIsRefused) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  run_json({"generate", "-p", "Hell", "-n", "0", "--save-state", state});
  std::string bytes = read_file(state);
  bytes[bytes.size() / 2] ^= 1;
  folder.write("state", bytes);
  const Outcome outcome = run_adder({"generate", "--load-state", state, "-n", "1"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find(state), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

// ---- score -------------------------------------------------------------------------------------

TEST(CliScore, LikelihoodsAreTheReferenceLikelihoods) {
  const TemporaryFolder folder;
  const Json& item = expected()["score"];
  const std::string text = item["text"];
  const std::string file = folder.write("text", text);
  const auto count = static_cast<double>(item["nll"].size());
  const double sum = item["nll_sum"];
  for (const Words& mode :
       {Words{}, Words{"--piece", "1"}, Words{"--window", std::to_string(item["nll"].size())}}) {
    const Json out = run_json(Words{"score", "-f", file} + mode);
    EXPECT_EQ(out["tokens"], item["nll"].size());
    EXPECT_NEAR(out["nll_sum"].get<double>(), sum, 1e-5 * sum);
    EXPECT_NEAR(out["nll_per_token"].get<double>(), sum / count, 1e-5 * sum / count);
    const double bytes_per_token =
        static_cast<double>(text.size()) / static_cast<double>(item["ids"].size());
    const double bits = sum / count / std::log(2.0) / bytes_per_token;
    EXPECT_NEAR(out["bits_per_byte"].get<double>(), bits, 1e-5 * bits);
  }
}

TEST(CliScore, WindowsStartFromAnEmptyState) {
  const TemporaryFolder folder;
  const std::string file = folder.write("text", expected()["score"]["text"]);
  const std::vector<int> ids = expected()["score"]["ids"];
  constexpr std::size_t kWindow = 30;
  const Model model = Model::load(kModel);
  double sum = 0;
  for (std::size_t k = 0; k < 2; ++k) {
    Session session = model.new_session();
    for (double nll : session.score(std::span(ids).subspan(k * kWindow, kWindow + 1))) sum += nll;
  }
  const Json out = run_json({"score", "-f", file, "--window", "30", "--windows", "2"});
  EXPECT_EQ(out["tokens"], 2 * kWindow);
  EXPECT_EQ(out["windows"], 2);
  EXPECT_EQ(out["text_tokens"], ids.size());
  EXPECT_NEAR(out["nll_sum"].get<double>(), sum, 1e-5 * sum);
}

TEST(CliScore, SeparatedTextsEndWithTheEndOfTextToken) {
  const TemporaryFolder folder;
  const std::string first = "It was a dark night.\n";
  const std::string second = "The wind had been rising since noon.";
  const std::string file = folder.write("texts", first + std::string("\n\0\n", 3) + second);
  const Model model = Model::load(kModel);
  std::vector<int> ids;
  for (const std::string& text : {first, second}) {
    for (int id : model.tokenizer().encode(text)) ids.push_back(id);
    ids.push_back(0);
  }
  double sum = 0;
  for (double nll : model.new_session().score(ids)) sum += nll;
  const Json out = run_json({"score", "-f", file, "--nul-separated"});
  EXPECT_EQ(out["text_tokens"], ids.size());
  EXPECT_EQ(out["text_bytes"], first.size() + second.size());
  EXPECT_NEAR(out["nll_sum"].get<double>(), sum, 1e-5 * sum);
}

TEST(CliScore, TooShortATextIsAnError) {
  const TemporaryFolder folder;
  const Outcome empty = run_adder({"score", "-f", folder.write("empty", "")});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_NE(empty.err.find("0 tokens"), std::string::npos) << empty.err;
  const Outcome windows = run_adder({"score", "-f", folder.write("short", "It was a dark night"),
                                     "--window", "2", "--windows", "100"});
  EXPECT_EQ(windows.exit_code, 1);
  EXPECT_NE(windows.err.find("--windows"), std::string::npos) << windows.err;
}

// ---- logits ------------------------------------------------------------------------------------

TEST(CliLogits, FileHoldsTheLibrarysLogits) {
  const TemporaryFolder folder;
  const std::string file = folder.file("logits.safetensors");
  const Outcome outcome = run_adder({"logits", "--ids", "40,507,79,12", "--out", file});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const SafetensorsFile written(file);
  const ConstTensorView logits = written.tensor("logits");
  const Model model = Model::load(kModel);
  ASSERT_EQ(logits.rank, 2);
  ASSERT_EQ(logits.dim(0), 4);
  ASSERT_EQ(logits.dim(1), model.config().vocab_size);
  Session session = model.new_session();
  std::vector<float> expected_logits;
  session.prefill(std::vector<int>{40, 507, 79, 12},
                  [&](std::int64_t, std::span<const float> rows) {
                    expected_logits.insert(expected_logits.end(), rows.begin(), rows.end());
                  });
  ASSERT_EQ(static_cast<std::size_t>(logits.numel()), expected_logits.size());
  EXPECT_EQ(std::memcmp(logits.data, expected_logits.data(), expected_logits.size() * 4), 0);
}

TEST(CliLogits, IdOutsideTheVocabularyIsAnError) {
  const TemporaryFolder folder;
  const std::string file = folder.file("logits.safetensors");
  const Outcome outcome = run_adder({"logits", "--ids", "1,999999", "--out", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("999999"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace adder::test
