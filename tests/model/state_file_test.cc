// State files: what is saved comes back bit for bit, and nothing else is believed.

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <filesystem>

#include "adder/error.h"
#include "adder/model.h"
#include "core/atomic_file.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

class StateFile : public ::testing::Test {
 protected:
  static Model load(const char* name) {
    return Model::load(std::filesystem::path("tests/data/golden") / name);
  }

  StateFile() : model_(load("mamba2-original")), session_(model_.new_session()) {
    session_.prefill(std::vector<int>{1, 2, 3, 4, 5, 6, 7});
  }

  /// The message of the error that these bytes end in; the checksum is made right first.
  std::string error_of(std::vector<std::byte> bytes) const {
    if (bytes.size() >= 8) {
      const std::uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size() - 8);
      std::memcpy(bytes.data() + bytes.size() - 8, &checksum, 8);
    }
    return error_of_raw(bytes);
  }
  std::string error_of_raw(const std::vector<std::byte>& bytes) const {
    return test::error_of([&] { Snapshot::parse(bytes, "a.state", model_); });
  }

  static void put(std::vector<std::byte>& bytes, std::size_t offset, std::uint64_t value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
  }

  Model model_;
  Session session_;
};

TEST_F(StateFile, ContinuesAsTheOriginal) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "adder_test.state";
  session_.snapshot().save(path);
  Session other = model_.new_session();
  EXPECT_EQ(other.restore(Snapshot::load(path, model_)), 7);
  std::filesystem::remove(path);
  EXPECT_TRUE(test::same_bits(other.logits(), session_.logits()));
  const GenerateOptions options{
      .max_tokens = 50, .sampling = {.repeat_penalty = 1.3F}, .seed = 5, .stop_at_eos = false};
  std::vector<int> truth;
  for (int token : session_.generate(options)) truth.push_back(token);
  std::vector<int> got;
  for (int token : other.generate(options)) got.push_back(token);
  EXPECT_EQ(got, truth);
}

TEST_F(StateFile, AnEmptySessionCanBeSaved) {
  const Snapshot empty = model_.new_session().snapshot();
  const Snapshot back = Snapshot::parse(empty.serialize(), "a.state", model_);
  EXPECT_EQ(back.ntokens(), 0);
}

TEST_F(StateFile, ASnapshotOfAnotherModelIsRefused) {
  const Model other = load("mamba2-original-fp16");
  Session session = other.new_session();
  EXPECT_THROW(session.restore(session_.snapshot()), Error);
  EXPECT_THROW(Snapshot::parse(session_.snapshot().serialize(), "a.state", other), Error);
  EXPECT_NE(load("hf-mamba2-tiny").fingerprint(), other.fingerprint());
  EXPECT_EQ(load("mamba2-original").fingerprint(), model_.fingerprint());
}

TEST_F(StateFile, EveryTruncationAndEveryFlippedBitIsNoticed) {
  const std::vector<std::byte> bytes = session_.snapshot().serialize();
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 40) {
    EXPECT_NE(error_of_raw({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}),
              "no error");
  }
  for (std::size_t i = 0; i < bytes.size(); i += 1 + i / 40) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_NE(error_of_raw(damaged), "no error") << i;
  }
  std::vector<std::byte> longer = bytes;
  longer.resize(longer.size() + 4);
  EXPECT_NE(error_of_raw(longer), "no error");
}

TEST_F(StateFile, HostileNumbersEndInOneSentence) {
  const std::vector<std::byte> bytes = session_.snapshot().serialize();
  ASSERT_EQ(error_of(bytes), "no error");
  const auto with = [&](std::size_t offset, std::uint64_t value) {
    std::vector<std::byte> out = bytes;
    put(out, offset, value);
    return error_of(out);
  };
  EXPECT_EQ(with(8, 2), "a.state: the state file's version is 2, expected 1");
  EXPECT_EQ(with(24, ~std::uint64_t{0}), "a.state: it claims 18446744073709551615 tokens");
  EXPECT_EQ(with(32, std::uint64_t{1} << 62),
            "a.state: it claims 4611686018427387904 recent tokens of 7, expected at most 256");
  EXPECT_EQ(with(40, 3), "a.state: its last hidden row has 3 values, expected 64");
  EXPECT_NE(with(48, std::uint64_t{1} << 62).find("its state has"), std::string::npos);
  EXPECT_NE(with(32, 6).find("bytes before the checksum"), std::string::npos);
  EXPECT_NE(with(56, 0xffffffffffffffff).find("it remembers the token -1"), std::string::npos);
}

TEST_F(StateFile, AFolderThatIsNotThereIsAnError) {
  EXPECT_THROW(session_.snapshot().save("/nonexistent/folder/a.state"), Error);
  EXPECT_THROW(Snapshot::load("/nonexistent/a.state", model_), Error);
}

}  // namespace
}  // namespace adder
