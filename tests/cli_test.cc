// The command line as a user meets it: help, wrong usage, failures, and the subcommands that need
// no generation.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "adder/model.h"
#include "tests/support/cli.h"

namespace adder::test {
namespace {

using Words = std::vector<std::string>;

const Words kCommands = {"generate", "score", "logits", "tokenize", "inspect", "bench", "tune"};

Json run_json(const Words& arguments, const std::string& input = {}) {
  const Outcome outcome = run_adder(arguments + Words{"--json"}, input);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return Json::parse(outcome.out);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- help and wrong usage ----------------------------------------------------------------------

TEST(Cli, HelpNamesEveryCommandAndShowsExamples) {
  const Outcome outcome = run_adder({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  for (const std::string& command : kCommands) EXPECT_TRUE(contains(outcome.out, command));
  EXPECT_TRUE(contains(outcome.out, "Examples:"));
  EXPECT_TRUE(contains(outcome.out, "adder generate -p"));
}

TEST(Cli, EveryCommandHasHelpOfItsOwn) {
  for (const std::string& command : kCommands) {
    const Outcome outcome = run_adder({command, "--help"});
    EXPECT_EQ(outcome.exit_code, 0) << command;
    EXPECT_TRUE(contains(outcome.out, "Usage: adder " + command)) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "Example")) << outcome.out;
  }
  for (const std::string kind : {"machine", "op", "model"}) {
    const Outcome outcome = run_adder({"bench", kind, "--help"});
    EXPECT_EQ(outcome.exit_code, 0) << kind;
    EXPECT_TRUE(contains(outcome.out, "Usage: adder bench " + kind)) << outcome.out;
  }
}

TEST(Cli, HelpFitsATerminal) {
  for (const std::string& command : kCommands) {
    std::string text = run_adder({command, "--help"}).out;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      EXPECT_LE(end - begin, 100U) << text.substr(begin, end - begin);
      begin = end + 1;
    }
  }
}

TEST(Cli, VersionIsOneLine) {
  const Outcome outcome = run_adder({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.rfind("adder 0.", 0), 0U) << outcome.out;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1);
}

TEST(Cli, WrongUsageExitsWith2AndOneLineThatPointsToHelp) {
  const struct {
    Words arguments;
    std::string named;
  } cases[] = {
      {{"generat"}, "'generat'"},
      {{"--nonsense"}, "--nonsense"},
      {{"generate", "--nonsense"}, "--nonsense"},
      {{"generate", "extra"}, "extra"},
      {{"generate", "-p"}, "-p"},
      {{"generate", "-n", "many"}, "'many'"},
      {{"generate", "-n", "-2"}, "'-2'"},
      {{"generate", "-n", "99999999999999999999"}, "99999999999999999999"},
      {{"generate", "--temp", "nan"}, "'nan'"},
      {{"generate", "--temp", "-0.5"}, "'-0.5'"},
      {{"generate", "--top-p", "1.5"}, "from 0 to 1"},
      {{"generate", "--min-p", "2"}, "--min-p"},
      {{"generate", "--top-k", "1.5"}, "'1.5'"},
      {{"generate", "--repeat-last-n", "1000"}, "from 0 to 256"},
      {{"generate", "--repeat-penalty", "0"}, "--repeat-penalty"},
      {{"generate", "--seed", "-1"}, "'-1'"},
      {{"generate", "-t", "-1"}, "'-1'"},
      {{"generate", "--dtype", "int3"}, "'int3'"},
      {{"generate", "--state-dtype", "f16"}, "'f16'"},
      {{"generate", "--piece", "0"}, "'0'"},
      {{"generate", "--ids", "1,x"}, "'x'"},
      {{"generate", "--ids", "1,-2"}, "'-2'"},
      {{"generate", "-p", "a", "-f", "b"}, "--file"},
      {{"generate", "-p", "a", "--ids", "1"}, "--ids"},
      {{"generate", "--echo", "--no-echo"}, "echo"},
      {{"score"}, "-f"},
      {{"score", "-f", "x", "--windows", "3"}, "--window"},
      {{"score", "-f", "x", "--window", "0"}, "'0'"},
      {{"logits", "--ids", "1"}, "--out"},
      {{"tokenize", "--ids", "1"}, "--decode"},
      {{"bench"}, "machine"},
      {{"bench", "nothing"}, "nothing"},
      {{"bench", "model", "--random", "mamba2-130m", "-m", "x"}, "--random"},
      {{"bench", "model", "--prefill", "0"}, "'0'"},
      {{"bench", "op", "--device", "gpu"}, "'gpu'"},
      {{"generate", "-p", "a", "--device", "gpu"}, "'gpu'"},
      {{"bench", "op", "--device", "cuda:x"}, "'cuda:x'"},
      {{"bench", "machine", "--device", "cuda:-1"}, "'cuda:-1'"},
      {{"tune", "--device", "cpu"}, "'cpu'"},
      {{"tune", "--device", "cuda:x"}, "'cuda:x'"},
      {{"tune", "--budget-seconds", "0"}, "'0'"},
      {{"tune", "--seconds", "nan"}, "'nan'"},
      {{"tune", "--shape"}, "--shape"},
      {{"tune", "extra"}, "extra"},
  };
  for (const auto& [arguments, named] : cases) {
    const Outcome outcome = run_adder(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << Json(arguments) << outcome.err;
    EXPECT_EQ(outcome.out, "") << Json(arguments);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.err.rfind("adder: ", 0), 0U) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "--help")) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, named)) << Json(arguments) << outcome.err;
  }
}

TEST(Cli, NoArgumentsShowTheHelp) {
  const Outcome outcome = run_adder({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(contains(outcome.err, "Examples:"));
}

// ---- failures ----------------------------------------------------------------------------------

TEST(Cli, FailuresExitWith1AndOneSentenceThatNamesTheThing) {
  const TemporaryFolder folder;
  const std::string missing = folder.file("missing");
  const struct {
    Words arguments;
    std::string named;
  } cases[] = {
      {{"generate", "-m", missing, "-p", "a"}, missing},
      {{"generate", "-f", missing}, missing},
      {{"generate", "-f", folder.file("")}, "directory"},
      {{"generate", "-p", "a", "--load-state", missing}, missing},
      {{"generate", "-p", "a", "--save-state", missing + "/state"}, missing},
      {{"generate", "-p", "a", "--device", "cuda:99"}, "cuda"},
      {{"generate", "-p", "a", "--state-dtype", "bf16"}, "device cpu"},
      {{"generate", "-p", "a", "-m", "tests/data/golden/hf-mamba2-tiny"}, "tokenizer.json"},
      {{"generate", "--ids", "4096"}, "4096"},
      {{"score", "-f", missing}, missing},
      {{"logits", "--ids", "1", "--out", missing + "/file"}, missing},
      {{"tokenize", "-m", missing, "-p", "a"}, missing},
      {{"tokenize", "--decode", "--ids", "4096"}, "4096"},
      {{"inspect", "-m", missing}, missing},
      {{"bench", "op", "nothing"}, "nothing"},
      {{"bench", "op", "rms_norm", "--shape", "x"}, "--shape"},
      {{"bench", "op", "all", "--device", "cuda:99"}, "cuda"},
      {{"bench", "machine", "--device", "cuda:99"}, "cuda"},
      {{"bench", "op", "rms_norm", "--tuning", "x"}, "--tuning"},
      {{"tune", "--device", "cuda:99", "--file", missing}, "cuda"},
      {{"tune", "--device", "cuda:99", "--file", missing, "--dry-run"}, "cuda"},
      {{"bench", "model", "--random", "nothing"}, "nothing"},
  };
  for (const auto& [arguments, named] : cases) {
    const Outcome outcome = run_adder(arguments);
    EXPECT_EQ(outcome.exit_code, 1) << Json(arguments) << outcome.err;
    EXPECT_EQ(outcome.out, "") << Json(arguments);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.err.rfind("adder: ", 0), 0U) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, named)) << Json(arguments) << outcome.err;
  }
}

TEST(Cli, ModelIsTheOneThatTheEnvironmentNames) {
  const Words command = {"inspect", "--json"};
  const Outcome outcome = run_adder(command, "", {"ADDER_MODEL=tests/data/golden/hf-mamba2-tiny"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["path"], "tests/data/golden/hf-mamba2-tiny");
  EXPECT_EQ(run_adder(command, "", {"ADDER_MODEL=/no/such/model"}).exit_code, 1);
}

TEST(Cli, WithoutAModelTheErrorSaysWhereItLooked) {
  // A copy of the program in a folder without a model, run from there.
  const TemporaryFolder folder;
  const std::string copy = folder.file("adder");
  std::filesystem::copy_file(ADDER_BINARY, copy);
  const Outcome outcome =
      run({"bash", "-c", "cd \"$1\" && exec ./adder inspect", "bash", folder.file("")}, "",
          {"ADDER_MODEL="});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(contains(outcome.err, "ADDER_MODEL")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "share/adder/models/books-11m")) << outcome.err;
}

TEST(Cli, ClosedStandardStreamsDoNoHarm) {
  const Outcome outcome =
      run({"bash", "-c", std::string(ADDER_BINARY) + " tokenize -p Hello >&- <&-"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

// ---- tokenize ----------------------------------------------------------------------------------

TEST(CliTokenize, EveryCaseGoesToIdsAndBack) {
  const TemporaryFolder folder;
  const Json cases = Json::parse(read_file("tests/data/books-11m/tokenizer_cases.json"));
  ASSERT_GT(cases.size(), 10U);
  for (const Json& item : cases) {
    const std::string file = folder.write("text", item["text"]);
    const Json encoded = run_json({"tokenize", "-f", file});
    EXPECT_EQ(encoded["ids"], item["ids"]);
    EXPECT_EQ(encoded["pieces"].size(), item["ids"].size());
    if (item["ids"].empty()) continue;
    std::string ids = item["ids"].dump();
    ids = ids.substr(1, ids.size() - 2);
    EXPECT_EQ(run_json({"tokenize", "--decode", "--ids", ids})["text"], item["decoded"]);
    EXPECT_EQ(run_json({"tokenize", "--decode"}, ids)["text"], item["decoded"]);
  }
}

TEST(CliTokenize, PrintsOneTokenPerLine) {
  const Outcome outcome = run_adder({"tokenize", "-p", "Hello world"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.rfind("40\tH\n507\tell\n79\to\n948\t", 0), 0U) << outcome.out;
  EXPECT_EQ(run_adder({"tokenize"}, "Hello world").out, outcome.out);
  EXPECT_EQ(run_adder({"tokenize", "--decode", "--ids", "40 507 79 948"}).out, "Hello world\n");
}

// ---- inspect -----------------------------------------------------------------------------------

TEST(CliInspect, ShowsWhatTheLibraryKnows) {
  const Model model = Model::load(kModel);
  const ModelConfig& config = model.config();
  const Json out = run_json({"inspect", "-m", kModel});
  EXPECT_EQ(out["format"], config.format);
  EXPECT_EQ(out["architecture"], "mamba2");
  EXPECT_EQ(out["d_model"], 384);
  EXPECT_EQ(out["n_layer"], 10);
  EXPECT_EQ(out["vocab_size"], 4096);
  EXPECT_EQ(out["nheads"], 12);
  EXPECT_EQ(out["headdim"], 64);
  EXPECT_EQ(out["ngroups"], 1);
  EXPECT_EQ(out["d_state"], 64);
  EXPECT_EQ(out["d_conv"], 4);
  EXPECT_EQ(out["dt_max"], "Infinity");
  EXPECT_EQ(out["parameter_count"], model.parameter_count());
  EXPECT_EQ(out["state_bytes"], model.state_bytes());
  std::int64_t parameters = 0;
  for (const Json& count : out["parameters_by_dtype"]) parameters += count.get<std::int64_t>();
  EXPECT_EQ(parameters, model.parameter_count());
  EXPECT_EQ(out["files"].size(), 2U);

  const Outcome text = run_adder({"inspect", "-m", kModel});
  EXPECT_TRUE(contains(text.out, "mamba2")) << text.out;
  EXPECT_TRUE(contains(text.out, "state_bytes")) << text.out;
}

TEST(CliInspect, ReadsEveryKindOfCheckpoint) {
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/golden")) {
    if (!entry.is_directory()) continue;
    const Json out = run_json({"inspect", "-m", entry.path().string(), "--tensors"});
    std::int64_t bytes = 0;
    for (const Json& tensor : out["tensors"]) bytes += tensor["bytes"].get<std::int64_t>();
    EXPECT_EQ(out["bytes"], bytes) << entry.path();
  }
}

// ---- bench -------------------------------------------------------------------------------------

Json bench_json(Words arguments) {
  const TemporaryFolder folder;
  const std::string file = folder.file("bench.json");
  const Outcome outcome = run_adder(arguments + Words{"--json", file});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json report = Json::parse(read_file(file));
  EXPECT_EQ(report["schema"], 1);
  EXPECT_EQ(report["kind"], arguments[1]);
  for (const char* name : {"cpu", "cores", "system", "tier", "threads"}) {
    EXPECT_TRUE(report["machine"].contains(name)) << name;
  }
  for (const char* name : {"version", "commit", "compiler"}) {
    EXPECT_TRUE(report["adder"].contains(name)) << name;
  }
  return report;
}

TEST(CliBench, OperationsAreCheckedAndTimed) {
  const Json report = bench_json({"bench", "op", "rms_norm", "--seconds", "0.01", "-t", "1"});
  ASSERT_FALSE(report["results"].empty());
  for (const Json& result : report["results"]) {
    EXPECT_EQ(result["op"], "rms_norm");
    for (const char* name :
         {"median_s", "p10_s", "p90_s", "bytes", "gb_per_s", "percent_of_bound"}) {
      EXPECT_GT(result[name].get<double>(), 0) << name;
    }
    EXPECT_LE(result["error"].get<double>(), result["allowed_error"].get<double>());
  }
}

TEST(CliBench, ModelIsTimed) {
  const Json report = bench_json({"bench", "model", "-m", kModel, "--prefill", "16,64", "--decode",
                                  "4", "--position", "600", "--repeat", "1"});
  EXPECT_EQ(report["model"]["state_dtype"], "f32");
  const Json& results = report["results"];
  ASSERT_EQ(results["prefill"].size(), 2U);
  EXPECT_EQ(results["prefill"][1]["tokens"], 64);
  for (const Json& prefill : results["prefill"]) {
    EXPECT_GT(prefill["tokens_per_s"].get<double>(), 0);
    EXPECT_GT(prefill["percent_of_bound"].get<double>(), 0);
  }
  ASSERT_EQ(results["decode"].size(), 2U);
  EXPECT_EQ(results["decode"][1]["position"], 600);
  for (const Json& decode : results["decode"]) {
    EXPECT_GT(decode["tokens_per_s"].get<double>(), 0);
    // None of the four samples is of a token that was there already: no memory is so fast.
    EXPECT_GT(decode["p10_s"].get<double>(), decode["bytes"].get<double>() / 2e13);
    EXPECT_GE(decode["p90_s"], decode["median_s"]);
    EXPECT_GE(decode["mean_s"], decode["p10_s"]);
    EXPECT_GT(decode["percent_of_bound"].get<double>(), 0);
  }
  for (const char* name : {"load_s", "first_token_s", "peak_rss_bytes"}) {
    EXPECT_GT(results[name].get<double>(), 0) << name;
  }
}

}  // namespace
}  // namespace adder::test
