#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "cuda/timing.h"
#include "ops/sampling/test_device.h"
#include "tests/support/device.h"
#include "tests/support/error_of.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using SampleTokensCuda = test::OnDevice;
using test::SampledBatch;
using test::SampledSequence;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
T one_of(test::Random& random, std::initializer_list<T> values) {
  return values.begin()[random.integer(0, static_cast<std::int64_t>(values.size()) - 1)];
}

// Logits that are hard in one way or another.
std::vector<float> random_logits(test::Random& random, std::int64_t vocab_size) {
  std::vector<float> out = random.normals(vocab_size, random.uniform(0.1, 6.0));
  const auto n = out.size();
  switch (random.integer(0, 9)) {
    case 0:  // ties, zeros of both signs among them
      for (float& v : out) v = std::round(v * 2) / 2;
      break;
    case 1:  // nothing but ties
      std::fill(out.begin(), out.end(), out[0]);
      break;
    case 2:  // most ruled out, but not the first
      for (float& v : out) {
        if (random.uniform(0, 1) < 0.9) v = -kInf;
      }
      out[0] = 1.0F;
      break;
    case 3:
      std::sort(out.begin(), out.end());
      break;
    case 4:
      std::sort(out.rbegin(), out.rend());
      break;
    case 5:  // one far above, one far below
      out[n / 2] = 1e30F;
      out[n / 3] = -3e38F;
      break;
    case 6:  // subnormals
      for (float& v : out) v *= 1e-39F;
      break;
    case 7:  // many equal to the greatest
      for (float& v : out) v = std::min(v, 1.0F);
      break;
    default:
      break;
  }
  return out;
}

SampledSequence random_sequence(test::Random& random, std::int64_t vocab_size) {
  SampledSequence s;
  s.logits = random_logits(random, vocab_size);
  s.sampling.params = {
      .repeat_penalty = one_of(random, {1.0F, 1.3F, 0.5F, 100.0F}),
      .temperature = one_of(random, {0.0F, 1e-30F, 0.1F, 0.8F, 0.8F, 1.5F, 100.0F, 1e30F}),
      .top_k = one_of(random, {0, 0, 1, 2, 40, 40, 300, 700, static_cast<int>(vocab_size) - 1,
                               static_cast<int>(vocab_size), static_cast<int>(vocab_size) + 1,
                               std::numeric_limits<int>::max()}),
      .top_p = one_of(random, {0.0F, 0.01F, 0.5F, 0.95F, 0.95F, 0.9999999F, 1.0F, 1.0F}),
      .min_p = one_of(random, {0.0F, 0.0F, 0.05F, 0.05F, 1e-6F, 0.7F, 1.0F})};
  s.sampling.params.top_k = std::max(s.sampling.params.top_k, 0);
  s.sampling.repeat_window = one_of(random, {0, 1, 7, 64, 256, 1000});
  s.sampling.seed = random.engine()();
  s.position = one_of<std::uint64_t>(random, {0, 5, 0xffffffffu, random.engine()()});
  // The greatest logits are the most interesting to penalize.
  const auto best = std::max_element(s.logits.begin(), s.logits.end()) - s.logits.begin();
  for (std::int64_t n = one_of<std::int64_t>(random, {0, 1, 3, 60, 255, 256, 700}); n > 0; --n) {
    s.recent.push_back(random.uniform(0, 1) < 0.3
                           ? static_cast<int>(best)
                           : static_cast<int>(random.integer(0, vocab_size - 1)));
  }
  // A ring keeps 256.
  s.sampling.repeat_window = std::min(s.sampling.repeat_window, 256);
  return s;
}

std::vector<SampledSequence> random_sequences(test::Random& random, std::int64_t batch,
                                              std::int64_t vocab_size) {
  std::vector<SampledSequence> out;
  for (std::int64_t i = 0; i < batch; ++i) out.push_back(random_sequence(random, vocab_size));
  return out;
}

void run_and_compare(std::vector<SampledSequence> sequences, std::int64_t stride,
                     std::int64_t offset, int steps, const std::string& label) {
  const SampledBatch batch(sequences, stride, offset);
  for (int i = 0; i < steps; ++i) {
    batch.step();
    for (auto& s : sequences) s.step();
    batch.compare(sequences, fmt::format("{} step {}", label, i));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_F(SampleTokensCuda, TheTokensOfTheHost) {
  test::Random random;
  for (std::int64_t vocab_size : {1, 2, 3, 4, 5, 31, 127, 128, 129, 512, 513, 1000, 2048, 2049}) {
    run_and_compare(random_sequences(random, 150, vocab_size), vocab_size, 0, 3, "");
    if (HasFatalFailure()) return;
  }
}

TEST_F(SampleTokensCuda, TheTokensOfTheHostFromLargeVocabularies) {
  test::Random random(1);
  for (std::int64_t vocab_size : {50277, 50280, 131072}) {
    run_and_compare(random_sequences(random, 120, vocab_size), (vocab_size + 15) / 16 * 16, 0, 1,
                    "");
    // Few sequences, many blocks to each.
    for (int i = 0; i < 12; ++i) {
      run_and_compare(random_sequences(random, 1 + i % 3, vocab_size), vocab_size, 0, 2, "few");
    }
    if (HasFatalFailure()) return;
  }
  run_and_compare(random_sequences(random, 8, kMaxSampledVocabSize), kMaxSampledVocabSize, 0, 1,
                  "largest");
}

TEST_F(SampleTokensCuda, ManyTokensOfNearlyTheSameWeight) {
  // Every bit of every sum decides.
  test::Random random(10);
  std::vector<SampledSequence> sequences(12);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    SampledSequence& s = sequences[i];
    s.logits = random.normals(50277, 3.0);
    s.sampling.params = {.temperature = 50.0F,
                         .top_k = i % 3 == 0 ? 40000 : 0,
                         .top_p = i % 2 == 0 ? 0.5F : 1.0F,
                         .min_p = i % 4 == 0 ? 0.9F : 0.0F};
    s.sampling.seed = i;
  }
  run_and_compare(sequences, 50277, 0, 3, "");
}

TEST_F(SampleTokensCuda, RowsAtAnyAddress) {
  test::Random random(2);
  for (std::int64_t vocab_size : {31, 1000, 5003}) {
    for (std::int64_t offset : {0, 1, 2, 3}) {
      for (std::int64_t gap : {0, 1, 4}) {
        run_and_compare(random_sequences(random, 9, vocab_size), vocab_size + gap, offset, 2,
                        fmt::format("offset {} gap {}", offset, gap));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(SampleTokensCuda, OffsetsBeyond32Bits) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;
  constexpr std::int64_t kVocab = 3000;
  std::shared_ptr<std::byte> memory;
  try {
    memory = cuda::allocate(static_cast<std::size_t>(kFar + kVocab) * sizeof(float));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  test::Random random(9);
  for (int i = 0; i < 5; ++i) {
    std::vector<SampledSequence> sequences = random_sequences(random, 2, kVocab);
    SampledBatch batch(sequences, kVocab);
    TensorView far(memory.get(), DType::f32, {2, kVocab}, batch.args.logits.device);
    far.strides[0] = kFar;
    for (std::int64_t row = 0; row < 2; ++row) {
      cuda::copy_to_device(far[row].data, sequences[static_cast<std::size_t>(row)].logits.data(),
                           kVocab * sizeof(float), nullptr);
    }
    batch.args.logits = far;
    batch.step();
    for (auto& s : sequences) s.step();
    batch.compare(sequences, "");
  }
}

TEST_F(SampleTokensCuda, LongSequencesOfDraws) {
  // Rings of several sizes go round many times.
  test::Random random(3);
  for (std::int64_t capacity : {1, 5, 64, 256}) {
    std::vector<SampledSequence> sequences;
    for (int i = 0; i < 6; ++i) {
      SampledSequence s;
      s.logits = random.normals(1000, 3.0);
      s.sampling.params.repeat_penalty = 1.2F;
      if (i % 2 == 1) s.sampling.params.top_k = 0;
      s.sampling.repeat_window = static_cast<int>(capacity) - i % 3 / 2;
      s.sampling.seed = static_cast<std::uint64_t>(i);
      sequences.push_back(s);
    }
    const SampledBatch batch(sequences, 1000, 0, capacity);
    for (int step = 0; step < 300; ++step) {
      batch.step();
      for (auto& s : sequences) s.step();
    }
    batch.compare(sequences, fmt::format("capacity {}", capacity));
    for (const auto& s : sequences) EXPECT_EQ(s.position, 300u);
  }
}

TEST_F(SampleTokensCuda, ASequenceDoesNotDependOnTheOthers) {
  // Alone it is shared by many blocks, among many by one.
  test::Random random(4);
  std::vector<SampledSequence> all = random_sequences(random, 300, 20000);
  for (std::size_t i = 0; i < all.size(); i += 50) {
    std::vector<SampledSequence> alone{all[i]};
    const SampledBatch batch(alone, 20000);
    batch.step();
    alone[0].step();
    batch.compare(alone, "alone");
  }
  run_and_compare(all, 20000, 0, 1, "among many");
}

TEST_F(SampleTokensCuda, InactiveSequencesAreLeftAlone) {
  test::Random random(5);
  std::vector<SampledSequence> sequences = random_sequences(random, 40, 777);
  for (std::size_t i = 0; i < sequences.size(); i += 3) {
    sequences[i].active = false;
    sequences[i].token = 5;
    sequences[i].logits[3] = kNan;  // not even looked at
  }
  run_and_compare(sequences, 777, 0, 3, "");
}

TEST_F(SampleTokensCuda, NoRecentTokensAndAllActive) {
  test::Random random(6);
  std::vector<SampledSequence> sequences = random_sequences(random, 20, 3000);
  for (auto& s : sequences) s.recent.clear();
  SampledBatch batch(sequences, 3000);
  batch.args.recent = {};
  batch.args.recent_count = {};
  batch.args.active = {};
  for (int step = 0; step < 3; ++step) {
    batch.step();
    for (auto& s : sequences) {
      s.step();
      s.recent.clear();
    }
    batch.compare(sequences, "");
  }
}

TEST_F(SampleTokensCuda, ErrorsAreThoseOfTheHostAndStay) {
  test::Random random(7);
  for (std::int64_t vocab_size : {1000, 50277}) {
    const auto last = static_cast<std::size_t>(vocab_size) - 1;
    std::vector<SampledSequence> sequences(16);
    for (auto& s : sequences) {
      s.logits = random.normals(vocab_size, 3.0);
      s.sampling.params.repeat_penalty = 1.5F;
      s.sampling.repeat_window = 10;
      s.recent = {1, 2, 2};
      s.token = 11;
    }
    sequences[0].logits[last] = kNan;
    sequences[1].logits[0] = kInf;
    sequences[2].logits[500] = -kNan;
    sequences[2].logits[501] = kInf;
    sequences[2].recent = {-1};
    std::fill(sequences[3].logits.begin(), sequences[3].logits.end(), -kInf);
    sequences[3].recent = {-5};
    sequences[4].recent = {3, -1, -2, static_cast<int>(vocab_size)};
    sequences[5].recent = {3, std::numeric_limits<int>::max(), static_cast<int>(vocab_size)};
    sequences[6].recent = {3, std::numeric_limits<int>::max()};
    // Out of the range of floats once penalized.
    sequences[7].sampling.params.repeat_penalty = 0.5F;
    sequences[7].logits[2] = 3e38F;
    std::fill(sequences[8].logits.begin(), sequences[8].logits.end(), -kInf);
    sequences[8].logits[1] = -3e38F;
    sequences[9].sampling.params.temperature = -1.0F;
    sequences[10].sampling.params.top_p = kNan;
    sequences[11].sampling.params.min_p = 1.5F;
    sequences[12].sampling.params.top_k = -1;
    sequences[13].sampling.params.repeat_penalty = kInf;
    // Right, since nothing is penalized.
    sequences[14].recent = {-1, static_cast<int>(vocab_size)};
    sequences[14].sampling.params.repeat_penalty = 1.0F;
    for (int greedy : {0, 1}) {
      if (greedy != 0) {
        for (auto& s : sequences) {
          if (s.sampling.params.temperature > 0) s.sampling.params.temperature = 0;
        }
      }
      auto stepped = sequences;
      for (auto& s : stepped) s.step();
      EXPECT_EQ(std::count_if(stepped.begin(), stepped.end(),
                              [](const auto& s) { return s.error == "no error"; }),
                2);
      run_and_compare(sequences, vocab_size, 0, 2, greedy != 0 ? "greedy" : "draws");
    }
    std::vector<SampledSequence> window(1);
    window[0].logits = random.normals(vocab_size);
    window[0].sampling.repeat_window = -1;
    const SampledBatch batch(window, vocab_size);
    window[0].error = "sample_tokens: repeat_window is -1, expected a number that is not negative";
    batch.step();
    batch.compare(window, "");
  }
}

TEST_F(SampleTokensCuda, GraphsAndRepetitionsGiveTheSameTokens) {
  test::Random random(8);
  for (std::int64_t size : {1, 50}) {
    std::vector<SampledSequence> sequences = random_sequences(random, size, 50277);
    const SampledBatch again(sequences, 50277);
    const SampledBatch captured(sequences, 50277);
    const cuda::OwnedStream stream;
    const cuda::Graph graph(stream, [&] { captured.step(stream); });
    for (int step = 0; step < 5; ++step) {
      graph.launch(stream);
      again.step();
      for (auto& s : sequences) s.step();
    }
    captured.compare(sequences, "captured", stream);
    again.compare(sequences, "again");
  }
}

// ---- what needs no device -----------------------------------------------------------------------

// Arguments whose memory is never touched, since one of them is wrong.
SampleTokensArgs device_args() {
  alignas(16) static std::byte memory[512];
  const auto view = [](std::size_t at, DType dtype, std::initializer_list<std::int64_t> dims) {
    return TensorView(memory + at, dtype, dims, {DeviceType::cuda, 0});
  };
  return {.logits = view(0, DType::f32, {2, 8}),
          .sampling = view(64, DType::u8, {2, 32}),
          .position = view(128, DType::i64, {2}),
          .recent = view(160, DType::i32, {2, 4}),
          .recent_count = view(192, DType::i64, {2}),
          .active = view(208, DType::u8, {2}),
          .tokens = view(224, DType::i32, {2}),
          .status = view(240, DType::i32, {2, 2})};
}

template <typename Change>
std::string error_of(Change&& change) {
  SampleTokensArgs args = device_args();
  change(args);
  return test::error_of([&] { cuda::sample_tokens(args, {}, nullptr); });
}

TEST(SampleTokensErrors, NameTheArgumentThatIsWrong) {
  using Args = SampleTokensArgs;
  EXPECT_EQ(error_of([](Args& a) { a.logits.dtype = DType::bf16; }),
            "sample_tokens: logits has dtype bf16, expected f32");
  EXPECT_EQ(error_of([](Args& a) { a.logits.shape[1] = 0; }),
            "sample_tokens: logits has 0 columns, expected 1 to 262144");
  EXPECT_EQ(error_of([](Args& a) { a.logits.shape[1] = 262145; }),
            "sample_tokens: logits has 262145 columns, expected 1 to 262144");
  EXPECT_EQ(error_of([](Args& a) { a.sampling.shape[1] = 24; }),
            "sample_tokens: sampling has shape (2, 24), expected (2, 32)");
  EXPECT_EQ(error_of([](Args& a) {
              a.sampling.data = static_cast<const std::byte*>(a.sampling.data) + 4;
            }),
            "sample_tokens: sampling is not at a multiple of 8 bytes");
  EXPECT_EQ(error_of([](Args& a) { a.position.dtype = DType::i32; }),
            "sample_tokens: position has dtype i32, expected i64");
  EXPECT_EQ(error_of([](Args& a) { a.recent_count = {}; }),
            "sample_tokens: recent_count is absent, expected both or neither of recent and "
            "recent_count");
  EXPECT_EQ(error_of([](Args& a) { a.recent.shape[1] = 257; }),
            "sample_tokens: recent of shape (2, 257) has strides (4, 1), expected a contiguous "
            "tensor");
  EXPECT_EQ(error_of([](Args& a) {
              a.recent.shape[1] = 257;
              a.recent.strides[0] = 257;
            }),
            "sample_tokens: recent has 257 columns, expected 1 to 256");
  EXPECT_EQ(error_of([](Args& a) { a.active.dtype = DType::i32; }),
            "sample_tokens: active has dtype i32, expected u8");
  EXPECT_EQ(error_of([](Args& a) { a.tokens.device.index = 1; }),
            "sample_tokens: tokens is in memory of CUDA device 1, expected it in memory of CUDA "
            "device 0");
  EXPECT_EQ(error_of([](Args& a) { a.status = {}; }),
            "sample_tokens: status is missing, expected a tensor of shape (2, 2)");
}

TEST(SampleTokensErrors, AStatusIsTheErrorOfTheHost) {
  const auto message = [](SampleStatus status, const SequenceSampling& sampling) {
    return test::error_of([&] { check_sampled(status, sampling, 100); });
  };
  EXPECT_EQ(message({}, {}), "no error");
  EXPECT_EQ(message({SampleError::not_a_number, 7}, {}),
            "sample_token: the logit of token 7 is nan, expected a finite number or -inf");
  EXPECT_EQ(message({SampleError::invalid_params, 0}, {.params = {.top_k = -3}}),
            "sampling: top_k is -3, expected a number that is not negative");
  EXPECT_EQ(message({static_cast<SampleError>(99), 0}, {}),
            "sample_tokens: status is 99, expected 0 to 5");
}

}  // namespace
}  // namespace adder
