#pragma once

// Sequences that are sampled on the device and, beside that, by sample_token on the host.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "adder/error.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "ops/sampling/sample_tokens.h"
#include "ops/sampling/sampling.h"

namespace adder::test {

/// An array on the device between canaries.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : size_(values.size()), memory_(cuda::allocate(bytes() + 2 * kMarginBytes)) {
    cuda::fill_bytes(memory_.get(), kCanary, bytes() + 2 * kMarginBytes, nullptr);
    cuda::synchronize(nullptr);
    if (size_ > 0) cuda::copy_to_device(data(), values.data(), bytes(), nullptr);
  }
  std::byte* data() const { return memory_.get() + kMarginBytes; }
  TensorView view(DType dtype, std::initializer_list<std::int64_t> dims) const {
    return {data(), dtype, dims, {DeviceType::cuda, cuda::current_device()}};
  }
  /// Once the stream is done.
  std::vector<T> values(cuda::Stream stream = nullptr) const {
    std::vector<std::byte> all(bytes() + 2 * kMarginBytes);
    cuda::copy_to_host(all.data(), memory_.get(), all.size(), stream);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= kMarginBytes && i < kMarginBytes + bytes();
      if (!inside && all[i] != std::byte{kCanary}) {
        ADD_FAILURE() << "byte " << i << " around an array was overwritten";
        break;
      }
    }
    std::vector<T> out(size_);
    if (size_ > 0) std::memcpy(out.data(), all.data() + kMarginBytes, bytes());
    return out;
  }

 private:
  std::size_t bytes() const { return size_ * sizeof(T); }

  static constexpr std::size_t kMarginBytes = 256;
  static constexpr unsigned char kCanary = 0xa5;
  std::size_t size_;
  std::shared_ptr<std::byte> memory_;
};

struct SampledSequence {
  std::vector<float> logits;
  SequenceSampling sampling;
  std::uint64_t position = 0;
  std::vector<int> recent;  ///< all tokens so far
  bool active = true;
  int token = -7;
  std::string error = "no error";

  /// What a call must do.
  void step() {
    if (!active || error != "no error") return;
    const std::size_t window =
        std::min(recent.size(), static_cast<std::size_t>(sampling.repeat_window));
    Rng rng(sampling.seed, position);
    SamplingWorkspace workspace;
    try {
      token = sample_token(logits, sampling.params, std::span(recent).last(window), rng, workspace);
    } catch (const Error& e) {
      error = e.what();
      return;
    }
    position = rng.position();
    recent.push_back(token);
  }
};

/// Sequences of one vocabulary on the device.
class SampledBatch {
 public:
  /// Row i of the logits starts at element `offset` + i · `stride`.
  SampledBatch(const std::vector<SampledSequence>& sequences, std::int64_t stride,
               std::int64_t offset = 0, std::int64_t capacity = kMaxRecentCapacity)
      : batch_(static_cast<std::int64_t>(sequences.size())),
        vocab_size_(static_cast<std::int64_t>(sequences.front().logits.size())),
        capacity_(capacity),
        logits_(all_logits(sequences, stride, offset)),
        sampling_(each<SequenceSampling>(sequences, [](const auto& s) { return s.sampling; })),
        position_(each<std::uint64_t>(sequences, [](const auto& s) { return s.position; })),
        recent_(all_recent(sequences, capacity)),
        recent_count_(each<std::int64_t>(
            sequences, [](const auto& s) { return static_cast<std::int64_t>(s.recent.size()); })),
        active_(each<std::uint8_t>(sequences,
                                   [](const auto& s) -> std::uint8_t { return s.active ? 3 : 0; })),
        tokens_(each<std::int32_t>(sequences, [](const auto& s) { return s.token; })),
        status_(std::vector<SampleStatus>(sequences.size())),
        workspace_(std::vector<std::byte>(cuda::sample_tokens_workspace_bytes(batch_, vocab_size_),
                                          std::byte{0})) {
    const TensorView all = logits_.view(DType::f32, {batch_, stride});
    TensorView logits = all.narrow(1, 0, vocab_size_);
    logits.data = static_cast<float*>(logits.data) + offset;
    args = {.logits = logits,
            .sampling = sampling_.view(
                DType::u8, {batch_, static_cast<std::int64_t>(sizeof(SequenceSampling))}),
            .position = position_.view(DType::i64, {batch_}),
            .recent = recent_.view(DType::i32, {batch_, capacity}),
            .recent_count = recent_count_.view(DType::i64, {batch_}),
            .active = active_.view(DType::u8, {batch_}),
            .tokens = tokens_.view(DType::i32, {batch_}),
            .status = status_.view(DType::i32, {batch_, 2})};
  }

  void step(cuda::Stream stream = nullptr) const {
    cuda::sample_tokens(
        args, {workspace_.data(), cuda::sample_tokens_workspace_bytes(batch_, vocab_size_)},
        stream);
  }

  /// Everything on the device is as `expected` says.
  void compare(const std::vector<SampledSequence>& expected, const std::string& label,
               cuda::Stream stream = nullptr) const {
    const auto position = position_.values(stream);
    const auto recent = recent_.values(stream);
    const auto count = recent_count_.values(stream);
    const auto tokens = tokens_.values(stream);
    const auto status = status_.values(stream);
    workspace_.values(stream);
    const auto expected_recent = all_recent(expected, capacity_);
    const auto capacity = static_cast<std::size_t>(capacity_);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const SampledSequence& s = expected[i];
      const SamplingParams& p = s.sampling.params;
      SCOPED_TRACE(::testing::Message()
                   << label << " sequence " << i << " vocab_size " << s.logits.size()
                   << " repeat_penalty " << p.repeat_penalty << " temperature " << p.temperature
                   << " top_k " << p.top_k << " top_p " << p.top_p << " min_p " << p.min_p);
      ASSERT_EQ(tokens[i], s.token);
      ASSERT_EQ(position[i], s.position);
      ASSERT_EQ(count[i], static_cast<std::int64_t>(s.recent.size()));
      for (std::size_t j = i * capacity; j < (i + 1) * capacity; ++j) {
        ASSERT_EQ(recent[j], expected_recent[j]) << "place " << j - i * capacity;
      }
      std::string error = "no error";
      try {
        check_sampled(status[i], s.sampling, vocab_size_);
      } catch (const Error& e) {
        error = e.what();
      }
      ASSERT_EQ(error, s.error);
    }
  }

  SampleTokensArgs args;

 private:
  template <typename T, typename Of>
  static std::vector<T> each(const std::vector<SampledSequence>& sequences, const Of& of) {
    std::vector<T> out;
    out.reserve(sequences.size());
    for (const auto& s : sequences) out.push_back(of(s));
    return out;
  }
  static std::vector<float> all_logits(const std::vector<SampledSequence>& sequences,
                                       std::int64_t stride, std::int64_t offset) {
    // What lies between rows would be an error if it were taken for logits.
    std::vector<float> out(static_cast<std::size_t>(offset + stride) * sequences.size(),
                           std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      std::copy(sequences[i].logits.begin(), sequences[i].logits.end(),
                out.begin() + offset +
                    static_cast<std::ptrdiff_t>(i) * static_cast<std::ptrdiff_t>(stride));
    }
    return out;
  }
  static std::vector<std::int32_t> all_recent(const std::vector<SampledSequence>& sequences,
                                              std::int64_t capacity) {
    const auto places = static_cast<std::size_t>(capacity);
    std::vector<std::int32_t> out(sequences.size() * places, -1);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const auto& recent = sequences[i].recent;
      for (std::size_t n = 0; n < recent.size(); ++n) out[i * places + n % places] = recent[n];
    }
    return out;
  }

  std::int64_t batch_, vocab_size_, capacity_;
  DeviceArray<float> logits_;
  DeviceArray<SequenceSampling> sampling_;
  DeviceArray<std::uint64_t> position_;
  DeviceArray<std::int32_t> recent_;
  DeviceArray<std::int64_t> recent_count_;
  DeviceArray<std::uint8_t> active_;
  DeviceArray<std::int32_t> tokens_;
  DeviceArray<SampleStatus> status_;
  DeviceArray<std::byte> workspace_;
};

}  // namespace adder::test
