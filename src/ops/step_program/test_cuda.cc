// Programs of decode steps on a CUDA device: each operation by itself against its definition, and
// many in a row, with shared memory in every state.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>

#include "cuda/device.h"
#include "cuda/timing.h"
#include "ops/linear_step/test_case.h"
#include "ops/selective_scan_step/test_device.h"
#include "ops/ssd_step/test_device.h"
#include "ops/step_program/step_program.h"
#include "tests/support/compare.h"
#include "tests/support/pooled.h"
#include "tests/support/random.h"

namespace adder {
namespace {

using cuda::StepProgram;
using test::Pooled;
using test::same_bits;
using test::ScanProblem;
using test::StepCase;
using test::StepOnDevice;
using test::StepOutput;
using test::linear_step::Before;
using test::linear_step::Case;
using test::linear_step::Data;
using test::linear_step::DeviceCall;
using test::linear_step::kEverything;
using test::linear_step::Result;

class StepProgramCuda : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (cuda::properties(cuda::current_device()).compute_capability != 90) {
      GTEST_SKIP() << "programs are for devices of compute capability 9.0";
    }
  }
};

struct Types {
  DType x, y;
};
constexpr Types kTypes[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

template <typename Args>
void run(StepProgram& program, const Args& args) {
  ASSERT_TRUE(program.add(args));
  ASSERT_FALSE(program.is_empty());
  program.compile()->launch(nullptr);
  ASSERT_TRUE(program.is_empty());
}

// Results of float32 where x has 16 bits: of one element, with all its cancellation, at worst.
double tolerance_of(const Case& c) { return c.x == DType::f32 ? 5e-6 : 1e-4; }

void expect_right(const Case& c, std::int64_t gap = 0) {
  SCOPED_TRACE(c.name());
  const Data d(c);
  DeviceCall call(c, d, gap);
  StepProgram program;
  run(program, call.args);
  test::linear_step::expect_right(c, d, call.result(), tolerance_of(c));
}

TEST_F(StepProgramCuda, ProjectionsOfEveryKind) {
  for (const Types& types : kTypes) {
    for (Before before : kEverything) {
      for (std::int64_t batch = 1; batch <= cuda::kMaxStepProgramBatch; ++batch) {
        for (bool conv : {false, true}) {
          if (conv && types.x != types.y) continue;
          expect_right({.batch = batch,
                        .in = 768,
                        .out = 300,
                        .before = before,
                        .conv = conv,
                        .bias = conv,
                        .x = types.x,
                        .weight = DType::bf16,
                        .y = types.y});
        }
      }
    }
  }
}

// Rows that end within a group, a chunk or a stage; fewer and more rows than tiles have.
TEST_F(StepProgramCuda, RowsAndColumnsOfEveryNumber) {
  for (const Types& types : kTypes) {
    for (std::int64_t batch : {1, 2, 4}) {
      for (std::int64_t in : {16, 48, 144, 160, 1008, 1280, 1296, 2560, 4096, 5120}) {
        for (std::int64_t out : {1, 131, 133, 1200}) {
          expect_right({.batch = batch,
                        .in = in,
                        .out = out,
                        .before = Before::norm,
                        .x = types.x,
                        .weight = DType::bf16,
                        .y = types.y});
        }
      }
    }
  }
}

// Rows of a block that its slots have no room for, as in a head.
TEST_F(StepProgramCuda, ManyRows) {
  for (const Types& types : kTypes) {
    for (std::int64_t batch : {1, 3}) {
      for (bool conv : {false, true}) {
        if (conv && types.x != types.y) continue;
        expect_right({.batch = batch,
                      .in = 256,
                      .out = 50288,
                      .before = Before::norm_of_residual,
                      .conv = conv,
                      .x = types.x,
                      .weight = DType::bf16,
                      .y = types.y});
      }
    }
  }
}

TEST_F(StepProgramCuda, GroupsWidthsAndGaps) {
  for (const Types& types : kTypes) {
    Case c{.batch = 3, .in = 256, .out = 90, .x = types.x, .weight = DType::bf16, .y = types.y};
    for (Before before : {Before::gated_norm, Before::gate_after_norm}) {
      for (std::int64_t ngroups : {1, 2, 8}) {
        c.before = before;
        c.ngroups = ngroups;
        expect_right(c, 16);
      }
    }
    if (types.x != types.y) continue;
    c.before = Before::nothing;
    c.conv = true;
    for (c.width = 2; c.width <= 4; ++c.width) expect_right(c, 8);
  }
}

TEST_F(StepProgramCuda, HeadsOfEverySize) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 4}) {
      for (std::int64_t headdim : {1, 3, 64, 100}) {
        for (std::int64_t dstate : {4, 16, 64, 100, 128}) {
          for (std::int64_t nheads : {2, 80}) {
            SCOPED_TRACE(fmt::format("{} batch {} headdim {} dstate {} nheads {}", name_of(dtype),
                                     batch, headdim, dstate, nheads));
            if (nheads * headdim * dstate > 700000) continue;
            const StepCase c({.batch = batch,
                              .nheads = nheads,
                              .headdim = headdim,
                              .ngroups = 2,
                              .dstate = dstate,
                              .dtype = dtype});
            const StepOnDevice step(c);
            StepProgram program;
            if (dstate % 8 != 0 && dtype == DType::bf16) {
              EXPECT_FALSE(program.add(step.args));  // B of the second group is not aligned
              continue;
            }
            run(program, step.args);
            c.expect_right(step.result());
          }
        }
      }
    }
  }
}

TEST_F(StepProgramCuda, ChannelsOfEveryNumber) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t dstate : {4, 16, 64, 256}) {
      Pooled y;
      Pooled states;
      for (std::int64_t batch : {1, 3, 4}) {
        for (std::int64_t d_inner : {1, 50, 1536, 8192}) {
          if (d_inner * dstate > 200000) continue;
          const std::string label = fmt::format("{} batch {} d_inner {} dstate {}", name_of(dtype),
                                                batch, d_inner, dstate);
          const ScanProblem p = test::scan_step::random_step(
              {.batch = batch, .d_inner = d_inner, .dstate = dstate, .ngroups = 1}, dtype,
              d_inner != 50);
          const test::scan_step::DeviceStep step(p, dtype);
          StepProgram program;
          run(program, step.args);
          const auto truth = test::scan_step::reference<double>(p);
          const auto plain = test::scan_step::reference<float>(p);
          const auto got = step.result();
          y.add(got.y, truth.y, test::rounded(plain.y, dtype), label);
          states.add(got.states, truth.states, plain.states, label);
        }
      }
      EXPECT_TRUE(y.as_good_as_plain());
      EXPECT_TRUE(states.as_good_as_plain(dtype == DType::f32 ? 1e-6 : 1e-5));
    }
  }
}

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

TEST_F(StepProgramCuda, LayersOfMamba2) {
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
        EXPECT_EQ(kernel->phases(), batch == 1 ? 2 : 3);
        EXPECT_EQ(kernel->meetings(), batch == 1 ? 1 : 3);
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
TEST_F(StepProgramCuda, StacksOfMamba2) {
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
TEST_F(StepProgramCuda, LayersThatAreNone) {
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

// A row of layers of different sizes, whose operations do not depend on each other, so that each
// has an expected result.
struct Layers {
  explicit Layers(DType x, std::int64_t batch) {
    const DType w = DType::bf16;
    for (int layer = 0; layer < 4; ++layer) {
      const std::int64_t d_model = 256 + 512 * layer;
      add({.batch = batch,
           .in = d_model,
           .out = 4 * d_model + 90,
           .before = Before::norm,
           .conv = true,
           .x = x,
           .weight = w,
           .y = x});
      cases.emplace_back(test::StepShape{.batch = batch,
                                         .nheads = 8 + 8 * layer,
                                         .headdim = 64,
                                         .ngroups = 1,
                                         .dstate = 128,
                                         .dtype = x},
                         static_cast<std::uint64_t>(layer));
      heads.emplace_back(cases.back());
      add({.batch = batch,
           .in = 2 * d_model,
           .out = d_model,
           .before = Before::gated_norm,
           .x = x,
           .weight = w,
           .y = x});
    }
    add({.batch = batch,
         .in = 512,
         .out = 30000,
         .before = Before::norm,
         .x = x,
         .weight = w,
         .y = DType::f32});
  }

  void add(const Case& c) {
    linears.push_back(c);
    data.emplace_back(c);
    calls.emplace_back(c, data.back());
  }

  void add_to(StepProgram& program) {
    std::size_t head = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      ASSERT_TRUE(program.add(calls[i].args));
      if (i % 2 == 0 && head < heads.size()) {
        ASSERT_TRUE(program.add(heads[head++].args));
      }
    }
  }
  void reset() {
    for (std::size_t i = 0; i < calls.size(); ++i) calls[i].set_state(data[i].state);
    for (auto& h : heads) h.reset();
  }
  void expect_right(cuda::Stream stream) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      test::linear_step::expect_right(linears[i], data[i], calls[i].result(stream),
                                      tolerance_of(linears[i]));
    }
    for (std::size_t i = 0; i < heads.size(); ++i) cases[i].expect_right(heads[i].result(stream));
  }

  std::deque<Case> linears;
  std::deque<Data> data;
  std::deque<DeviceCall> calls;
  std::deque<StepCase> cases;
  std::deque<StepOnDevice> heads;
};

TEST_F(StepProgramCuda, ManyOperationsInARowAndAgain) {
  for (DType x : {DType::f32, DType::bf16}) {
    for (std::int64_t batch : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} batch {}", name_of(x), batch));
      Layers layers(x, batch);
      StepProgram program;
      const cuda::OwnedStream stream;
      layers.add_to(program);
      const auto kernel = program.compile();
      kernel->launch(stream);
      layers.expect_right(stream);
      const Result first = layers.calls[4].result(stream);
      const cuda::Graph graph(stream, [&] { kernel->launch(stream); });
      for (int i = 0; i < 3; ++i) {
        layers.reset();
        graph.launch(stream);
        layers.expect_right(stream);
        const Result again = layers.calls[4].result(stream);
        EXPECT_TRUE(same_bits(again.conv_y, first.conv_y));
        EXPECT_TRUE(same_bits(again.residual, first.residual));
      }
    }
  }
}

// Each operation reads what the one before wrote: all blocks must have waited for all.
TEST_F(StepProgramCuda, AChainSeesWhatWentBefore) {
  constexpr std::int64_t kSize = 1024;
  constexpr int kLength = 40;
  test::DeviceBuffer weight(DType::bf16, test::Random(3).normals(kSize * kSize, 1.0 / 32));
  test::DeviceBuffer x(DType::f32, test::Random(4).normals(kSize));
  std::deque<test::DeviceBuffer> alone;
  std::deque<test::DeviceBuffer> together;
  const auto chain = [&](std::deque<test::DeviceBuffer>& buffers, const auto& call) {
    const test::DeviceBuffer* before = &x;
    for (int i = 0; i < kLength; ++i) {
      buffers.emplace_back(DType::f32, kSize);
      call(LinearStepArgs{.x = before->view({1, kSize}),
                          .weight = weight.view({kSize, kSize}),
                          .y = buffers.back().view({1, kSize})});
      before = &buffers.back();
    }
  };
  chain(alone, [](const LinearStepArgs& args) { cuda::linear_step(args, nullptr); });
  for (int repeat = 0; repeat < 20; ++repeat) {
    together.clear();
    StepProgram program;
    chain(together, [&](const LinearStepArgs& args) { ASSERT_TRUE(program.add(args)); });
    program.compile()->launch(nullptr);
    for (std::size_t i = 0; i < kLength; ++i) {
      ASSERT_LE(test::relative_error(together[i].values(), test::to_double(alone[i].values())),
                2e-5)
          << "operation " << i;
    }
  }
}

TEST_F(StepProgramCuda, SaysWhatItDoesNotTake) {
  const auto takes = [](const Case& c) {
    const Data d(c);
    return StepProgram().add(DeviceCall(c, d).args);
  };
  const Case good{.x = DType::bf16, .weight = DType::bf16, .y = DType::bf16};
  EXPECT_TRUE(takes(good));
  Case c = good;
  c.batch = 5;
  EXPECT_FALSE(takes(c));
  EXPECT_FALSE(takes({}));  // a weight of float32
  c = good;
  c.x = c.weight = c.y = DType::f16;
  EXPECT_FALSE(takes(c));
  c = good;
  c.in = 72;
  EXPECT_FALSE(takes(c));
  c = good;
  c.conv = true;
  c.width = 5;
  EXPECT_FALSE(takes(c));
  c = good;
  c.batch = 4;
  c.in = 16384;
  EXPECT_FALSE(takes(c));

  // Of one type of x.
  StepProgram program;
  const Data d(good);
  EXPECT_TRUE(program.add(DeviceCall(good, d).args));
  const StepCase f32({.dstate = 16});
  EXPECT_FALSE(program.add(StepOnDevice(f32).args));
  EXPECT_FALSE(program.is_empty());
  EXPECT_FALSE(StepProgram().add(StepOnDevice(StepCase({.dstate = 18})).args));
  EXPECT_FALSE(StepProgram().add(StepOnDevice(StepCase({.dstate = 256})).args));
  const StepCase rounded({.dstate = 16, .state_dtype = DType::bf16});
  EXPECT_FALSE(StepProgram().add(StepOnDevice(rounded).args));
  const test::ScanProblem scan =
      test::scan_step::random_step({.d_inner = 32}, DType::bf16, true, DType::bf16);
  EXPECT_FALSE(
      StepProgram().add(test::scan_step::DeviceStep(scan, DType::bf16, 0, 0, DType::bf16).args));
}

}  // namespace
}  // namespace adder
