// Tuning files: what they say, how they are merged, and what becomes of them when many write at
// once or somebody else has written them.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "tune/test_entries.h"

namespace adder::tune {
namespace {

using test::error_of;
using test::kA100;
using test::kH200;
using test::ssd_entry;

class TuningFile : public ::testing::Test {
 protected:
  TuningFile()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("adder_tuning_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~TuningFile() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name = "tuning.json") const {
    return folder_ / name;
  }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string text() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<TuningEntry> entries() const { return parse_tuning(text(), "file"); }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      out.push_back(entry.path().filename());
    }
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(TuningFile, EntriesComeBackAsTheyWere) {
  const std::vector<TuningEntry> all{ssd_entry(1024, 3), ssd_entry(2048, 4)};
  EXPECT_EQ(parse_tuning(dump_tuning(all), "file"), all);
  EXPECT_EQ(dump_tuning({all[1], all[0]}), dump_tuning(all));  // sorted
  EXPECT_TRUE(parse_tuning(dump_tuning({}), "file").empty());
}

TEST_F(TuningFile, AnEntryReplacesOneForTheSameCaseAndNoOther) {
  std::vector<TuningEntry> old{ssd_entry(1024, 3), ssd_entry(1024, 3, kA100)};
  TuningEntry older = ssd_entry(1024, 1);
  --older.kernel_version;
  TuningEntry elsewhere = ssd_entry(1024, 1);
  elsewhere.operation = "selective_scan";
  const std::vector<TuningEntry> news{older, elsewhere, ssd_entry(1024, 7), ssd_entry(2048, 5)};
  const std::vector<TuningEntry> expected{ssd_entry(1024, 7), ssd_entry(1024, 3, kA100), older,
                                          elsewhere, ssd_entry(2048, 5)};
  EXPECT_EQ(merged(old, news), expected);
}

TEST_F(TuningFile, IsCreatedWithItsFoldersAndMergedInto) {
  const auto deep = path("some/folder/tuning.json");
  update_tuning_file(deep, {ssd_entry(1024, 3)});
  update_tuning_file(deep, {ssd_entry(2048, 4)});
  EXPECT_EQ(parse_tuning(*read_tuning_text(deep), "file").size(), 2U);
  EXPECT_EQ(read_tuning_text(path("none")), std::nullopt);
  EXPECT_EQ(read_tuning_text(deep / "none"), std::nullopt);
}

TEST_F(TuningFile, KeepsEntriesThatItDoesNotUnderstand) {
  TuningEntry foreign{.device = kH200,
                      .operation = "attention",
                      .kernel_version = 12,
                      .shape = {{"x", {1, 2.5, nullptr}}},
                      .choice = {{"tile", "64x64"}},
                      .measured = nlohmann::json::object()};
  write(dump_tuning({foreign}));
  update_tuning_file(path(), {ssd_entry(1024, 3)});
  const std::vector<TuningEntry> expected{foreign, ssd_entry(1024, 3)};
  EXPECT_EQ(entries(), expected);
}

TEST_F(TuningFile, IsReplacedWhereALinkPointsTo) {
  const auto real = path("real.json");
  std::filesystem::create_symlink(real, path());
  std::ofstream(real) << dump_tuning({});
  update_tuning_file(path(), {ssd_entry(1024, 3)});
  EXPECT_TRUE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(parse_tuning(*read_tuning_text(real), "file").size(), 1U);
}

// ---- many at once ------------------------------------------------------------------------------

TEST_F(TuningFile, NoEntryIsLostAmongThreads) {
  constexpr int kThreads = 6;
  constexpr int kEach = 8;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kThreads; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kEach; ++i) {
        update_tuning_file(path(), {ssd_entry(1 + writer * kEach + i, 3)});
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(entries().size(), std::size_t{kThreads} * kEach);
  EXPECT_EQ(names(), (std::vector<std::string>{"tuning.json", "tuning.json.lock"}));
}

TEST_F(TuningFile, NoEntryIsLostAmongProcessesAndReadersSeeWholeFiles) {
  constexpr int kProcesses = 4;
  constexpr int kEach = 10;
  std::vector<pid_t> writers;
  for (int writer = 0; writer < kProcesses; ++writer) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      int failures = 0;
      for (int i = 0; i < kEach; ++i) {
        try {
          update_tuning_file(path(), {ssd_entry(1 + writer * kEach + i, 3)});
        } catch (const std::exception&) {
          ++failures;
        }
      }
      ::_exit(failures);
    }
    writers.push_back(pid);
  }
  std::size_t largest = 0;
  for (std::size_t ended = 0; ended < writers.size();) {
    if (const auto now = read_tuning_text(path())) {
      const std::size_t count = parse_tuning(*now, "file").size();
      EXPECT_GE(count, largest);
      largest = count;
    }
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) > 0) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      ++ended;
    }
  }
  EXPECT_EQ(entries().size(), std::size_t{kProcesses} * kEach);
}

// ---- files that are none -----------------------------------------------------------------------

TEST_F(TuningFile, ErrorsNameTheFileTheEntryAndWhatIsWrong) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_tuning(text, "file"); });
  };
  EXPECT_EQ(error(""), "file is not valid JSON: the parser stopped at byte 1");
  EXPECT_EQ(error("{}"), "file has no schema, expected an integer from 1 to 1");
  EXPECT_EQ(error(R"({"schema": 2, "entries": []})"),
            "file: schema is \"2\", expected an integer from 1 to 1");
  EXPECT_EQ(error(R"({"schema": 1, "entries": {}})"), "file: entries is \"{}\", expected an array");
  EXPECT_EQ(error(R"({"schema": 1, "entries": [], "more": 1})"),
            "file has the key \"more\", expected no such key");
  EXPECT_EQ(error(R"({"schema": 1, "entries": [3]})"),
            "file: entry 1 is a JSON number, expected an object");

  const std::string good = dump_tuning({ssd_entry(1024, 3)});
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return error(text.replace(at, from.size(), to));
  };
  EXPECT_EQ(error(good), "no error");
  EXPECT_EQ(changed("\"operation\":", "\"operator\":"),
            "file: entry 1 has no operation, expected a string");
  EXPECT_EQ(changed("\"multiprocessors\":132", "\"multiprocessors\":-1"),
            "file: entry 1: device: multiprocessors is \"-1\", expected an integer from 0 to "
            "1073741824");
  EXPECT_EQ(changed("\"kernel_version\":", "\"a\":1,\"kernel_version\":"),
            "file: entry 1 has the key \"a\", expected no such key");
  EXPECT_EQ(changed("\"name\":\"NVIDIA H200\"", "\"name\":[]"),
            "file: entry 1: device: name is \"[]\", expected a string");

  const std::string entry =
      good.substr(good.find('\n') + 1, good.rfind("\n]") - good.find('\n') - 1);
  EXPECT_EQ(error("{\"schema\": 1, \"entries\": [" + entry + "," + entry + "]}"),
            "file: entry 2 is for the same device, kernel and shape as entry 1");
}

TEST_F(TuningFile, SomethingElseIsLeftAlone) {
  for (const char* other : {"", "not JSON", "{\"schema\": 7, \"entries\": []}", "{\"name\": 1}"}) {
    write(other);
    EXPECT_THROW(update_tuning_file(path(), {ssd_entry(1024, 3)}), Error) << other;
    EXPECT_EQ(text(), other);
  }
}

TEST_F(TuningFile, WhatIsNoFileIsRefusedAtOnce) {
  EXPECT_NE(error_of([&] { read_tuning_text(path("")); }).find("is not a regular file"),
            std::string::npos);
  const auto pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { read_tuning_text(pipe); }).find("is not a regular file"),
            std::string::npos);
  // 100 MB of nothing.
  write("{");
  std::filesystem::resize_file(path(), 100'000'000);
  EXPECT_NE(error_of([&] { read_tuning_text(path()); }).find("is larger than 67108864 bytes"),
            std::string::npos);
  write("x");
  const std::string error =
      error_of([&] { update_tuning_file(path("tuning.json/deeper/file"), {}); });
  EXPECT_NE(error.find("cannot create the folder"), std::string::npos) << error;
}

}  // namespace
}  // namespace adder::tune
