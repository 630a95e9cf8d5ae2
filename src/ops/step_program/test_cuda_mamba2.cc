// Layers of Mamba-2 in a program, which make one instruction of some operations and give results
// from block to block, beside the operations one by one on the same device.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>
#include <vector>

#include "ops/linear_step/linear_step.h"
#include "ops/ssd_step/ssd_step.h"
#include "ops/step_program/step_program.h"
#include "ops/step_program/test_device.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using StepProgramMamba2Cuda = test::OnHopper;
using cuda::StepProgram;
using test::same_bits;

// A layer of Mamba-2: a projection, the step of the heads whose inputs it makes, and a projection.
struct MixerShape {
  std::int64_t batch = 1, d_model = 256, nheads = 4, headdim = 64, ngroups = 1, dstate = 128;
  bool D_has_headdim = false;

  std::int64_t d_inner() const { return nheads * headdim; }
  std::int64_t channels() const { return d_inner() + 2 * ngroups * dstate; }
  std::int64_t out() const { return d_inner() + channels() + nheads; }
};

class Mixer {
 public:
  // x and the residual are those of the layer before, if there is one.
  Mixer(const MixerShape& s, DType dtype, const Mixer* before = nullptr)
      : shape_(s),
        norm_weight_(DType::f32, random_.normals(s.d_model)),
        in_weight_(DType::bf16, weights(s.out(), s.d_model)),
        bias_(DType::f32, random_.normals(s.out())),
        conv_weight_(DType::f32, random_.normals(4 * s.channels(), 0.5)),
        conv_bias_(DType::f32, random_.normals(s.channels())),
        A_(DType::f32, random_.uniforms(s.nheads, -4.0, -0.5)),
        D_(DType::f32, random_.normals(s.D_has_headdim ? s.d_inner() : s.nheads)),
        dt_bias_(DType::f32, random_.normals(s.nheads)),
        gate_weight_(DType::f32, random_.normals(s.d_inner())),
        out_weight_(DType::bf16, weights(s.d_model, s.d_inner())),
        first_residual_(DType::f32, random_.normals(s.batch * s.d_model)),
        first_x_(dtype, random_.normals(s.batch * s.d_model)),
        residual_(before == nullptr ? &first_residual_ : &before->new_residual_),
        x_(before == nullptr ? &first_x_ : &before->out_),
        conv_states_(random_.normals(s.batch * 3 * s.channels())),
        states_(random_.normals(s.batch * s.d_inner() * s.dstate)),
        new_residual_(DType::f32, s.batch * s.d_model),
        zxbcdt_(dtype, s.batch * s.out()),
        xBC_(dtype, s.batch * s.channels()),
        y_(dtype, s.batch * s.d_inner()),
        out_(dtype, s.batch * s.d_model),
        conv_state_(DType::f32, conv_states_),
        state_(DType::f32, states_) {}
  Mixer(const Mixer&) = delete;
  Mixer& operator=(const Mixer&) = delete;

  LinearStepArgs in() const {
    const MixerShape& s = shape_;
    return {.x = x_->view({s.batch, s.d_model}),
            .weight = in_weight_.view({s.out(), s.d_model}),
            .bias = bias_.view({s.out()}),
            .y = zxbcdt_.view({s.batch, s.out()}),
            .norm = LinearStepNorm{.residual = residual_->view({s.batch, s.d_model}),
                                   .new_residual = new_residual_.view({s.batch, s.d_model}),
                                   .weight = norm_weight_.view({s.d_model})},
            .gated_norm = {},
            .conv = LinearStepConv{.begin = s.d_inner(),
                                   .weight = conv_weight_.view({s.channels(), 4}),
                                   .bias = conv_bias_.view({s.channels()}),
                                   .state = conv_state_.view({s.batch, 3, s.channels()}),
                                   .y = xBC_.view({s.batch, s.channels()})}};
  }
  SsdStepArgs heads() const {
    const MixerShape& s = shape_;
    const TensorView xBC = xBC_.view({s.batch, s.channels()});
    const std::int64_t bc = s.ngroups * s.dstate;
    return {.x = xBC.narrow(1, 0, s.d_inner()).split_last(s.nheads),
            .dt = zxbcdt_.view({s.batch, s.out()}).narrow(1, s.d_inner() + s.channels(), s.nheads),
            .A = A_.view({s.nheads}),
            .B = xBC.narrow(1, s.d_inner(), bc).split_last(s.ngroups),
            .C = xBC.narrow(1, s.d_inner() + bc, bc).split_last(s.ngroups),
            .D = s.D_has_headdim ? D_.view({s.nheads, s.headdim}) : D_.view({s.nheads}),
            .z = {},
            .dt_bias = dt_bias_.view({s.nheads}),
            .dt_softplus = true,
            .state = state_.view({s.batch, s.nheads, s.headdim, s.dstate}),
            .y = y_.view({s.batch, s.nheads, s.headdim})};
  }
  LinearStepArgs out() const {
    const MixerShape& s = shape_;
    return {.x = y_.view({s.batch, s.d_inner()}),
            .weight = out_weight_.view({s.d_model, s.d_inner()}),
            .y = out_.view({s.batch, s.d_model}),
            .norm = {},
            .gated_norm =
                LinearStepGatedNorm{.z = zxbcdt_.view({s.batch, s.out()}).narrow(1, 0, s.d_inner()),
                                    .weight = gate_weight_.view({s.d_inner()})},
            .conv = {}};
  }
  // What comes after the last layer.
  LinearStepArgs head(const test::DeviceBuffer& logits, const test::DeviceBuffer& hidden,
                      const test::DeviceBuffer& residual) const {
    const MixerShape& s = shape_;
    return {.x = out_.view({s.batch, s.d_model}),
            .weight = in_weight_.view({s.out(), s.d_model}),
            .y = logits.view({s.batch, s.out()}),
            .norm = LinearStepNorm{.residual = new_residual_.view({s.batch, s.d_model}),
                                   .new_residual = residual.view({s.batch, s.d_model}),
                                   .weight = norm_weight_.view({s.d_model}),
                                   .y = hidden.view({s.batch, s.d_model})},
            .gated_norm = {},
            .conv = {}};
  }

  void run_one_by_one() const {
    cuda::linear_step(in(), nullptr);
    cuda::ssd_step(heads(), nullptr);
    cuda::linear_step(out(), nullptr);
  }
  void add_to(StepProgram& program) const {
    ASSERT_TRUE(program.add(in()));
    ASSERT_TRUE(program.add(heads()));
    ASSERT_TRUE(program.add(out()));
  }
  void reset() {
    for (test::DeviceBuffer* buffer : {&new_residual_, &zxbcdt_, &xBC_, &y_, &out_}) {
      buffer->poison();
    }
    conv_state_.fill(conv_states_);
    state_.fill(states_);
  }

  struct Results {
    std::vector<float> out, conv_state, state;
  };
  Results results() const {
    for (const test::DeviceBuffer* buffer :
         {&new_residual_, &zxbcdt_, &xBC_, &y_, &out_, &conv_state_, &state_}) {
      EXPECT_TRUE(buffer->intact());
    }
    return {out_.values(), conv_state_.values(), state_.values()};
  }
  const test::DeviceBuffer& new_residual() const { return new_residual_; }

 private:
  std::vector<float> weights(std::int64_t out, std::int64_t in) {
    return random_.normals(out * in, 1 / std::sqrt(static_cast<double>(in)));
  }

  MixerShape shape_;
  test::Random random_{11};
  test::DeviceBuffer norm_weight_, in_weight_, bias_, conv_weight_, conv_bias_, A_, D_, dt_bias_;
  test::DeviceBuffer gate_weight_, out_weight_, first_residual_, first_x_;
  const test::DeviceBuffer *residual_, *x_;
  std::vector<float> conv_states_, states_;
  test::DeviceBuffer new_residual_, zxbcdt_, xBC_, y_, out_, conv_state_, state_;
};

void expect_near(const std::vector<float>& got, const std::vector<float>& expected,
                 double tolerance) {
  EXPECT_LE(test::relative_error(got, test::to_double(expected)), tolerance);
}

TEST_F(StepProgramMamba2Cuda, LayersOfMamba2) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 2, 3, 4}) {
      for (const MixerShape& size :
           {MixerShape{.nheads = 8, .headdim = 16},
            MixerShape{.nheads = 8, .headdim = 56, .dstate = 16},
            MixerShape{.d_model = 768, .nheads = 24, .D_has_headdim = true},
            MixerShape{.d_model = 1024, .nheads = 32, .dstate = 64},
            MixerShape{.d_model = 512, .nheads = 16, .ngroups = 8},
            MixerShape{.d_model = 2560, .nheads = 80}}) {
        MixerShape shape = size;
        shape.batch = batch;
        SCOPED_TRACE(fmt::format("{} batch {} d_model {} {} x {} groups {} dstate {}",
                                 name_of(dtype), batch, shape.d_model, shape.nheads, shape.headdim,
                                 shape.ngroups, shape.dstate));
        Mixer mixer(shape, dtype);
        mixer.run_one_by_one();
        const Mixer::Results expected = mixer.results();
        const std::vector<float> residual = mixer.new_residual().values();
        StepProgram program;
        mixer.add_to(program);
        const auto kernel = program.compile();
        // Heads are in their projection where each block has a channel of them.
        const bool is_mixer = batch == 1 && shape.d_inner() >= test::multiprocessors();
        EXPECT_EQ(kernel->phases(), is_mixer ? 2 : 3);
        EXPECT_EQ(kernel->meetings(), is_mixer ? 1 : 3);
        const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-2;
        Mixer::Results first;
        for (int repeat = 0; repeat < 3; ++repeat) {
          mixer.reset();
          kernel->launch(nullptr);
          const Mixer::Results got = mixer.results();
          expect_near(got.out, expected.out, tolerance);
          expect_near(got.conv_state, expected.conv_state, tolerance);
          expect_near(got.state, expected.state, tolerance);
          EXPECT_TRUE(same_bits(mixer.new_residual().values(), residual));
          if (repeat == 0) first = got;
          EXPECT_TRUE(same_bits(got.out, first.out));
          EXPECT_TRUE(same_bits(got.state, first.state));
        }
      }
    }
  }
}

// Blocks wait for numbers alone, through a whole model and its head, some hundred launches.
TEST_F(StepProgramMamba2Cuda, StacksOfMamba2) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 4}) {
      for (int nlayers : {1, 2, 7}) {
        SCOPED_TRACE(fmt::format("{} batch {} layers {}", name_of(dtype), batch, nlayers));
        const MixerShape shape{.batch = batch, .d_model = 384, .nheads = 16};
        std::deque<Mixer> mixers;
        for (int i = 0; i < nlayers; ++i) {
          mixers.emplace_back(shape, dtype, i == 0 ? nullptr : &mixers.back());
        }
        test::DeviceBuffer logits(DType::f32, batch * shape.out());
        test::DeviceBuffer hidden(dtype, batch * shape.d_model);
        test::DeviceBuffer residual(DType::f32, batch * shape.d_model);
        const LinearStepArgs head = mixers.back().head(logits, hidden, residual);
        for (const Mixer& mixer : mixers) mixer.run_one_by_one();
        cuda::linear_step(head, nullptr);
        std::vector<Mixer::Results> expected;
        for (const Mixer& mixer : mixers) expected.push_back(mixer.results());
        const std::vector<float> expected_logits = logits.values();
        const std::vector<float> expected_hidden = hidden.values();
        const std::vector<float> expected_residual = residual.values();

        StepProgram program;
        for (const Mixer& mixer : mixers) mixer.add_to(program);
        ASSERT_TRUE(program.add(head));
        const auto kernel = program.compile();
        EXPECT_EQ(kernel->phases(), (batch == 1 ? 2 : 3) * nlayers + 1);
        EXPECT_EQ(kernel->meetings(), batch == 1 ? 1 : 3 * nlayers + 1);
        const double tolerance = dtype == DType::f32 ? 1e-4 : 3e-2;
        std::vector<float> first;
        for (int repeat = 0; repeat < 150; ++repeat) {
          for (Mixer& mixer : mixers) mixer.reset();
          for (auto* buffer : {&logits, &hidden, &residual}) buffer->poison();
          kernel->launch(nullptr);
          const std::vector<float> got = logits.values();
          if (repeat == 0) first = got;
          ASSERT_TRUE(same_bits(got, first)) << "launch " << repeat;
          if (repeat % 50 != 0) continue;
          expect_near(got, expected_logits, tolerance);
          expect_near(hidden.values(), expected_hidden, tolerance);
          expect_near(residual.values(), expected_residual, tolerance);
          for (std::size_t i = 0; i < mixers.size(); ++i) {
            expect_near(mixers[i].results().state, expected[i].state, tolerance);
            expect_near(mixers[i].results().conv_state, expected[i].conv_state, tolerance);
          }
        }
      }
    }
  }
}

// Layers of which some part is another's.
TEST_F(StepProgramMamba2Cuda, LayersThatAreNone) {
  const auto phases = [](const LinearStepArgs& in, const SsdStepArgs& heads,
                         const LinearStepArgs& out) {
    StepProgram program;
    EXPECT_TRUE(program.add(in));
    EXPECT_TRUE(program.add(heads));
    EXPECT_TRUE(program.add(out));
    return program.compile()->phases();
  };
  const Mixer mixer({}, DType::bf16);
  const Mixer other({}, DType::bf16);
  const LinearStepArgs in = mixer.in();
  const SsdStepArgs heads = mixer.heads();
  const LinearStepArgs out = mixer.out();
  EXPECT_EQ(phases(in, heads, out), 2);
  EXPECT_EQ(phases(in, other.heads(), out), 3);
  EXPECT_EQ(phases(in, heads, other.out()), 3);
  SsdStepArgs changed = heads;
  changed.dt = other.heads().dt;
  EXPECT_EQ(phases(in, changed, out), 3);
  changed = heads;
  changed.B = other.heads().B;
  EXPECT_EQ(phases(in, changed, out), 3);
  changed = heads;
  changed.z = heads.x;
  EXPECT_EQ(phases(in, changed, out), 3);
  LinearStepArgs changed_out = out;
  changed_out.gated_norm->z = other.out().gated_norm->z;
  EXPECT_EQ(phases(in, heads, changed_out), 3);
  changed_out = out;
  changed_out.gated_norm->norm_before_gate = true;
  EXPECT_EQ(phases(in, heads, changed_out), 3);

  // The same states twice: not in one program.
  StepProgram program;
  EXPECT_TRUE(program.add(in));
  EXPECT_TRUE(program.add(heads));
  EXPECT_TRUE(program.add(other.in()));
  changed = other.heads();
  changed.state = heads.state;
  EXPECT_FALSE(program.add(changed));
}

}  // namespace
}  // namespace adder
