// The accuracy of final states of ssd_forward on a CUDA device, by every way to compute it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/ssd_forward/test_device.h"
#include "ops/ssd_forward/test_states.h"

namespace adder {
namespace {

using SsdForwardCuda = test::OnDevice;
using cuda::SsdForwardChoice;
using test::SsdCase;
using test::SsdOnDevice;

void expect_states_close(const SsdCase& c, const std::string& label) {
  const test::SsdShape& s = c.shape;
  const auto truth = ref::ssd_forward<double>(c.args).final_states;
  for (const SsdForwardChoice& choice : test::all_choices()) {
    SsdOnDevice call(c);
    if (!test::takes(choice, call.args)) continue;
    test::expect_states_close(call.run(choice).final_states, truth, s.headdim * s.dstate, s.dtype,
                              choice.variant == cuda::SsdForwardVariant::hopper,
                              fmt::format("{}, {} of {} x {}, {}", label, name_of(s.dtype),
                                          s.headdim, s.dstate, test::described(choice)));
  }
}

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

SsdCase case_of(DType dtype, std::int64_t dstate) {
  return SsdCase({.batch = 2,
                  .seqlen = 517,
                  .nheads = 4,
                  .headdim = 64,
                  .ngroups = 2,
                  .dstate = dstate,
                  .dtype = dtype});
}

TEST_F(SsdForwardCuda, FinalStatesAreClose) {
  for (DType dtype : kDTypes) {
    for (std::int64_t dstate : {64, 128, 256})
      expect_states_close(case_of(dtype, dstate), "random");
  }
}

// What a state adds up over hundreds of tokens, with and without one to begin with.
TEST_F(SsdForwardCuda, FinalStatesThatForgetSlowlyAreClose) {
  for (DType dtype : kDTypes) {
    for (bool initial : {false, true}) {
      SsdCase c = case_of(dtype, 128);
      for (std::int64_t h = 0; h < c.shape.nheads; ++h) {
        c.A.as<float>()[h] = -1e-3F * static_cast<float>(h + 1);
      }
      if (!initial) c.args.initial_states = {};
      expect_states_close(c, initial ? "slow decay from a state" : "slow decay");
    }
  }
}

// All terms of one sign: what sums round in one direction adds up.
TEST_F(SsdForwardCuda, FinalStatesOfPositiveInputsAreClose) {
  for (DType dtype : kDTypes) {
    SsdCase c = case_of(dtype, 64);
    for (const Tensor* tensor : {&c.x, &c.B}) {
      const Tensor floats = convert(tensor->view, DType::f32);
      for (float& v : floats.span<float>()) v = std::abs(v);
      const Tensor positive = convert(floats.view, dtype);
      std::memcpy(tensor->view.data, positive.view.data,
                  static_cast<std::size_t>(positive.view.size_bytes()));
    }
    for (std::int64_t h = 0; h < c.shape.nheads; ++h) c.A.as<float>()[h] = -1e-3F;
    expect_states_close(c, "positive");
  }
}

}  // namespace
}  // namespace adder
