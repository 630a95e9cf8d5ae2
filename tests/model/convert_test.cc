// Checkpoints with matrices of integers: written, opened again, and what is refused.

#include "adder/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adder/model.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "core/tensor.h"
#include "tests/support/error_of.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

const fs::path kBooks = "models/books-11m";

class Convert : public ::testing::Test {
 protected:
  Convert() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("adder_convert_") + test->name());
    fs::remove_all(folder_);
  }
  ~Convert() override { fs::remove_all(folder_); }

  // The converted model's tensors as they are stored, to be written again with changes.
  std::vector<NamedTensor> stored(const SafetensorsFile& file) const {
    std::vector<NamedTensor> out;
    for (const auto& [name, view] : file.tensors()) out.push_back({name, view});
    return out;
  }
  // What opening says once `change` was made to the stored tensors.
  template <typename Change>
  std::string error_after(const Change& change) const {
    const fs::path changed = folder_ / "changed";
    fs::create_directories(changed);
    const SafetensorsFile file(folder_ / "model.safetensors");
    std::vector<NamedTensor> tensors = stored(file);
    change(tensors);
    write_safetensors(changed / "model.safetensors", tensors);
    fs::copy_file(folder_ / "config.json", changed / "config.json",
                  fs::copy_options::overwrite_existing);
    return test::error_of([&] { Checkpoint::open(changed); });
  }

  fs::path folder_;
};

std::vector<int> a_text() {
  const auto expected = nlohmann::json::parse(std::ifstream("tests/data/books-11m/expected.json"));
  return expected["score"]["ids"].get<std::vector<int>>();
}

double nll(const Model& model) {
  double sum = 0;
  for (double v : model.new_session().score(a_text())) sum += v;
  return sum;
}

TEST_F(Convert, ResultsAreSmallerAndNearlyAsGood) {
  const double truth = nll(Model::load(kBooks));
  for (WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    fs::remove_all(folder_);
    double last = 0;
    const ConvertReport report =
        convert(kBooks, folder_, {.format = format, .progress = [&](double fraction) {
                                    EXPECT_GE(fraction, last);
                                    last = fraction;
                                  }});
    EXPECT_EQ(last, 1.0);
    EXPECT_EQ(report.matrices, 21);  // two of each of 10 layers, and the embedding that is the head
    const bool is_int8 = format == WeightFormat::int8;
    const double bits =
        16.0 * static_cast<double>(report.bytes_after) / static_cast<double>(report.bytes_before);
    EXPECT_NEAR(bits, is_int8 ? 8.55 : 4.57, 0.05);
    const Model model = Model::load(folder_);
    EXPECT_EQ(model.weight_format(), format);
    EXPECT_TRUE(model.has_tokenizer());
    EXPECT_NEAR(nll(model) / truth, 1, is_int8 ? 0.002 : 0.02);
    EXPECT_LT(model.bytes_per_token(),
              Model::load(kBooks).bytes_per_token() * (is_int8 ? 0.6 : 0.35));
  }
}

// What is not said otherwise is used as it is stored; other formats are made of what it stands for.
TEST_F(Convert, ResultsCanBeLoadedInEveryFormat) {
  convert(kBooks, folder_, {.format = WeightFormat::int8});
  const double as_stored = nll(Model::load(folder_));
  const double int8 = nll(Model::load(folder_, {.dtype = "int8"}));
  const double f16 = nll(Model::load(folder_, {.dtype = "f16"}));
  EXPECT_EQ(as_stored, int8);
  EXPECT_NEAR(f16 / as_stored, 1, 1e-3);  // inputs are not quantized there
  EXPECT_NE(f16, as_stored);
}

TEST_F(Convert, PanelsAreMultipliedWhereTheyAreMapped) {
  convert(kBooks, folder_, {.format = WeightFormat::int4});
  const Checkpoint checkpoint = Checkpoint::open(folder_);
  for (const std::string& name : checkpoint.names()) {
    if (!checkpoint.has_panels(name)) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(checkpoint.blocks(name).data());
    EXPECT_EQ(address % 64, 0U) << name;
    EXPECT_EQ(checkpoint.stored_format(name), "int4");
  }
  EXPECT_EQ(checkpoint.stored_format("norm_f.weight"), "bf16");
  EXPECT_EQ(checkpoint.stored_format("layers.0.mixer.A_log"), "f32");
}

TEST_F(Convert, RefusesWhatItCannotDo) {
  EXPECT_EQ(test::error_of([&] { convert(kBooks, folder_, {.format = WeightFormat::bf16}); }),
            "convert: format is bf16, expected int8 or int4");
  convert(kBooks, folder_, {.format = WeightFormat::int8});
  EXPECT_EQ(test::error_of([&] { convert(kBooks, folder_, {.format = WeightFormat::int8}); }),
            (folder_ / "model.safetensors").string() +
                " exists already, expected a folder without weights");
  EXPECT_EQ(test::error_of([&] { convert(kBooks, kBooks, {.format = WeightFormat::int8}); }),
            (kBooks / "model.safetensors.index.json").string() +
                " exists already, expected a folder without weights");
  EXPECT_EQ(
      test::error_of([&] { convert(folder_, folder_ / "again", {.format = WeightFormat::int4}); }),
      folder_.string() +
          ": tensor \"embedding.weight\" is int8 already, expected floating-point numbers");
}

TEST_F(Convert, DamagedMatricesAreNamed) {
  convert(kBooks, folder_, {.format = WeightFormat::int8});
  const std::string name = "layers.0.mixer.in_proj.weight";
  const auto at = [&](std::vector<NamedTensor>& tensors, const std::string& wanted) {
    for (auto i = tensors.begin(); i != tensors.end(); ++i) {
      if (i->name == wanted) return i;
    }
    ADD_FAILURE() << wanted;
    return tensors.begin();
  };
  EXPECT_NE(error_after([&](auto& t) {
              t.erase(at(t, name + ".shape"));
            }).find("\"" + name + ".int8\" is there without " + name + ".shape"),
            std::string::npos);
  EXPECT_NE(error_after([&](auto& t) {
              t.erase(at(t, name + ".int8"));
            }).find("has no tensor \"" + name + "\""),
            std::string::npos);
  std::int64_t extents[2] = {1680, 384};
  EXPECT_NE(error_after([&](auto& t) {
              at(t, name + ".shape")->view = ConstTensorView::of(extents, {2});
            }).find("has shape (1680, 384), expected (1676, 384)"),
            std::string::npos);
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1676, 416}, {1700, 384}}) {
    extents[0] = rows;
    extents[1] = columns;
    EXPECT_NE(error_after([&](auto& t) {
                at(t, name + ".shape")->view = ConstTensorView::of(extents, {2});
              }).find(" bytes for a matrix of shape ("),
              std::string::npos);
  }
  for (std::int64_t bad : {std::int64_t{0}, std::int64_t{-5}, std::int64_t{1} << 40}) {
    extents[0] = bad;
    EXPECT_NE(error_after([&](auto& t) {
                at(t, name + ".shape")->view = ConstTensorView::of(extents, {2});
              }).find("expected extents from 1 to"),
              std::string::npos);
  }
  const std::int32_t narrow[2] = {1676, 384};
  EXPECT_NE(error_after([&](auto& t) {
              at(t, name + ".shape")->view = ConstTensorView::of(narrow, {2});
            }).find("is i32 of shape (2), expected i64 of shape (2)"),
            std::string::npos);
  const std::vector<float> other(1676 * 384, 0.5F);
  EXPECT_NE(error_after([&](auto& t) {
              t.push_back({name, ConstTensorView::of(other.data(), {1676, 384})});
            }).find("is the same as"),
            std::string::npos);
}

}  // namespace
}  // namespace adder
