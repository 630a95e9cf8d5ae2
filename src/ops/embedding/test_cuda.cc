#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "adder/error.h"
#include "cuda/timing.h"
#include "ops/embedding/embedding.h"
#include "ops/embedding/ref.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using EmbeddingCuda = test::OnDevice;
using test::DeviceBuffer;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

struct Problem {
  std::int64_t vocab_rows;
  std::int64_t d_model;
  std::vector<std::int32_t> ids{};
  std::vector<float> weight{};

  std::int64_t ntokens() const { return static_cast<std::int64_t>(ids.size()); }

  /// What y is, exactly.
  std::vector<float> expected(DType weight_dtype, DType y_dtype) const {
    std::vector<float> y(static_cast<std::size_t>(ntokens() * d_model));
    ref::embedding<float, float>(ids, test::rounded(weight, weight_dtype),
                                 static_cast<std::size_t>(d_model), y);
    return test::rounded(y, y_dtype);
  }
};

Problem random_problem(std::int64_t ntokens, std::int64_t d_model) {
  Problem p{.vocab_rows = 37, .d_model = d_model};
  test::Random random;
  for (std::int64_t t = 0; t < ntokens; ++t) {
    p.ids.push_back(static_cast<std::int32_t>(random.integer(0, p.vocab_rows - 1)));
  }
  p.weight = random.normals(p.vocab_rows * d_model);
  return p;
}

Tensor device_ids(const std::vector<std::int32_t>& ids) {
  return cuda::to_device(ConstTensorView::of(ids.data(), {static_cast<std::int64_t>(ids.size())}));
}

// One call of a problem on the device, with y between canaries.
class DeviceCall {
 public:
  DeviceCall(const Problem& p, DType weight_dtype, DType y_dtype,
             std::int64_t weight_misalignment = 0, std::int64_t y_misalignment = 0)
      : ids_(device_ids(p.ids)),
        weight_(weight_dtype, p.weight, weight_misalignment),
        y_(y_dtype, p.ntokens() * p.d_model, y_misalignment) {
    args.ids = ids_.view;
    args.weight = weight_.view({p.vocab_rows, p.d_model});
    args.y = y_.view({p.ntokens(), p.d_model});
  }

  std::vector<float> run() {
    cuda::embedding(args, nullptr);
    return result();
  }
  std::vector<float> result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    return y_.values(stream);
  }
  void poison() { y_.poison(); }
  void fill_y(float value) {
    y_.fill(std::vector<float>(static_cast<std::size_t>(args.y.numel()), value));
  }

  EmbeddingArgs args;

 private:
  Tensor ids_;
  DeviceBuffer weight_, y_;
};

TEST_F(EmbeddingCuda, IsTheRowOfEachIdInEveryDtypeAndSize) {
  for (DType weight_dtype : kDTypes) {
    for (DType y_dtype : kDTypes) {
      for (std::int64_t ntokens : {0, 1, 2, 51}) {
        for (std::int64_t d_model : {1, 3, 8, 15, 16, 17, 64, 100, 500, 2560}) {
          const Problem p = random_problem(ntokens, d_model);
          const auto expected = p.expected(weight_dtype, y_dtype);
          for (const auto& [weight_at, y_at] : {std::pair{0, 0}, {1, 0}, {0, 1}, {1, 1}}) {
            SCOPED_TRACE(fmt::format("{} to {} ntokens {} d_model {} misaligned {} {}",
                                     name_of(weight_dtype), name_of(y_dtype), ntokens, d_model,
                                     weight_at, y_at));
            DeviceCall call(p, weight_dtype, y_dtype, weight_at, y_at);
            EXPECT_TRUE(test::same_bits(call.run(), expected));
          }
        }
      }
    }
  }
}

// Around every number of threads and vectors that rows are spread over, and longer rows than a
// thread block takes without a loop.
TEST_F(EmbeddingCuda, RowsOfEveryLength) {
  for (DType weight_dtype : kDTypes) {
    for (DType y_dtype : kDTypes) {
      const std::int64_t vector = weight_dtype == DType::f32 || y_dtype == DType::f32 ? 4 : 8;
      for (std::int64_t nvectors : {32, 64, 128, 129, 192, 320, 511, 640, 1024, 2048, 2049}) {
        for (std::int64_t extra : {std::int64_t{-1}, std::int64_t{0}, vector}) {
          const Problem p = random_problem(3, nvectors * vector + extra);
          SCOPED_TRACE(fmt::format("{} to {} d_model {}", name_of(weight_dtype), name_of(y_dtype),
                                   p.d_model));
          EXPECT_TRUE(test::same_bits(DeviceCall(p, weight_dtype, y_dtype).run(),
                                      p.expected(weight_dtype, y_dtype)));
        }
      }
    }
  }
}

// Subnormals, infinities and NaN among them.
TEST_F(EmbeddingCuda, WidensEvery16BitPattern) {
  constexpr std::int64_t kRows = 32;
  constexpr std::int64_t kModel = 2048;
  std::vector<std::int32_t> ids(kRows);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const Tensor ids_there = device_ids(ids);
  for (DType dtype : {DType::bf16, DType::f16}) {
    visit_float(dtype, [&]<typename T>(TypeTag<T>) {
      if constexpr (sizeof(T) == 2) {
        std::vector<T> weight(static_cast<std::size_t>(kRows * kModel));
        for (std::size_t i = 0; i < weight.size(); ++i)
          weight[i].bits = static_cast<std::uint16_t>(i);
        const Tensor there = cuda::to_device(ConstTensorView::of(weight.data(), {kRows, kModel}));
        const DeviceBuffer y(DType::f32, kRows * kModel);
        cuda::embedding({.ids = ids_there.view, .weight = there.view, .y = y.view({kRows, kModel})},
                        nullptr);
        const auto got = y.values();
        for (std::size_t i = 0; i < got.size(); ++i) {
          const float expected = to_float(weight[i]);
          if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(got[i])) << "pattern " << i << " is " << got[i];
          } else {
            EXPECT_TRUE(test::same_bits({&got[i], 1}, {&expected, 1})) << "pattern " << i;
          }
        }
      }
    });
  }
}

TEST_F(EmbeddingCuda, StridedRowsLeaveTheGapsAlone) {
  // At 11 no row is aligned to 16 bytes; at 16 all are, though 37 elements are no whole vectors.
  for (const auto& [begin, d_model] : {std::pair{16, 40}, {16, 37}, {11, 40}}) {
    SCOPED_TRACE(fmt::format("begin {} d_model {}", begin, d_model));
    test::Random random;
    const auto weight = test::rounded(random.normals(5 * 96), DType::bf16);
    const auto before = random.normals(3 * 64);
    const DeviceBuffer weight_there(DType::bf16, weight);
    const DeviceBuffer y(DType::f32, before);
    const std::vector<std::int32_t> ids{4, 0, 2};
    const Tensor ids_there = device_ids(ids);
    cuda::embedding({.ids = ids_there.view,
                     .weight = weight_there.view({5, 96}).narrow(1, begin, d_model),
                     .y = y.view({3, 64}).narrow(1, begin, d_model)},
                    nullptr);
    std::vector<float> expected = before;
    for (std::size_t t = 0; t < 3; ++t) {
      for (int i = begin; i < begin + d_model; ++i) {
        const auto column = static_cast<std::size_t>(i);
        expected[64 * t + column] = weight[96 * static_cast<std::size_t>(ids[t]) + column];
      }
    }
    EXPECT_TRUE(test::same_bits(y.values(), expected));
  }
}

TEST_F(EmbeddingCuda, AnIdWithoutARowGivesNaNAndTheOthersTheirRows) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  for (DType weight_dtype : kDTypes) {
    for (DType y_dtype : kDTypes) {
      for (std::int64_t d_model : {3, 64, 2560, 20000}) {
        Problem p = random_problem(0, d_model);
        const auto rows = static_cast<std::int32_t>(p.vocab_rows);
        p.ids = {0, -1, rows - 1, rows, kMost, kLeast, 1};
        DeviceCall call(p, weight_dtype, y_dtype);
        call.fill_y(7);  // the poison is NaN, too
        const auto got = call.run();
        const auto d = static_cast<std::size_t>(d_model);
        Problem good = p;
        for (auto& id : good.ids) id = id >= 0 && id < rows ? id : 0;
        const auto expected = good.expected(weight_dtype, y_dtype);
        for (std::size_t t = 0; t < p.ids.size(); ++t) {
          SCOPED_TRACE(fmt::format("{} to {} d_model {} id {}", name_of(weight_dtype),
                                   name_of(y_dtype), d_model, p.ids[t]));
          const std::span row = std::span(got).subspan(t * d, d);
          if (p.ids[t] == good.ids[t]) {
            EXPECT_TRUE(test::same_bits(row, std::span(expected).subspan(t * d, d)));
          } else {
            EXPECT_TRUE(std::all_of(row.begin(), row.end(), [](float v) { return std::isnan(v); }));
          }
        }
      }
    }
  }
}

TEST_F(EmbeddingCuda, OffsetsBeyond32Bits) {  // known bug 12
  const std::int64_t size = test::kBeyond32Bits + 64;
  if (cuda::properties(cuda::current_device()).memory_bytes < 6 * size) {
    GTEST_SKIP() << "no device memory for " << 4 * size << " bytes";
  }
  const auto far_rows = [](const Tensor& memory, std::int64_t count) {
    TensorView rows = memory.view;
    rows.rank = 2;
    rows.shape = {2, count};
    rows.strides = {test::kBeyond32Bits, 1};
    return rows;
  };
  const Tensor weight_memory = cuda::empty(DType::bf16, std::array{size});
  const Tensor y_memory = cuda::empty(DType::bf16, std::array{size});
  for (std::int64_t d_model : {16, 3}) {
    const TensorView weight = far_rows(weight_memory, d_model);
    const TensorView y = far_rows(y_memory, d_model);
    std::vector<std::vector<float>> rows;
    for (float first : {1.0F, -100.0F}) {
      std::vector<float> row(static_cast<std::size_t>(d_model));
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = first + static_cast<float>(i);
      rows.push_back(row);
      const auto bytes = test::encode(row, DType::bf16);
      cuda::copy_to_device(weight[first < 0 ? 1 : 0].data, bytes.data(), bytes.size(), nullptr);
    }
    const Tensor ids = device_ids({1, 0});
    cuda::embedding({.ids = ids.view, .weight = weight, .y = y}, nullptr);
    for (std::int64_t t : {0, 1}) {
      const Tensor got = cuda::to_host(y[t]);
      const std::span bytes(static_cast<const std::byte*>(got.view.data), rows[0].size() * 2);
      EXPECT_TRUE(
          test::same_bits(test::decode(bytes, DType::bf16), rows[static_cast<std::size_t>(1 - t)]));
    }
  }
}

TEST_F(EmbeddingCuda, RepeatedAndCapturedCallsGiveTheSameBits) {
  for (std::int64_t d_model : {100, 2560, 20000}) {
    Problem p = random_problem(50, d_model);
    DeviceCall call(p, DType::bf16, DType::f32);
    const auto first = call.run();
    EXPECT_TRUE(test::same_bits(call.run(), first));
    const cuda::OwnedStream stream;
    const cuda::Graph graph(stream, [&] { cuda::embedding(call.args, stream); });
    for (std::int32_t added : {0, 1}) {  // the graph reads the ids of its launch
      for (auto& id : p.ids) id = (id + added) % static_cast<std::int32_t>(p.vocab_rows);
      cuda::copy_to_device(const_cast<void*>(call.args.ids.data), p.ids.data(),
                           p.ids.size() * sizeof(p.ids[0]), nullptr);
      call.poison();
      graph.launch(stream);
      EXPECT_TRUE(test::same_bits(call.result(stream), p.expected(DType::bf16, DType::f32)));
    }
  }
}

// ---- what needs no device -----------------------------------------------------------------------

// Arguments whose memory is never touched, since one of them is wrong.
EmbeddingArgs device_args() {
  static std::byte memory[512];
  const auto view = [](std::size_t at, DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory + at, dtype, dims, {DeviceType::cuda, 0});
  };
  return {.ids = view(0, DType::i32, {4}),
          .weight = view(64, DType::bf16, {5, 8}),
          .y = view(256, DType::f32, {4, 8})};
}

template <typename Change>
std::string error_of(Change&& change) {
  EmbeddingArgs args = device_args();
  change(args);
  return test::error_of([&] { cuda::embedding(args, nullptr); });
}

TEST(EmbeddingCudaErrors, NameTheArgumentThatIsWrong) {
  using Args = EmbeddingArgs;
  EXPECT_EQ(error_of([](Args& args) { args.ids.dtype = DType::f32; }),
            "embedding: ids has dtype f32, expected i32");
  EXPECT_EQ(error_of([](Args& args) { args.ids.strides[0] = 2; }),
            "embedding: ids of shape (4) has strides (2), expected a contiguous tensor");
  EXPECT_EQ(error_of([](Args& args) { args.weight.dtype = DType::i8; }),
            "embedding: weight has dtype i8, expected f32 or bf16 or f16");
  EXPECT_EQ(error_of([](Args& args) { args.weight.device.index = 1; }),
            "embedding: weight is in memory of CUDA device 1, expected it in memory of CUDA device "
            "0");
  EXPECT_EQ(error_of([](Args& args) { args.y.dtype = DType::i32; }),
            "embedding: y has dtype i32, expected f32 or bf16 or f16");
  EXPECT_EQ(error_of([](Args& args) { args.y.shape[1] = 7; }),
            "embedding: y has shape (4, 7), expected (4, 8)");
  EXPECT_EQ(error_of([](Args& args) {
              args.y.strides = {1, 4};
            }),
            "embedding: y has stride 4 in its last dimension, expected 1");
}

TEST(EmbeddingCudaErrors, EachDeviceHasItsEntry) {
  const std::vector<std::int32_t> ids(2);
  std::vector<float> data(32);
  EXPECT_EQ(error_of([&](EmbeddingArgs& args) {
              args = {.ids = ConstTensorView::of(ids.data(), {2}),
                      .weight = ConstTensorView::of(data.data(), {2, 8}),
                      .y = TensorView::of(data.data() + 16, {2, 8})};
            }),
            "embedding: ids is in host memory, expected it in memory of a CUDA device");
  ThreadPool pool(1);
  EXPECT_EQ(test::error_of([&] { cpu::embedding(device_args(), pool); }),
            "embedding: ids is in memory of CUDA device 0, expected it in host memory");
}

}  // namespace
}  // namespace adder
