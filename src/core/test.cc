#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <thread>

#include "adder/error.h"
#include "adder/tensor_view.h"
#include "adder/thread_pool.h"
#include "core/atomic_file.h"
#include "core/check.h"
#include "core/file_lock.h"
#include "core/half.h"
#include "core/mapped_file.h"
#include "core/quote.h"
#include "core/tensor.h"

namespace adder {
namespace {

TEST(Half, EveryF16RoundTripsThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const f16 value{static_cast<std::uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(wide))));
    } else {
      ASSERT_EQ(to_f16(wide).bits, value.bits);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(to_f16(1.0F + 0x1p-11F).bits, to_f16(1.0F).bits);  // a tie, to even
  EXPECT_EQ(to_f16(1.0F + 3 * 0x1p-11F).bits, 0x3c02);         // a tie, to even above
  EXPECT_EQ(to_f16(65519.0F).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_f16(0x1p-25F).bits, 0);  // half the least subnormal
  EXPECT_EQ(to_f16(0x1.8p-25F).bits, 1);
  EXPECT_EQ(to_bf16(1.0F + 0x1p-8F).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.0F + 3 * 0x1p-8F).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::infinity())),
            std::numeric_limits<float>::infinity());
}

TEST(TensorView, NarrowsSplitsAndIndexes) {
  std::vector<float> data(24);
  std::iota(data.begin(), data.end(), 0.0F);
  const TensorView view = TensorView::of(data.data(), {4, 6});
  const TensorView columns = view.narrow(1, 2, 4);
  EXPECT_EQ(columns.as<float>()[0], 2);
  EXPECT_EQ(columns.stride(0), 6);
  EXPECT_FALSE(columns.is_contiguous());
  const TensorView heads = columns.split_last(2);
  EXPECT_EQ(heads.rank, 3);
  EXPECT_EQ(heads[1][1].as<float>()[1], 11);
  const ConstTensorView constant = heads;
  EXPECT_EQ(constant.dim(-1), 2);
  EXPECT_FALSE(ConstTensorView().defined());
  EXPECT_EQ(view.unsqueeze0().dim(0), 1);
  EXPECT_TRUE(view.unsqueeze0().is_contiguous());
}

TEST(Tensor, ConvertsStridedViews) {
  std::vector<float> data{1, 2, 3, 4, 5, 6};
  const Tensor half =
      convert(ConstTensorView::of(data.data(), {2, 3}).narrow(1, 1, 2), DType::bf16);
  EXPECT_EQ(to_float(half.as<bf16>()[2]), 5);
}

TEST(ThreadPool, CoversTheRangeOnceForAnyTeam) {
  for (int nthreads : {1, 2, 3, 8}) {
    ThreadPool pool(nthreads);
    for (std::int64_t n : {0, 1, 2, 7, 100}) {
      for (std::int64_t grain : {1, 3, 1000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        pool.parallel_cells(grain, n, [&](std::int64_t row, std::int64_t column) {
          ASSERT_LT(row, grain);
          ++hits[static_cast<std::size_t>(column)];
        });
        pool.parallel_pieces(n, grain, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        for (const auto& hit : hits) EXPECT_EQ(hit, 2 + grain);
      }
    }
  }
}

TEST(ThreadPool, PassesOnTheFirstErrorAndGoesOn) {
  ThreadPool pool(3);
  for (int i = 0; i < 100; ++i) {
    EXPECT_THROW(pool.parallel_for(3, 1, [](std::int64_t, std::int64_t) { fail("no"); }), Error);
  }
  std::atomic<int> calls{0};
  pool.parallel_for(3, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 3);
}

TEST(ThreadPool, ServesSeveralCallers) {
  ThreadPool pool(2);
  std::atomic<std::int64_t> sum{0};
  const auto caller = [&] {
    for (int i = 0; i < 200; ++i) {
      pool.parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(sum, 4000);
}

TEST(ThreadPool, RejectsAnImpossibleTeam) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(5000), Error);
}

TEST(MappedFile, NamesTheFileThatCannotBeOpened) {
  try {
    const MappedFile file("/nonexistent/model.safetensors");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "cannot open /nonexistent/model.safetensors: No such file or directory");
  }
  EXPECT_THROW(MappedFile("/"), Error);
}

TEST(AtomicFile, ReplacesTheWholeFileAndLeavesNothingBehind) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "adder_atomic_file";
  std::filesystem::create_directories(folder);
  const auto path = folder / "file";
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{100000}}) {
    const std::vector<std::byte> bytes(size, std::byte{7});
    write_file_atomically(path, bytes);
    EXPECT_EQ(std::filesystem::file_size(path), size);
  }
  EXPECT_THROW(write_file_atomically(folder / "missing" / "file", {}), Error);
  EXPECT_THROW(write_file_atomically(folder, {}), Error);  // a folder is not replaced
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(AtomicFile, AppearsWithItsCommit) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "adder_atomic_stream";
  std::filesystem::create_directories(folder);
  const auto path = folder / "file";
  const auto content = [&] {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  write_file_atomically(path, std::as_bytes(std::span("old", 3)));
  {
    AtomicFile abandoned(path);
    abandoned.write("new");
  }
  EXPECT_EQ(content(), "old");
  AtomicFile file(path);
  file.write("one ");
  file.write("two");
  EXPECT_EQ(content(), "old");
  file.commit();
  EXPECT_EQ(content(), "one two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(FileLock, IsHeldByOneAtATime) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "adder_file_lock";
  std::atomic<int> inside{0};
  std::atomic<bool> alone{true};
  const auto pass = [&] {
    for (int i = 0; i < 50; ++i) {
      const FileLock lock(path);
      if (++inside != 1) alone = false;
      std::this_thread::yield();
      --inside;
    }
  };
  std::thread other(pass);
  pass();
  other.join();
  EXPECT_TRUE(alone);
  EXPECT_EQ(std::filesystem::file_size(path), 0U);
  std::filesystem::remove(path);
  EXPECT_THROW(FileLock("/nonexistent/lock"), Error);
}

TEST(Quote, EscapesAndCuts) {
  EXPECT_EQ(in_quotes("plain é"), "\"plain é\"");
  EXPECT_EQ(in_quotes("a\"b\\c\nd\x7f"), "\"a\\\"b\\\\c\\x0ad\\x7f\"");
  EXPECT_EQ(in_quotes(std::string(120, 'x')), "\"" + std::string(120, 'x') + "\"");
  EXPECT_EQ(in_quotes(std::string(121, 'x')), "\"" + std::string(120, 'x') + "...\"");
}

TEST(Check, CuSeqlensMustCoverTheTokens) {
  const std::vector<std::int32_t> good{0, 3, 3, 10};
  const auto view = [](const std::vector<std::int32_t>& v) {
    return ConstTensorView::of(v.data(), {static_cast<std::int64_t>(v.size())});
  };
  EXPECT_NO_THROW(check_cu_seqlens("op", view(good), 10));
  EXPECT_THROW(check_cu_seqlens("op", view(good), 11), Error);
  EXPECT_THROW(check_cu_seqlens("op", view({0, 5, 3}), 3), Error);
  EXPECT_THROW(check_cu_seqlens("op", view({1, 5}), 5), Error);
  EXPECT_THROW(check_cu_seqlens("op", view({}), 0), Error);
}

}  // namespace
}  // namespace adder
