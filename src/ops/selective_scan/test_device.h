#pragma once

// One call of selective_scan on a device, for the tests of this folder.

#include <string>
#include <vector>

#include "cuda/timing.h"
#include "ops/selective_scan/selective_scan.h"
#include "ops/selective_scan/test_problem.h"
#include "tests/support/device.h"
#include "tests/support/pooled.h"

namespace adder::test {

inline constexpr DType kScanDTypes[] = {DType::f32, DType::bf16, DType::f16};

struct ScanOutput {
  std::vector<float> y, states;
};

/// Fills a problem with what inputs of `dtype` can hold.
inline ScanProblem& random_scan(ScanProblem& p, DType dtype, bool options = true) {
  p.fill(options);
  for (std::vector<float>* v : {&p.x, &p.dt, &p.B, &p.C, &p.z}) *v = rounded(*v, dtype);
  return p;
}

/// A problem on the device: y, the states and the workspace, which is as large as asked for,
/// between canaries.
class DeviceScan {
 public:
  DeviceScan(const ScanProblem& p, DType dtype, std::int64_t misalignment = 0)
      : x_(dtype, p.x, misalignment),
        dt_(dtype, p.dt, misalignment),
        B_(dtype, p.B, misalignment),
        C_(dtype, p.C, misalignment),
        z_(dtype, p.z, misalignment),
        A_(DType::f32, p.A),
        D_(DType::f32, p.D),
        dt_bias_(DType::f32, p.dt_bias),
        y_(dtype, static_cast<std::int64_t>(p.x.size()), misalignment),
        states_(DType::f32, p.states, misalignment),
        cu_seqlens_(index_tensor(p.cu_seqlens)),
        seq_idx_(index_tensor(p.seq_idx)),
        initial_(p.states) {
    args.x = x_.view({p.batch, p.seqlen, p.d_inner});
    args.dt = dt_.view({p.batch, p.seqlen, p.d_inner});
    args.A = A_.view({p.d_inner, p.dstate});
    args.B = B_.view({p.batch, p.seqlen, p.ngroups, p.dstate});
    args.C = C_.view({p.batch, p.seqlen, p.ngroups, p.dstate});
    if (!p.D.empty()) args.D = D_.view({p.d_inner});
    if (!p.z.empty()) args.z = z_.view({p.batch, p.seqlen, p.d_inner});
    if (!p.dt_bias.empty()) args.dt_bias = dt_bias_.view({p.d_inner});
    args.final_states = states_.view({p.nsequences(), p.d_inner, p.dstate});
    args.initial_states = args.final_states;
    if (!p.cu_seqlens.empty()) args.cu_seqlens = cu_seqlens_.view;
    if (!p.seq_idx.empty()) {
      args.seq_idx = seq_idx_.view.reshape({p.batch, p.seqlen});
    }
    args.y = y_.view({p.batch, p.seqlen, p.d_inner});
    args.dt_softplus = p.dt_softplus;
    const auto bytes = static_cast<std::int64_t>(cuda::selective_scan_workspace_bytes(args));
    workspace_ = DeviceBuffer(DType::i8, bytes);
    workspace_bytes_ = bytes;
  }

  void launch(cuda::Stream stream) const {
    auto* memory = static_cast<std::byte*>(workspace_.view({workspace_bytes_}).data);
    cuda::selective_scan(args, {memory, static_cast<std::size_t>(workspace_bytes_)}, stream);
  }
  ScanOutput run() const {
    launch(nullptr);
    return result();
  }
  ScanOutput result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    EXPECT_TRUE(states_.intact(stream));
    EXPECT_TRUE(workspace_.intact(stream));
    return {y_.values(stream), states_.values(stream)};
  }
  /// As before the first call.
  void reset() {
    y_.poison();
    states_.fill(initial_);
    workspace_.poison();
  }
  void poison_states() { states_.poison(); }

  SelectiveScanArgs args;

 private:
  static Tensor index_tensor(const std::vector<std::int32_t>& values) {
    return cuda::to_device(
        ConstTensorView::of(values.data(), {static_cast<std::int64_t>(values.size())}));
  }

  DeviceBuffer x_, dt_, B_, C_, z_, A_, D_, dt_bias_, y_, states_;
  Tensor cu_seqlens_, seq_idx_;
  std::vector<float> initial_;
  DeviceBuffer workspace_{DType::i8, 0};
  std::int64_t workspace_bytes_ = 0;
};

/// Many problems, judged together: see Pooled. Decays of 16-bit inputs come from the
/// special-function unit and may each be off by 2^-22 in the same direction, which a state adds up
/// over the tokens it remembers: their plain version is off by as much.
class ScanPools {
 public:
  explicit ScanPools(DType dtype) : dtype_(dtype) {}

  void add(const ScanProblem& p, const ScanOutput& got, const std::string& label) {
    const auto truth = p.reference<double>();
    const auto plain = p.reference<float>(dtype_ == DType::f32 ? 1.0F : 1.0F + 0x1p-22F);
    y_.add(got.y, truth.y, rounded(plain.y, dtype_), label + " y");
    states_.add(got.states, truth.states, plain.states, label + " states");
  }
  void expect_right() const {
    EXPECT_TRUE(y_.as_good_as_plain());
    // dt of 16-bit inputs is good to 2e-6.
    EXPECT_TRUE(states_.as_good_as_plain(dtype_ == DType::f32 ? 1e-6 : 1e-5));
  }

 private:
  DType dtype_;
  Pooled y_, states_;
};

}  // namespace adder::test
