#pragma once

// What tests of CUDA kernels share: they are skipped where there is no device, their outputs are
// poisoned and lie between canaries at a chosen alignment, and data goes through the dtype of the
// kernel first, so that a definition in float64 starts from what the kernel sees.

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "adder/tensor_view.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "cuda/device.h"
#include "cuda/memory.h"

namespace adder::test {

/// Why tests that launch kernels cannot run here; empty if they can.
inline std::string why_no_device() {
  return cuda::device_count() > 0 ? "" : "no CUDA device: " + cuda::why_no_device();
}

/// Fixture of tests that launch kernels: `using RmsNormCuda = test::OnDevice;`, then
/// TEST_F(RmsNormCuda, ...). Without a device each test is skipped with one line that says why.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = why_no_device();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

/// The elements of `values`, rounded to `dtype`, one after another in memory.
inline std::vector<std::byte> encode(std::span<const float> values, DType dtype) {
  std::vector<std::byte> out(values.size() * size_of(dtype));
  visit_float(dtype, [&]<typename T>(TypeTag<T>) {
    auto* to = reinterpret_cast<T*>(out.data());
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = from_float<T>(values[i]);
  });
  return out;
}

inline std::vector<float> decode(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> out(bytes.size() / size_of(dtype));
  visit_float(dtype, [&]<typename T>(TypeTag<T>) {
    const auto* from = reinterpret_cast<const T*>(bytes.data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(from[i]);
  });
  return out;
}

/// `values` after a trip through `dtype`.
inline std::vector<float> rounded(std::span<const float> values, DType dtype) {
  return decode(encode(values, dtype), dtype);
}

/// Device memory for `size` elements that shows writes where none belong, as Guarded does on the
/// host. `misalignment` elements lie between an address that is aligned to 256 bytes and the first
/// element: 0 for the kernels' fast paths, 1 for their fallbacks.
class DeviceBuffer {
 public:
  DeviceBuffer(DType dtype, std::int64_t size, std::int64_t misalignment = 0)
      : dtype_(dtype),
        before_(kMarginBytes + static_cast<std::size_t>(misalignment) * size_of(dtype)),
        size_(static_cast<std::size_t>(size) * size_of(dtype)),
        total_(before_ + size_ + kMarginBytes),
        memory_(cuda::allocate(total_)) {
    poison();
  }
  /// Holds `values`, rounded.
  DeviceBuffer(DType dtype, std::span<const float> values, std::int64_t misalignment = 0)
      : DeviceBuffer(dtype, static_cast<std::int64_t>(values.size()), misalignment) {
    fill(values);
  }

  TensorView view(std::initializer_list<std::int64_t> dims) const {
    return {data(), dtype_, dims, {DeviceType::cuda, cuda::current_device()}};
  }
  /// Waits, so that kernels on any stream come after it; `fill` does too.
  void poison() {
    cuda::fill_bytes(memory_.get(), kPoison, total_, nullptr);
    cuda::synchronize(nullptr);
  }
  void fill(std::span<const float> values) {
    const std::vector<std::byte> bytes = encode(values, dtype_);
    ASSERT_EQ(bytes.size(), size_);
    cuda::copy_to_device(data(), bytes.data(), size_, nullptr);
  }

  /// All elements, once `stream` is done.
  std::vector<float> values(cuda::Stream stream = nullptr) const {
    std::vector<std::byte> bytes(size_);
    cuda::copy_to_host(bytes.data(), data(), size_, stream);
    return decode(bytes, dtype_);
  }
  /// The canaries on both sides are untouched, once `stream` is done.
  ::testing::AssertionResult intact(cuda::Stream stream = nullptr) const {
    std::vector<unsigned char> bytes(total_);
    cuda::copy_to_host(bytes.data(), memory_.get(), total_, stream);
    for (std::size_t i = 0; i < total_; ++i) {
      if ((i < before_ || i >= before_ + size_) && bytes[i] != kPoison) {
        return ::testing::AssertionFailure()
               << "byte " << static_cast<std::int64_t>(i - before_) << " relative to a buffer of "
               << size_ << " bytes was overwritten";
      }
    }
    return ::testing::AssertionSuccess();
  }

 private:
  std::byte* data() const { return memory_.get() + before_; }

  static constexpr std::size_t kMarginBytes = 256;
  // Four of these bytes are a quiet NaN as a float, two are one as a bf16 or f16.
  static constexpr unsigned char kPoison = 0xff;
  DType dtype_;
  std::size_t before_;
  std::size_t size_;
  std::size_t total_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace adder::test
