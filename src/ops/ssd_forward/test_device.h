#pragma once

// The properties of ssd_forward, on a CUDA device, for every way to compute it.

#include <optional>
#include <string>
#include <vector>

#include "adder/error.h"
#include "ops/fwd_pass_state/test_device.h"
#include "ops/ssd_forward/plain_chunks.h"
#include "ops/ssd_forward/test_properties.h"
#include "tests/support/device.h"
#include "tests/support/pooled.h"

namespace adder::test {

/// A case on the device: inputs copied there as they lie on the host, outputs poisoned and between
/// canaries, and exactly the workspace asked for. No choice: what choose_ssd_forward says.
class SsdOnDevice {
 public:
  explicit SsdOnDevice(const SsdCase& c, std::int64_t misalignment = 0)
      : args(c.args),
        nsequences_(c.args.cu_seqlens.defined() ? c.args.cu_seqlens.dim(0) - 1 : c.args.x.dim(0)),
        y_(c.shape.dtype, c.args.x.numel(), misalignment),
        final_states_(DType::f32, nsequences_ * c.shape.nheads * c.shape.headdim * c.shape.dstate,
                      misalignment) {
    for (ConstTensorView* view :
         {&args.x, &args.dt, &args.A, &args.B, &args.C, &args.D, &args.z, &args.dt_bias,
          &args.initial_states, &args.seq_idx, &args.cu_seqlens}) {
      inputs_.push_back(place_on_device(*view, misalignment));
      *view = inputs_.back().view;
    }
    args.y = y_.view({args.x.dim(0), args.x.dim(1), c.shape.nheads, c.shape.headdim});
    args.final_states =
        final_states_.view({nsequences_, c.shape.nheads, c.shape.headdim, c.shape.dstate});
  }

  void poison() {
    y_.poison();
    final_states_.poison();
  }

  /// What a call needs; the memory stays the object's. Fails the test if an earlier call left it.
  std::span<std::byte> workspace(const std::optional<cuda::SsdForwardChoice>& choice = {}) {
    const std::size_t bytes = choice ? cuda::ssd_forward_workspace_bytes(args, *choice)
                                     : cuda::ssd_forward_workspace_bytes(args);
    workspace_.emplace(DType::u8, static_cast<std::int64_t>(bytes));
    return {static_cast<std::byte*>(workspace_->view({1}).data), bytes};
  }

  /// Puts a call on the stream.
  void call(std::span<std::byte> memory, const std::optional<cuda::SsdForwardChoice>& choice,
            cuda::Stream stream) const {
    choice ? cuda::ssd_forward(args, *choice, memory, stream)
           : cuda::ssd_forward(args, memory, stream);
  }

  SsdOutput run(const std::optional<cuda::SsdForwardChoice>& choice = {}) {
    call(workspace(choice), choice, nullptr);
    return result();
  }

  SsdOutput result(cuda::Stream stream = nullptr) const {
    EXPECT_TRUE(y_.intact(stream));
    EXPECT_TRUE(final_states_.intact(stream));
    EXPECT_TRUE(!workspace_ || workspace_->intact(stream));
    return {y_.values(stream), final_states_.values(stream)};
  }

  SsdForwardArgs args;

 private:
  std::vector<Tensor> inputs_;
  std::int64_t nsequences_;
  DeviceBuffer y_, final_states_;
  std::optional<DeviceBuffer> workspace_;
};

/// What a case's results are judged by: the recurrence in float64, allowing what the plain chunked
/// algorithm costs.
class SsdJudge {
 public:
  explicit SsdJudge(const SsdCase& c)
      : truth_(ref::ssd_forward<double>(c.args)), plain_(plain_chunked(c.args)) {
    plain_.y = rounded(plain_.y, c.shape.dtype);
  }

  /// Adds the result to those that are judged together.
  void add(const SsdOutput& got, const std::string& label, Pooled& y, Pooled& final_states) const {
    y.add(got.y, truth_.y, plain_.y, label + " y");
    final_states.add(got.final_states, truth_.final_states, plain_.final_states,
                     label + " final_states");
  }

  void expect_right(const SsdOutput& got) const {
    EXPECT_TRUE(as_good_as_plain(got.y, truth_.y, plain_.y)) << "y";
    EXPECT_TRUE(as_good_as_plain(got.final_states, truth_.final_states, plain_.final_states))
        << "final_states";
  }

 private:
  ref::SsdResult<double> truth_;
  ref::SsdResult<float> plain_;
};

inline void expect_right_on_device(const SsdCase& c, const SsdOutput& got) {
  SsdJudge(c).expect_right(got);
}

inline std::string described(const cuda::SsdForwardChoice& choice) {
  return std::string(name_of(choice.variant)) + ", window_chunks " +
         std::to_string(choice.window_chunks) + ", segments " + std::to_string(choice.segments) +
         (choice.warm_up ? ", warm_up" : "") + (choice.end_to_end ? ", end_to_end" : "");
}

/// Whether the choice takes the arguments, which are on a device.
inline bool takes(const cuda::SsdForwardChoice& choice, const SsdForwardArgs& args) {
  try {
    cuda::ssd_forward_workspace_bytes(args, choice);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// Choices worth a test that the device has kernels for.
inline const std::vector<cuda::SsdForwardChoice>& all_choices() {
  using enum cuda::SsdForwardVariant;
  static const std::vector<cuda::SsdForwardChoice> usable = [] {
    const SsdOnDevice probe(
        SsdCase({.seqlen = 130, .nheads = 4, .headdim = 64, .dstate = 64, .dtype = DType::bf16}));
    std::vector<cuda::SsdForwardChoice> all{{.variant = general, .window_chunks = 1000},
                                            {.variant = general, .window_chunks = 1},
                                            {.variant = general, .window_chunks = 2},
                                            {.variant = hopper},
                                            {.variant = hopper, .segments = 2},
                                            {.variant = hopper, .segments = 2, .warm_up = true}};
    std::erase_if(all, [&](const auto& choice) { return !takes(choice, probe.args); });
    return all;
  }();
  return usable;
}

/// The choice if it takes the arguments, else one that takes all.
inline cuda::SsdForwardChoice nearest(const cuda::SsdForwardChoice& choice,
                                      const SsdForwardArgs& args) {
  return takes(choice, args) ? choice : all_choices()[0];
}

/// Runs cases by one choice, those that it does not take by the nearest.
inline SsdRunner device_runner(const cuda::SsdForwardChoice& choice) {
  return {.run =
              [choice](const SsdCase& c) {
                SsdOnDevice on_device(c);
                return on_device.run(nearest(choice, on_device.args));
              },
          .judge = expect_right_on_device,
          .dtypes = {DType::f32, DType::bf16, DType::f16}};
}

/// Calls `property` with a runner of each choice.
template <typename Property>
void by_every_choice(Property&& property) {
  for (const cuda::SsdForwardChoice& choice : all_choices()) {
    SCOPED_TRACE(described(choice));
    property(device_runner(choice));
  }
}

/// The same with the choices that take packed sequences, resets and padding, so that a sequence in
/// company and alone is computed by the same kernels.
template <typename Property>
void by_every_choice_for_sequences(Property&& property) {
  for (const cuda::SsdForwardChoice& choice : all_choices()) {
    if (choice.variant != cuda::SsdForwardVariant::general) continue;
    SCOPED_TRACE(described(choice));
    property(device_runner(choice));
  }
}

}  // namespace adder::test
