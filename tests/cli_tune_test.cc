// `adder tune` as a user meets it, from the search to a command that goes by what was found.
// Skipped where there is no device; the parts are tested without one in src/tune and
// src/ops/ssd_forward.

#include <gtest/gtest.h>

#include "tests/support/cli.h"

namespace adder::test {
namespace {

using Words = std::vector<std::string>;

const std::string kShape = "batch 4, seqlen 1024, nheads 8, headdim 64, dstate 64";

class CliTune : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome outcome = run_adder({"tune", "--dry-run", "--shape", kShape});
    if (outcome.exit_code == 0) return;
    for (const char* reason : {"there is no device", "without CUDA"}) {
      if (outcome.err.find(reason) != std::string::npos) GTEST_SKIP() << outcome.err;
    }
    FAIL() << outcome.err;
  }

  std::string file() const { return folder_.file("deeper/tuning.json"); }

  // The report of a command that must succeed.
  Json report(const Words& arguments) const {
    const std::string json = folder_.file("report.json");
    const Outcome outcome = run_adder(arguments + Words{"--json", json});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(read_file(json));
  }
  Json tuned(const std::string& shape) const {
    return report({"tune", "--seconds", "0.01", "--file", file(), "--shape", shape});
  }
  Json entries() const { return Json::parse(read_file(file()))["entries"]; }

 private:
  TemporaryFolder folder_;
};

TEST_F(CliTune, KeepsWhatItFoundAndOtherCommandsGoByIt) {
  const Json found = tuned(kShape);
  EXPECT_EQ(found["kind"], "tune");
  ASSERT_EQ(found["results"].size(), 1U);
  const Json& result = found["results"][0];
  EXPECT_EQ(result["shape"], kShape);
  EXPECT_GT(result["candidates"].size(), 1U);
  EXPECT_LE(result["best_s"], result["built_in_s"]);
  EXPECT_GE(result["loss_percent"], 0);
  for (const Json& candidate : result["candidates"]) EXPECT_TRUE(candidate["right"]) << candidate;
  EXPECT_EQ(found["summary"]["max_loss_percent"], result["loss_percent"]);

  ASSERT_EQ(entries().size(), 1U);
  const Json entry = entries()[0];
  EXPECT_EQ(entry["operation"], "ssd_forward");
  EXPECT_EQ(entry["shape"], result["key"]);
  EXPECT_EQ(entry["device"]["name"], found["device"]["name"]);

  const Words bench = {"bench",   "op",   "ssd_forward", "--device", "cuda",
                       "--shape", kShape, "--seconds",   "0.01"};
  const Json with = report(bench + Words{"--tuning", file()});
  EXPECT_EQ(with["tuning"]["shapes"], 1);
  EXPECT_EQ(with["results"][0]["choice"], result["best"]);
  EXPECT_TRUE(with["results"][0]["tuned"]);
  const Json without = report(bench + Words{"--tuning", "none"});
  EXPECT_TRUE(without["tuning"].is_null());
  EXPECT_EQ(without["results"][0]["choice"], result["built_in"]);
  EXPECT_FALSE(without["results"][0]["tuned"]);
}

TEST_F(CliTune, MeasuresShapesOfOnesOwnAndAddsThemToTheFile) {
  tuned("seqlen=100,nheads=4,headdim=20,dstate=24,dtype=f32,batch=2");
  tuned("seqlen=500,nheads=4,ngroups=2,headdim=64,dstate=64,gated,packed,batch=3");
  tuned("seqlen=500,nheads=4,ngroups=2,headdim=64,dstate=64,gated,batch=3,dtype=f16");
  tuned("seqlen=500,nheads=4,headdim=64,dstate=64,dtype=f32,allow_tf32");
  EXPECT_EQ(entries().size(), 4U);
  tuned("seqlen=100,nheads=4,headdim=20,dstate=24,dtype=f32,batch=2");
  EXPECT_EQ(entries().size(), 4U);
}

TEST_F(CliTune, ADryRunListsCandidatesAndWritesNothing) {
  const Outcome outcome = run_adder({"tune", "--dry-run", "--file", file(), "--shape",
                                     "seqlen=1000,nheads=8,headdim=64,dstate=64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("batch 1, seqlen 1000"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("(built in)"), std::string::npos) << outcome.out;
  EXPECT_EQ(run_adder({"tune", "--dry-run", "--shape", "nothing"}).exit_code, 1);
  EXPECT_NE(run({"test", "-e", file()}).exit_code, 0);
}

TEST_F(CliTune, AFileThatIsNoneIsAnErrorHereAndANoteElsewhere) {
  const TemporaryFolder folder;
  const std::string broken = folder.write("tuning.json", "{\"schema\": 1");
  const Outcome refused = run_adder({"tune", "--file", broken, "--shape", kShape});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find(broken + " is not valid JSON"), std::string::npos) << refused.err;
  EXPECT_EQ(read_file(broken), "{\"schema\": 1");
  const Outcome noted = run_adder(
      {"bench", "op", "ssd_forward", "--device", "cuda", "--shape", kShape, "--seconds", "0.01"},
      "", {"ADDER_TUNING=" + broken});
  EXPECT_EQ(noted.exit_code, 0) << noted.err;
  EXPECT_EQ(noted.err.rfind("adder: note: " + broken, 0), 0U) << noted.err;
}

}  // namespace
}  // namespace adder::test
