// ssd_forward and its three steps on a CUDA device, on what the bundled model feeds them with.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/chunk_cumsum/test_cumsum.h"
#include "ops/chunk_cumsum/test_plan.h"
#include "ops/compute_out/test_reference.h"
#include "ops/fwd_pass_state/test_reference.h"
#include "ops/ssd_forward/test_device.h"
#include "ops/ssd_forward/test_states.h"
#include "tests/model/ssd_activations.h"

namespace adder {
namespace {

using cuda::SsdForwardChoice;
using test::ChunkInputs;
using test::ChunkInputsOnDevice;
using test::DeviceBuffer;
using test::PooledHeads;
using test::SsdCase;
using test::SsdOnDevice;
using test::SsdRecord;
using test::Yardstick;

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};

class SsdActivationsCuda : public test::OnDevice {
 protected:
  static const std::vector<SsdRecord>& records() {
    static const std::vector<SsdRecord> recorded = test::record_ssd_of_books();
    return recorded;
  }
};

// Cases of one dtype by every choice that takes them, judged choice by choice.
void expect_right_by_every_choice(const std::vector<SsdCase>& cases, const std::string& label) {
  std::vector<Yardstick> yardsticks;
  for (const SsdCase& c : cases) yardsticks.emplace_back(c, test::plain_chunked(c.args));
  for (const SsdForwardChoice& choice : test::all_choices()) {
    PooledHeads y;
    PooledHeads final_states;
    int taken = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SsdOnDevice call(cases[i]);
      if (!test::takes(choice, call.args)) continue;
      const test::SsdShape& s = cases[i].shape;
      const test::SsdOutput got = call.run(choice);
      const std::string name =
          fmt::format("{}, record {}, {}, {}", label, i, name_of(s.dtype), test::described(choice));
      yardsticks[i].add(cases[i], got, name, y, final_states);
      test::expect_states_close(got.final_states, yardsticks[i].truth.final_states,
                                s.headdim * s.dstate, s.dtype,
                                choice.variant == cuda::SsdForwardVariant::hopper, name);
      ++taken;
    }
    if (taken == 0) continue;
    EXPECT_TRUE(y.as_good_as_plain()) << test::described(choice);
    EXPECT_TRUE(final_states.as_good_as_plain()) << test::described(choice);
  }
}

TEST_F(SsdActivationsCuda, SsdForwardIsAsGoodAsPlainByEveryChoice) {
  for (DType dtype : kDTypes) {
    for (DType dt_dtype : {DType::f32, dtype}) {
      std::vector<SsdCase> cases;
      for (const SsdRecord& record : records()) {
        cases.push_back(test::case_of(record, dtype, dt_dtype));
      }
      expect_right_by_every_choice(cases, fmt::format("dt {}", name_of(dt_dtype)));
      if (dtype == DType::f32) break;
    }
  }
}

TEST_F(SsdActivationsCuda, GatedSsdForwardIsAsGoodAsPlainByEveryChoice) {
  for (DType dtype : kDTypes) {
    std::vector<SsdCase> cases;
    for (const SsdRecord& record : records()) {
      cases.push_back(test::case_of(record, dtype, DType::f32, true));
    }
    expect_right_by_every_choice(cases, "gated");
  }
}

// Steps that forget everything (dt · A = -1e4) and steps that do nothing (dt = 0) between those of
// the model, in heads that forget everything, never forget, and do as they did.
TEST_F(SsdActivationsCuda, ExtremeStepsAreAsGoodAsPlainByEveryChoice) {
  constexpr float kSoftplusIsOne = 0.5413249F;
  for (DType dtype : kDTypes) {
    std::vector<SsdCase> cases;
    for (const SsdRecord& record : records()) {
      SsdCase c = test::case_of(record, dtype, DType::f32);
      const std::int64_t nheads = c.shape.nheads;
      for (std::int64_t h = 0; h < nheads; ++h) {
        if (h % 3 == 0) c.A.as<float>()[h] = -1e4F;
        if (h % 3 == 1) c.A.as<float>()[h] = -1e-6F;
        for (std::int64_t t = 0; t < c.shape.seqlen; ++t) {
          float& dt = c.dt.as<float>()[t * nheads + h];
          if (t % 7 == 3) dt = -300;                                        // 0 after softplus
          if (t % 23 == 5) dt = kSoftplusIsOne - c.dt_bias.as<float>()[h];  // 1
        }
      }
      cases.push_back(c);
    }
    expect_right_by_every_choice(cases, "extreme");
  }
}

// ---- the three steps ----------------------------------------------------------------------------

std::int64_t nheads_of(const SsdRecord& record) { return record.state.view.dim(1); }

TEST_F(SsdActivationsCuda, ChunkCumsumIsAsGoodAsPlain) {
  for (const SsdRecord& record : records()) {
    const std::int64_t nheads = nheads_of(record);
    for (DType dtype : kDTypes) {
      const SsdCase c = test::case_of(record, DType::f32, dtype);
      test::CumsumProblem problem(1, test::kTokensRecorded, nheads, {.softplus = true});
      problem.raw = test::to_floats(c.dt.view);
      problem.A = test::to_floats(c.A.view);
      problem.bias = test::to_floats(c.dt_bias.view);
      const test::OwnedPlan plan({.seqlen = test::kTokensRecorded, .chunk_size = 64});
      const test::PlanOnDevice on_device(plan.plan);
      const std::int64_t nchunks = plan.plan.nchunks();
      const Tensor raw = cuda::to_device(c.dt.view);
      const Tensor A = cuda::to_device(c.A.view);
      const Tensor bias = cuda::to_device(c.dt_bias.view);
      const DeviceBuffer dt(DType::f32, nheads * nchunks * 64);
      const DeviceBuffer sums(DType::f32, 2 * nheads * nchunks * 64);
      cuda::chunk_cumsum({.dt_raw = raw.view,
                          .A = A.view,
                          .dt_bias = bias.view,
                          .dt_options = problem.options,
                          .plan = on_device.plan,
                          .dt = dt.view({nheads, nchunks, 64}),
                          .dA_cumsum = sums.view({nheads, nchunks, 2, 64})},
                         nullptr);
      problem.expect_right(plan.plan, {dt.values(), sums.values()});
    }
  }
}

// The record as the operations on chunks take it.
ChunkInputs chunk_inputs_of(const SsdRecord& record, DType dtype) {
  const SsdCase c = test::case_of(record, dtype, DType::f32, true);
  const test::SsdShape& s = c.shape;
  ChunkInputs in({.batch = 1,
                  .seqlen = s.seqlen,
                  .nheads = s.nheads,
                  .headdim = s.headdim,
                  .ngroups = s.ngroups,
                  .dstate = s.dstate,
                  .chunk_size = 64,
                  .dtype = dtype});
  in.x = c.x;
  in.B = c.B;
  in.C = c.C;
  in.z = c.z;
  std::vector<float> D;
  for (std::int64_t h = 0; h < s.nheads; ++h) {
    D.insert(D.end(), static_cast<std::size_t>(s.headdim), c.D.as<float>()[h]);
  }
  in.D = test::tensor_of(D, {s.nheads, s.headdim});
  ThreadPool pool(1);
  cpu::chunk_cumsum({.dt_raw = c.dt.view,
                     .A = c.A.view,
                     .dt_bias = c.dt_bias.view,
                     .dt_options = {.softplus = true},
                     .plan = in.plan,
                     .dt = in.dt.view,
                     .dA_cumsum = in.dA_cumsum.view},
                    pool);
  return in;
}

TEST_F(SsdActivationsCuda, FwdPassStateIsAsGoodAsPlain) {
  for (DType dtype : kDTypes) {
    PooledHeads states;
    for (const SsdRecord& record : records()) {
      const ChunkInputs in = chunk_inputs_of(record, dtype);
      const auto& s = in.shape;
      const std::vector<float> initial = test::to_floats(record.state.view);
      const ChunkInputsOnDevice on_device(in);
      const std::int64_t columns = padded_headdim(s.headdim);
      const DeviceBuffer initial_states(DType::f32, initial);
      const DeviceBuffer got(DType::f32, in.plan.nchunks() * s.nheads * s.dstate * columns);
      cuda::fwd_pass_state(
          {.x = on_device.x.view,
           .B = on_device.B.view,
           .dt = on_device.dt.view,
           .dA_cumsum = on_device.dA_cumsum.view,
           .initial_states = initial_states.view({1, s.nheads, s.headdim, s.dstate}),
           .plan = on_device.plan.plan,
           .states = got.view({in.plan.nchunks(), s.nheads, s.dstate, columns}),
           .final_states = {}},
          nullptr);
      const auto truth = test::reference_states<double>(in, initial);
      const auto plain = test::reference_states<float, double>(in, initial, ref::DigitsOf{dtype});
      states.add(got.values(), truth.states, test::to_floats(plain.states), s.nheads,
                 s.dstate * columns, std::string(name_of(dtype)));
    }
    EXPECT_TRUE(states.as_good_as_plain());
  }
}

TEST_F(SsdActivationsCuda, ComputeOutIsAsGoodAsPlain) {
  for (DType dtype : kDTypes) {
    PooledHeads outputs;
    for (const SsdRecord& record : records()) {
      const ChunkInputs in = chunk_inputs_of(record, dtype);
      const auto& s = in.shape;
      const auto computed =
          test::reference_states<double>(in, test::to_floats(record.state.view)).states;
      const Tensor states =
          test::tensor_of(test::to_floats(computed),
                          {in.plan.nchunks(), s.nheads, s.dstate, padded_headdim(s.headdim)});
      const ChunkInputsOnDevice on_device(in);
      const Tensor device_states = cuda::to_device(states.view);
      const DeviceBuffer y(dtype, in.x.view.numel());
      cuda::compute_out({.x = on_device.x.view,
                         .B = on_device.B.view,
                         .C = on_device.C.view,
                         .dt = on_device.dt.view,
                         .dA_cumsum = on_device.dA_cumsum.view,
                         .states = device_states.view,
                         .D = on_device.D.view,
                         .z = on_device.z.view,
                         .plan = on_device.plan.plan,
                         .y = y.view({1, s.seqlen, s.nheads, s.headdim})},
                        nullptr);
      const auto plain = test::reference_outputs<float, double>(in, states, ref::DigitsOf{dtype});
      outputs.add(y.values(), test::reference_outputs<double>(in, states),
                  test::rounded(plain, dtype), s.nheads, s.headdim, std::string(name_of(dtype)));
    }
    EXPECT_TRUE(outputs.as_good_as_plain());
  }
}

}  // namespace
}  // namespace adder
