#include "ops/embedding/embedding.h"

#include <gtest/gtest.h>

#include "adder/error.h"
#include "core/cpu_tier.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "ops/embedding/ref.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/sparse.h"

namespace adder {
namespace {

using test::Guarded;

// Every 16-bit pattern turns up as a weight, subnormals, infinities and NaN among them.
template <typename T>
std::vector<T> weights(std::int64_t n, test::Random& random) {
  std::vector<T> out(static_cast<std::size_t>(n));
  for (T& v : out) {
    if constexpr (sizeof(T) == 2) {
      v = T{static_cast<std::uint16_t>(random.integer(0, 0xffff))};
    } else {
      v = static_cast<float>(random.normal());
    }
  }
  return out;
}

std::vector<std::int32_t> random_ids(std::int64_t ntokens, std::int64_t rows,
                                     test::Random& random) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(ntokens));
  for (auto& id : ids) id = static_cast<std::int32_t>(random.integer(0, rows - 1));
  return ids;
}

void expect_same_values(std::span<const float> got, std::span<const float> expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << "element " << i << " is " << got[i];
    } else {
      EXPECT_TRUE(test::same_bits(got.subspan(i, 1), expected.subspan(i, 1))) << "element " << i;
    }
  }
}

TEST(Embedding, IsTheRowOfEachIdInEveryTierDtypeAndSize) {
  constexpr std::int64_t kRows = 37;
  ThreadPool pool(2);
  for (CpuTier tier : supported_cpu_tiers()) {
    const ScopedCpuTier scoped(tier);
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (std::int64_t ntokens : {0, 1, 2, 51}) {
        for (std::int64_t d_model : {1, 3, 15, 16, 17, 64, 100, 500}) {
          SCOPED_TRACE(::testing::Message() << name_of(tier) << " " << name_of(dtype) << " ntokens "
                                            << ntokens << " d_model " << d_model);
          test::Random random;
          const auto ids = random_ids(ntokens, kRows, random);
          visit_float(dtype, [&]<typename T>(TypeTag<T>) {
            const std::vector<T> weight = weights<T>(kRows * d_model, random);
            Guarded<T> misaligned(kRows * d_model);
            misaligned.fill(weight);
            Guarded<float> y(ntokens * d_model);
            cpu::embedding({.ids = ConstTensorView::of(ids.data(), {ntokens}),
                            .weight = misaligned.view({kRows, d_model}),
                            .y = y.view({ntokens, d_model})},
                           pool);
            std::vector<float> expected(y.span().size());
            ref::embedding<float, T>(ids, weight, static_cast<std::size_t>(d_model), expected);
            expect_same_values(y.span(), expected);
            EXPECT_TRUE(y.intact());
          });
        }
      }
    }
  }
}

TEST(Embedding, StridedRowsLeaveTheGapsAlone) {
  constexpr std::int64_t kModel = 5;
  ThreadPool pool(1);
  const std::vector<std::int32_t> ids{2, 0, 2};
  std::vector<float> weight(3 * 8);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i);
  std::vector<float> memory(3 * 7, -1.0F);
  cpu::embedding({.ids = ConstTensorView::of(ids.data(), {3}),
                  .weight = ConstTensorView::of(weight.data(), {3, 8}).narrow(1, 2, kModel),
                  .y = TensorView::of(memory.data(), {3, 7}).narrow(1, 1, kModel)},
                 pool);
  const std::vector<float> expected{-1, 18, 19, 20, 21, 22, -1, -1, 2,  3, 4,
                                    5,  6,  -1, -1, 18, 19, 20, 21, 22, -1};
  EXPECT_TRUE(test::same_bits(memory, expected));
}

TEST(Embedding, OffsetsBeyond32Bits) {  // known bug 12
  ThreadPool pool(1);
  const test::Sparse<bf16> weight(test::kBeyond32Bits + 16);
  const test::Sparse<float> memory(test::kBeyond32Bits + 16);
  if (!weight.ok() || !memory.ok()) GTEST_SKIP() << "no address space for a sparse mapping";
  weight.data()[test::kBeyond32Bits + 3] = to_bf16(1.5F);
  const std::vector<std::int32_t> ids{0, 1};
  ConstTensorView rows = ConstTensorView::of(weight.data(), {2, 16});
  rows.strides[0] = test::kBeyond32Bits;
  TensorView y = TensorView::of(memory.data(), {2, 16});
  y.strides[0] = test::kBeyond32Bits;
  cpu::embedding({.ids = ConstTensorView::of(ids.data(), {2}), .weight = rows, .y = y}, pool);
  EXPECT_EQ(memory.data()[3], 0.0F);
  EXPECT_EQ(memory.data()[test::kBeyond32Bits + 3], 1.5F);
}

std::string error_of(const EmbeddingArgs& args) {
  ThreadPool pool(1);
  return test::error_of([&] { cpu::embedding(args, pool); });
}

TEST(Embedding, AnIdOutOfRangeIsNamedAndNothingIsWritten) {
  std::vector<std::int32_t> ids{1, 0, 10};
  const std::vector<float> weight(10 * 4);
  Guarded<float> y(3 * 4);
  const EmbeddingArgs args{.ids = ConstTensorView::of(ids.data(), {3}),
                           .weight = ConstTensorView::of(weight.data(), {10, 4}),
                           .y = y.view({3, 4})};
  EXPECT_EQ(error_of(args), "embedding: id 10 of token 2 has no row, expected an id from 0 to 9");
  ids[1] = -1;
  EXPECT_EQ(error_of(args), "embedding: id -1 of token 1 has no row, expected an id from 0 to 9");
  for (float v : y.span()) EXPECT_TRUE(std::isnan(v));
}

TEST(Embedding, NamesTheArgumentThatIsWrong) {
  const std::vector<std::int32_t> ids(3);
  std::vector<float> data(64);
  const EmbeddingArgs good{.ids = ConstTensorView::of(ids.data(), {3}),
                           .weight = ConstTensorView::of(data.data(), {2, 4}),
                           .y = TensorView::of(data.data() + 32, {3, 4})};
  EXPECT_EQ(error_of(good), "no error");
  EmbeddingArgs args = good;
  args.y = TensorView::of(data.data() + 32, {3, 5});
  EXPECT_EQ(error_of(args), "embedding: y has shape (3, 5), expected (3, 4)");
  args = good;
  args.ids = ConstTensorView::of(data.data(), {3});
  EXPECT_EQ(error_of(args), "embedding: ids has dtype f32, expected i32");
  args = good;
  args.weight.dtype = DType::i8;
  EXPECT_EQ(error_of(args), "embedding: weight has dtype i8, expected f32 or bf16 or f16");
  args = good;
  args.weight.strides = {1, 2};
  EXPECT_EQ(error_of(args), "embedding: weight has stride 2 in its last dimension, expected 1");
}

}  // namespace
}  // namespace adder
