#pragma once

// How final states are judged, beside the rule of as_good_as_plain: they are handed on from call to
// call, so their error counts by itself. Of each head's state S, ‖S − S_ref‖ / ‖S_ref‖ in the
// Frobenius norm, against the recurrence in float64 on the inputs as the kernel sees them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>

#include "adder/dtype.h"
#include "tests/support/compare.h"

namespace adder::test {

/// What a head's state may be off by, for inputs of a dtype. `once_rounded`: the kernel rounds each
/// term dt x to bf16 once, as cuda::SsdForwardVariant::hopper documents.
constexpr double allowed_state_error(DType dtype, bool once_rounded) {
  if (dtype == DType::bf16 && once_rounded) return 3e-3;
  return dtype == DType::f32 ? 1e-5 : 1e-3;
}

/// `got` and `truth` are heads of `head_size` elements each. Prints the largest error of a head and
/// the largest of an element, relative to the largest element of its head.
inline void expect_states_close(std::span<const float> got, std::span<const double> truth,
                                std::int64_t head_size, DType dtype, bool once_rounded,
                                const std::string& label) {
  ASSERT_EQ(got.size(), truth.size()) << label;
  const auto size = static_cast<std::size_t>(head_size);
  double worst_head = 0;
  double worst_element = 0;
  for (std::size_t begin = 0; begin < truth.size(); begin += size) {
    const auto got_head = got.subspan(begin, size);
    const auto true_head = truth.subspan(begin, size);
    double largest = 0;
    double largest_error = 0;
    for (std::size_t i = 0; i < size; ++i) {
      largest = std::max(largest, std::abs(true_head[i]));
      largest_error =
          std::max(largest_error, std::abs(static_cast<double>(got_head[i]) - true_head[i]));
    }
    const double error = relative_error(got_head, true_head);
    if (!(error <= worst_head)) worst_head = error;  // a NaN is worse than anything
    worst_element = std::max(worst_element, largest_error / largest);
  }
  EXPECT_LE(worst_head, allowed_state_error(dtype, once_rounded)) << label;
  std::printf("final states, %s: worst head %.2e, worst element %.2e\n", label.c_str(), worst_head,
              worst_element);
}

}  // namespace adder::test
