// Calls one operation on memory of its own: the root-mean-square norm of two rows.

#include <adder/error.h>
#include <adder/ops/rms_norm/rms_norm.h>
#include <adder/tensor_view.h>
#include <adder/thread_pool.h>

#include <array>
#include <cmath>
#include <cstdio>

int main() try {
  std::array<float, 8> residual{1, -1, 1, -1, 2, 2, 2, 2};
  std::array<float, 8> y{};
  adder::ThreadPool pool;
  adder::cpu::rms_norm({.residual = adder::TensorView::of(residual.data(), {2, 4}),
                        .x = {},       // nothing is added to the residual stream
                        .weight = {},  // all ones
                        .y = adder::TensorView::of(y.data(), {2, 4})},
                       pool);
  for (float value : y) {
    std::printf("%g ", static_cast<double>(value));
    if (std::abs(std::abs(value) - 1.0F) > 1e-4F) return 1;  // each row has equal magnitudes
  }
  std::printf("\n");
  return 0;
} catch (const adder::Error& error) {
  std::fprintf(stderr, "operation: %s\n", error.what());
  return 1;
}
