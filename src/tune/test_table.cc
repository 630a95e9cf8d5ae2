// The public table: what it takes from a file, what it ignores, and where the file is looked for.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>

#include "adder/tuning.h"
#include "tune/test_entries.h"

namespace adder::cuda {
namespace {

using test::error_of;
using test::kA100;
using test::kH200;
using test::ssd_entry;
using tune::dump_tuning;
using tune::TuningEntry;

SsdForwardArgs args_of(std::int64_t seqlen) {
  SsdForwardArgs args;
  args.x = ConstTensorView(nullptr, DType::bf16, {4, seqlen, 8, 64});
  args.B = ConstTensorView(nullptr, DType::bf16, {4, seqlen, 1, 128});
  return args;
}

TuningEntry of_version(TuningEntry entry, std::int64_t version) {
  entry.kernel_version = version;
  return entry;
}

constexpr std::int64_t kNow = kSsdForwardKernelVersion;

TEST(TuningTable, AnEmptyOneKnowsNothing) {
  const TuningTable table;
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.stale(kH200), 0U);
  EXPECT_EQ(table.lookup(kH200, args_of(1024)), std::nullopt);
  EXPECT_EQ(TuningTable::parse(dump_tuning({}), "file").size(), 0U);
}

TEST(TuningTable, LooksUpWhatTheFileSays) {
  const TuningTable table = TuningTable::parse(
      dump_tuning({ssd_entry(1024, 3), ssd_entry(2048, 4), ssd_entry(1024, 5, kA100)}), "file");
  EXPECT_EQ(table.size(), 3U);
  EXPECT_EQ(table.lookup(kH200, args_of(1024))->segments, 3);
  EXPECT_EQ(table.lookup(kH200, args_of(2000))->segments, 4);
  EXPECT_EQ(table.lookup(kA100, args_of(1024))->segments, 5);
  EXPECT_EQ(table.lookup(kA100, args_of(2048)), std::nullopt);
  EXPECT_EQ(table.lookup({"NVIDIA H100", 90, 132}, args_of(1024)), std::nullopt);
}

TEST(TuningTable, IgnoresAndCountsWhatOtherVersionsMeasured) {
  TuningEntry unknown = ssd_entry(1, 1);
  unknown.operation = "something_new";
  unknown.choice = {{"tile", 3}};
  TuningEntry strange = of_version(ssd_entry(3, 1), kNow + 1);
  strange.shape = {{"rank", 3}};
  strange.choice = {{"variant", "unheard of"}};
  const TuningTable table = TuningTable::parse(
      dump_tuning({ssd_entry(1024, 3), of_version(ssd_entry(1024, 9), kNow - 1),  // measured anew
                   of_version(ssd_entry(2048, 9), kNow - 1),                      // once
                   of_version(ssd_entry(2048, 9), kNow + 1), strange,
                   of_version(ssd_entry(4096, 9, kA100), kNow - 1), unknown}),
      "file");
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.stale(kH200), 2U);
  EXPECT_EQ(table.stale(kA100), 1U);
  EXPECT_EQ(table.stale({"NVIDIA H100", 90, 132}), 0U);
  EXPECT_EQ(table.lookup(kH200, args_of(1024))->segments, 3);
  EXPECT_EQ(table.lookup(kH200, args_of(2048)), std::nullopt);
}

TEST(TuningTable, ErrorsNameTheEntry) {
  TuningEntry entry = ssd_entry(1024, 3);
  entry.choice["segments"] = 0;
  EXPECT_EQ(error_of([&] {
              TuningTable::parse(dump_tuning({ssd_entry(512, 3), entry}), "file");
            }),
            "file: entry 1: choice: segments is \"0\", expected an integer from 1 to "
            "1099511627776");
  entry = ssd_entry(1024, 3);
  entry.shape["dtype"] = "f64";
  EXPECT_EQ(error_of([&] { TuningTable::parse(dump_tuning({entry}), "file"); }),
            "file: entry 1: shape: dtype is \"\\\"f64\\\"\", expected bf16, f16 or f32");
  EXPECT_EQ(error_of([&] { TuningTable::load("/no/such/file"); }),
            "cannot open /no/such/file: there is no such file");
}

TEST(TuningTable, IsInstalledForTheProcess) {
  install_tuning(TuningTable::parse(dump_tuning({ssd_entry(1024, 3)}), "file"));
  EXPECT_EQ(installed_ssd_forward_choice(kH200, args_of(1024))->segments, 3);
  install_tuning(TuningTable::parse(dump_tuning({ssd_entry(1024, 2)}), "file"));
  EXPECT_EQ(installed_ssd_forward_choice(kH200, args_of(1024))->segments, 2);
  install_tuning(TuningTable());
  EXPECT_EQ(installed_ssd_forward_choice(kH200, args_of(1024)), std::nullopt);
}

/// Sets variables of the environment, or unsets them (null), while it lives.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      const char* before = ::getenv(name);
      before_.emplace_back(name,
                           before == nullptr ? std::nullopt : std::optional<std::string>(before));
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value ? value->c_str() : nullptr);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const char* name, const char* value) {
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST(TuningTable, TheDefaultFileIsInTheFolderForCaches) {
  const auto path = [](const char* tuning, const char* cache, const char* home) {
    const Environment scoped{{"ADDER_TUNING", tuning}, {"XDG_CACHE_HOME", cache}, {"HOME", home}};
    const auto found = default_tuning_path();
    return found ? found->string() : "nothing";
  };
  EXPECT_EQ(path(nullptr, "/cache", "/home/me"), "/cache/adder/tuning.json");
  EXPECT_EQ(path(nullptr, nullptr, "/home/me"), "/home/me/.cache/adder/tuning.json");
  EXPECT_EQ(path(nullptr, "", "/home/me"), "/home/me/.cache/adder/tuning.json");
  EXPECT_EQ(path(nullptr, "relative", "/home/me"), "/home/me/.cache/adder/tuning.json");
  EXPECT_EQ(path(nullptr, nullptr, nullptr), "nothing");
  EXPECT_EQ(path("my/file", "/cache", "/home/me"), "my/file");
  EXPECT_EQ(path("", "/cache", "/home/me"), "/cache/adder/tuning.json");
  EXPECT_EQ(path("none", "/cache", "/home/me"), "nothing");
}

}  // namespace
}  // namespace adder::cuda
