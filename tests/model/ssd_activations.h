#pragma once

// What the bundled model feeds ssd_forward with on a text: activations have outliers, correlations
// and decays that random numbers have not.

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adder/model.h"
#include "ops/ssd_forward/test_case.h"
#include "runtime/model_impl.h"
#include "tests/model/recording_backend.h"
#include "tests/support/pooled.h"

namespace adder::test {

/// The text, fed in two parts, so that the calls of the second have a state to begin with: 150
/// tokens, then those that are recorded, more than five chunks of 64.
inline constexpr std::int64_t kTokensBefore = 150;
inline constexpr std::int64_t kTokensRecorded = 5 * 64 + 23;

/// Of the first, the middle and the last layer.
inline std::vector<SsdRecord> record_ssd_of_books() {
  const auto expected = nlohmann::json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  std::string text;
  for (const auto& example : expected["greedy"]) {
    text += example["prompt"].get<std::string>() + example["greedy"].get<std::string>() + "\n";
  }
  const Model model = Model::load("models/books-11m", {.dtype = "f32"});
  std::vector<int> ids = model.tokenizer().encode(text + text);
  EXPECT_GE(std::ssize(ids), kTokensBefore + kTokensRecorded);
  ids.resize(static_cast<std::size_t>(kTokensBefore + kTokensRecorded));
  const std::vector<int> before(ids.begin(), ids.begin() + kTokensBefore);
  const std::vector<int> recorded(ids.begin() + kTokensBefore, ids.end());

  Backend& backend = *model.impl().backend;
  const Network& network = *model.impl().network;
  NetworkState state = network.new_state(backend, 1);
  network.forward(backend, backend.upload_ids(before), Sequences::single(kTokensBefore), state);
  RecordingBackend recorder(backend);
  network.forward(recorder, recorder.upload_ids(recorded), Sequences::single(kTokensRecorded),
                  state);
  const std::vector<SsdRecord>& all = recorder.records();
  EXPECT_EQ(std::ssize(all), network.config().n_layer);
  return {all.front(), all[all.size() / 2], all.back()};
}

/// A call with the record's contents as `dtype`, dt as `dt_dtype`, and the gate if asked for.
inline SsdCase case_of(const SsdRecord& record, DType dtype, DType dt_dtype, bool gated = false) {
  const SsdInput& input = record.input;
  const ConstTensorView state = record.state.view;  // (1, nheads, headdim, dstate)
  const std::int64_t ntokens = input.x.view.dim(0);
  const std::int64_t nheads = state.dim(1);
  SsdCase c({.seqlen = ntokens,
             .nheads = nheads,
             .headdim = state.dim(2),
             .ngroups = input.ngroups,
             .dstate = state.dim(3),
             .dtype = dtype});
  const auto take = [](Tensor& to, ConstTensorView& arg, const ConstTensorView& from, DType as) {
    to = convert(from, as);
    arg = to.view;
  };
  const auto tokens = [&](const Tensor& matrix, std::int64_t columns) {
    return ConstTensorView(matrix.view).split_last(columns).unsqueeze0();
  };
  take(c.x, c.args.x, tokens(input.x, nheads), dtype);
  take(c.B, c.args.B, tokens(input.B, input.ngroups), dtype);
  take(c.C, c.args.C, tokens(input.C, input.ngroups), dtype);
  take(c.z, c.args.z, tokens(record.z, nheads), dtype);
  if (!gated) c.args.z = {};
  take(c.dt, c.args.dt, ConstTensorView(input.dt.view).unsqueeze0(), dt_dtype);
  take(c.A, c.args.A, input.A.view, DType::f32);
  take(c.D, c.args.D, input.D.view, DType::f32);
  take(c.dt_bias, c.args.dt_bias, input.dt_bias.view, DType::f32);
  take(c.initial_states, c.args.initial_states, state, DType::f32);
  c.args.dt_min = input.dt_min;
  c.args.dt_max = input.dt_max;
  return c;
}

/// Judges results of many heads together, each scaled by a power of two to about one: heads of a
/// model differ in size, and the largest error of one alone may be that of an outlier.
class PooledHeads {
 public:
  /// Of (tokens, nheads, width) values.
  void add(std::vector<float> got, std::vector<double> truth, std::vector<float> plain,
           std::int64_t nheads, std::int64_t width, const std::string& label) {
    const auto head_of = [&](std::size_t i) {
      return i / static_cast<std::size_t>(width) % static_cast<std::size_t>(nheads);
    };
    std::vector<double> squares(static_cast<std::size_t>(nheads));
    for (std::size_t i = 0; i < truth.size(); ++i) squares[head_of(i)] += truth[i] * truth[i];
    std::vector<int> exponents;
    for (double sum : squares) {
      const double mean = sum * static_cast<double>(nheads) / static_cast<double>(truth.size());
      exponents.push_back(sum > 0 ? -std::ilogb(mean) / 2 : 0);
    }
    const auto scale = [&](auto& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = std::ldexp(values[i], exponents[head_of(i)]);  // exact
      }
    };
    scale(got);
    scale(truth);
    scale(plain);
    pooled_.add(got, truth, plain, label);
  }

  ::testing::AssertionResult as_good_as_plain() const { return pooled_.as_good_as_plain(); }

 private:
  Pooled pooled_;
};

/// What calls on records are judged by: the recurrence in float64, and a plain version in float32
/// whose y is rounded to the dtype.
struct Yardstick {
  ref::SsdResult<double> truth;
  ref::SsdResult<float> plain;

  Yardstick(const SsdCase& c, ref::SsdResult<float> plain_result)
      : truth(ref::ssd_forward<double>(c.args)), plain(std::move(plain_result)) {
    plain.y = to_floats(tensor_of(plain.y, {std::ssize(plain.y)}, c.shape.dtype).view);
  }

  void add(const SsdCase& c, const SsdOutput& got, const std::string& label, PooledHeads& y,
           PooledHeads& final_states) const {
    const SsdShape& s = c.shape;
    y.add(got.y, truth.y, plain.y, s.nheads, s.headdim, label + " y");
    final_states.add(got.final_states, truth.final_states, plain.final_states, s.nheads,
                     s.headdim * s.dstate, label + " final_states");
  }
};

}  // namespace adder::test
