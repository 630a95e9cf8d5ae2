#pragma once

// A backend that does what another one does and keeps the inputs of the sequence mixing it is asked
// for: what a model feeds ssd_forward with, without a hook in the model.

#include <vector>

#include "tests/model/forwarding_backend.h"

namespace adder::test {

/// One call of Backend::ssd and the gate of the gated_rms_norm after it. Tensors are the other
/// backend's and are not changed by later calls.
struct SsdRecord {
  SsdInput input;
  Tensor state;  ///< before the call
  Tensor z;      ///< (ntokens, nheads · headdim)
};

class RecordingBackend final : public ForwardingBackend {
 public:
  explicit RecordingBackend(Backend& other) : ForwardingBackend(other) {}

  const std::vector<SsdRecord>& records() const { return records_; }

  Tensor ssd(const SsdInput& input, Tensor& state, const Sequences& sequences) override {
    records_.push_back({input, other().clone(state), {}});
    return other().ssd(input, state, sequences);
  }
  Tensor gated_rms_norm(const Tensor& y, const Tensor& z, const Tensor& weight,
                        const GatedNormOptions& options) override {
    if (!records_.empty()) records_.back().z = z;
    return other().gated_rms_norm(y, z, weight, options);
  }

 private:
  std::vector<SsdRecord> records_;
};

}  // namespace adder::test
