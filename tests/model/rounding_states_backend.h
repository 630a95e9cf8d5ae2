#pragma once

// A backend that does what another one does and rounds states of recurrences to bf16 at random
// after every call: what a model in plain loops loses by that is what a device that holds them so
// may lose.

#include <cmath>

#include "tests/model/forwarding_backend.h"
#include "tests/support/random.h"
#include "tests/support/state_rounding.h"

namespace adder::test {

class RoundingStatesBackend final : public ForwardingBackend {
 public:
  /// `other` is the CPU's.
  explicit RoundingStatesBackend(Backend& other) : ForwardingBackend(other) {}

  Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) override {
    Tensor y = other().ssd(input, state, sequences);
    round(state);
    return y;
  }
  Tensor selective_scan(const SelectiveScanInput& input, Tensor& state,
                        const Sequences& sequences) override {
    Tensor y = other().selective_scan(input, state, sequences);
    round(state);
    return y;
  }

 private:
  void round(Tensor& state) {
    for (float& v : state.span<float>()) {
      const double spacing = bf16_spacing(v);
      v = static_cast<float>(spacing * std::floor(v / spacing + random_.uniform(0, 1)));
    }
  }

  Random random_;
};

}  // namespace adder::test
