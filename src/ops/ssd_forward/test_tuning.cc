// What a tuning table knows of ssd_forward, and what it says of shapes near those measured. That
// choose_ssd_forward goes by it needs a device: see test_cuda_tuning.cc.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "adder/error.h"
#include "ops/ssd_forward/tuning.h"
#include "tests/support/allocations.h"
#include "tests/support/error_of.h"

namespace adder::cuda {
namespace {

using test::error_of;

using nlohmann::json;

const DeviceModel kH200{"NVIDIA H200", 90, 132};
const DeviceModel kA100{"NVIDIA A100-SXM4-80GB with a name too long for a short string", 80, 108};

constexpr SsdForwardShape kShape{
    .batch = 4, .nheads = 8, .headdim = 64, .dstate = 128, .seqlen = 4096};

constexpr SsdForwardChoice fused(std::int64_t segments) {
  return {.variant = SsdForwardVariant::hopper, .segments = segments};
}

SsdForwardShape of_length(std::int64_t seqlen) {
  SsdForwardShape shape = kShape;
  shape.seqlen = seqlen;
  return shape;
}

// The segments of what the table says, 0 where it says nothing.
std::int64_t found(const SsdForwardTuning& tuning, std::int64_t seqlen) {
  const SsdForwardChoice* choice = tuning.find(kH200, of_length(seqlen));
  return choice == nullptr ? 0 : choice->segments;
}

TEST(SsdForwardTuning, FindsTheDeviceAndTheShapeThatWereMeasured) {
  SsdForwardTuning tuning;
  EXPECT_EQ(tuning.size(), 0U);
  EXPECT_EQ(tuning.find(kH200, kShape), nullptr);
  tuning.add(kH200, kShape, fused(3));
  tuning.add(kA100, kShape, fused(5));
  tuning.add(kH200, kShape, fused(4));
  EXPECT_EQ(tuning.size(), 2U);
  EXPECT_EQ(*tuning.find(kH200, kShape), fused(4));
  EXPECT_EQ(*tuning.find(kA100, kShape), fused(5));
  for (const DeviceModel& other :
       {DeviceModel{"NVIDIA H100", 90, 132}, DeviceModel{"NVIDIA H200", 80, 132},
        DeviceModel{"NVIDIA H200", 90, 16}}) {
    EXPECT_EQ(tuning.find(other, kShape), nullptr);
  }
}

TEST(SsdForwardTuning, EveryFieldTellsShapesApart) {
  SsdForwardTuning tuning;
  tuning.add(kH200, kShape, fused(4));
  std::vector<SsdForwardShape> others(9, kShape);
  others[0].dtype = DType::f16;
  others[1].packed = true;
  others[2].gated = true;
  others[3].batch = 5;
  others[4].nheads = 16;
  others[5].ngroups = 2;
  others[6].headdim = 63;
  others[7].dstate = 64;
  others[8].allow_tf32 = true;
  for (const SsdForwardShape& other : others) {
    EXPECT_EQ(tuning.find(kH200, other), nullptr) << describe(other);
    // Nor do neighbours of another class pass for neighbours in length.
    tuning.add(kH200, other, fused(1));
  }
  EXPECT_EQ(*tuning.find(kH200, kShape), fused(4));
  EXPECT_EQ(found(tuning, 4096 + 4096 / 8), 4);
  EXPECT_EQ(found(tuning, 3 * 4096), 0);
  EXPECT_EQ(found(tuning, 4096 / 2), 0);
}

TEST(SsdForwardTuning, BetweenTwoLengthsThatAgreeTheirChoiceHolds) {
  SsdForwardTuning tuning;
  tuning.add(kH200, of_length(1000), fused(3));
  tuning.add(kH200, of_length(4000), fused(3));
  tuning.add(kH200, of_length(16001), fused(3));
  tuning.add(kH200, of_length(32000), fused(2));
  for (std::int64_t seqlen : {1000, 1001, 2000, 3999, 4000}) EXPECT_EQ(found(tuning, seqlen), 3);
  EXPECT_EQ(found(tuning, 8000), 0);   // more than a factor of 4 apart
  EXPECT_EQ(found(tuning, 24000), 0);  // they disagree
}

TEST(SsdForwardTuning, ElsewhereALengthWithinAnEighthDecides) {
  SsdForwardTuning tuning;
  tuning.add(kH200, of_length(800), fused(3));
  tuning.add(kH200, of_length(1000), fused(2));
  EXPECT_EQ(found(tuning, 699), 0);
  EXPECT_EQ(found(tuning, 700), 3);
  EXPECT_EQ(found(tuning, 880), 3);  // a tenth above, the other an eighth below
  EXPECT_EQ(found(tuning, 890), 2);  // 9/80 above, the other 11/100 below
  EXPECT_EQ(found(tuning, 1125), 2);
  EXPECT_EQ(found(tuning, 1126), 0);
  EXPECT_EQ(found(tuning, 0), 0);
  EXPECT_EQ(found(tuning, std::int64_t{1} << 62), 0);
}

// ---- the installed table -----------------------------------------------------------------------

// The views have shapes alone.
SsdForwardArgs args_of(const SsdForwardShape& s) {
  SsdForwardArgs args;
  const std::int64_t rows = s.packed ? 1 : s.batch;
  args.x = ConstTensorView(nullptr, s.dtype, {rows, s.seqlen, s.nheads, s.headdim});
  args.B = ConstTensorView(nullptr, s.dtype, {rows, s.seqlen, s.ngroups, s.dstate});
  if (s.gated) args.z = args.x;
  args.allow_tf32 = s.allow_tf32;
  if (s.packed) args.cu_seqlens = ConstTensorView(nullptr, DType::i32, {s.batch + 1});
  return args;
}

TEST(SsdForwardTuning, ShapesOfArguments) {
  for (const SsdForwardShape& shape :
       {kShape,
        SsdForwardShape{
            .dtype = DType::f32, .allow_tf32 = true, .packed = true, .batch = 9, .seqlen = 100},
        SsdForwardShape{.gated = true, .batch = 2, .nheads = 6, .ngroups = 3, .headdim = 7}}) {
    EXPECT_EQ(shape_of(args_of(shape)), shape) << describe(shape);
  }
  SsdForwardArgs args = args_of(kShape);
  args.allow_tf32 = true;  // changes nothing of bf16
  EXPECT_EQ(shape_of(args), kShape);
  args.seq_idx = ConstTensorView(nullptr, DType::i32, {4, 4096});
  EXPECT_EQ(shape_of(args), std::nullopt);
}

TEST(SsdForwardTuning, TheInstalledTableIsConsultedWithoutAllocating) {
  const SsdForwardArgs args = args_of(kShape);
  EXPECT_EQ(installed_ssd_forward_choice(kA100, args), std::nullopt);
  auto tuning = std::make_shared<SsdForwardTuning>();
  tuning->add(kH200, kShape, fused(2));
  tuning->add(kA100, kShape, fused(4));
  install_ssd_forward_tuning(tuning);
  SsdForwardArgs other = args;
  other.seq_idx = ConstTensorView(nullptr, DType::i32, {4, 4096});
  const std::int64_t before = test::allocations();
  const auto choice = installed_ssd_forward_choice(kA100, args);
  const auto none = installed_ssd_forward_choice(kA100, other);
  EXPECT_EQ(test::allocations(), before);
  EXPECT_EQ(choice, fused(4));
  EXPECT_EQ(none, std::nullopt);
  install_ssd_forward_tuning(nullptr);
  EXPECT_EQ(installed_ssd_forward_choice(kA100, args), std::nullopt);
}

TEST(SsdForwardTuning, TablesAreReplacedWhileOthersLookChoicesUp) {
  const auto table = [](std::int64_t segments) {
    auto tuning = std::make_shared<SsdForwardTuning>();
    tuning->add(kH200, kShape, fused(segments));
    return tuning;
  };
  install_ssd_forward_tuning(table(1));
  const SsdForwardArgs args = args_of(kShape);
  std::atomic<bool> done{false};
  std::atomic<std::int64_t> wrong{0};
  std::atomic<std::int64_t> lookups{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      std::int64_t last = 1;
      while (!done) {
        const auto choice = installed_ssd_forward_choice(kH200, args);
        if (!choice || choice->segments < last) ++wrong;
        if (choice) last = choice->segments;
        ++lookups;
      }
    });
  }
  for (std::int64_t segments = 2; segments <= 50; ++segments) {
    const std::int64_t before = lookups;
    install_ssd_forward_tuning(table(segments));
    while (lookups < before + 3) std::this_thread::yield();
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(installed_ssd_forward_choice(kH200, args), fused(50));
  install_ssd_forward_tuning(nullptr);
}

// ---- in files ----------------------------------------------------------------------------------

TEST(SsdForwardTuningJson, ShapesAndChoicesComeBackAsTheyWere) {
  const SsdForwardShape odd{.dtype = DType::f32,
                            .allow_tf32 = true,
                            .packed = true,
                            .gated = true,
                            .batch = 3,
                            .nheads = 6,
                            .ngroups = 2,
                            .headdim = 5,
                            .dstate = 7,
                            .seqlen = std::int64_t{1} << 40};
  for (const SsdForwardShape& shape : {kShape, odd}) {
    EXPECT_EQ(read_ssd_forward_shape(to_json(shape), "here"), shape);
  }
  for (const SsdForwardChoice& choice :
       {SsdForwardChoice{.window_chunks = 77},
        SsdForwardChoice{.variant = SsdForwardVariant::hopper, .segments = 9, .warm_up = true}}) {
    EXPECT_EQ(read_ssd_forward_choice(to_json(choice), "here"), choice);
  }
  EXPECT_EQ(to_json(fused(4)).dump(),
            R"({"end_to_end":false,"segments":4,"variant":"hopper","warm_up":false})");
}

TEST(SsdForwardTuningJson, ReadersTakeNothingElse) {
  const auto choice_error = [](const char* text) {
    return error_of([&] { read_ssd_forward_choice(json::parse(text), "here"); });
  };
  EXPECT_EQ(choice_error(R"({"variant": "magic"})"),
            "here: variant is \"\\\"magic\\\"\", expected general or hopper");
  EXPECT_EQ(choice_error(R"({"variant": "general", "window_chunks": 0})"),
            "here: window_chunks is \"0\", expected an integer from 1 to 1099511627776");
  EXPECT_EQ(choice_error(R"({"variant": "general"})"),
            "here has no window_chunks, expected an integer from 1 to 1099511627776");
  EXPECT_EQ(choice_error(R"({"variant": "general", "window_chunks": 2, "segments": 2})"),
            "here has the key \"segments\", expected no such key");
  EXPECT_EQ(choice_error(R"({"variant": "hopper", "segments": 2, "warm_up": 1})"),
            "here: warm_up is \"1\", expected true or false");

  for (const char* name : {"dtype", "allow_tf32", "packed", "gated", "batch", "seqlen", "nheads",
                           "ngroups", "headdim", "dstate"}) {
    json shape = to_json(kShape);
    shape.erase(name);
    EXPECT_THROW(read_ssd_forward_shape(shape, "here"), Error) << name;
    shape[name] = -1;
    EXPECT_THROW(read_ssd_forward_shape(shape, "here"), Error) << name;
  }
  json shape = to_json(kShape);
  shape["ngroups"] = 3;
  EXPECT_EQ(error_of([&] { read_ssd_forward_shape(shape, "here"); }),
            "here: ngroups is 3, expected a divisor of the 8 heads");
  shape = to_json(kShape);
  shape["allow_tf32"] = true;
  EXPECT_EQ(error_of([&] { read_ssd_forward_shape(shape, "here"); }),
            "here: allow_tf32 is given with bf16, expected it with f32 only");
  shape = to_json(kShape);
  shape["more"] = 1;
  EXPECT_EQ(error_of([&] { read_ssd_forward_shape(shape, "here"); }),
            "here has the key \"more\", expected no such key");
}

TEST(SsdForwardTuningJson, ShapesAreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_ssd_forward_shape("batch=4,seqlen=4096,nheads=8,headdim=64,dstate=128"), kShape);
  const SsdForwardShape odd = parse_ssd_forward_shape(
      "seqlen=100,nheads=6,headdim=5,dstate=7,packed,batch=3,dtype=f16,ngroups=2,gated");
  EXPECT_EQ(describe(odd),
            "packed 3, seqlen 100, nheads 6, headdim 5, dstate 7, ngroups 2, f16, gated");
  EXPECT_EQ(describe(parse_ssd_forward_shape(
                "seqlen=1,nheads=2,headdim=3,dstate=4,dtype=f32,allow_tf32")),
            "batch 1, seqlen 1, nheads 2, headdim 3, dstate 4, f32, tf32 allowed");
  EXPECT_EQ(describe(kShape), "batch 4, seqlen 4096, nheads 8, headdim 64, dstate 128");
  EXPECT_EQ(describe(fused(3)), "hopper, segments 3");
  EXPECT_EQ(describe(SsdForwardChoice{
                .variant = SsdForwardVariant::hopper, .segments = 2, .warm_up = true}),
            "hopper, segments 2, warm_up");
  const auto error = [](std::string_view text) {
    return error_of([&] { parse_ssd_forward_shape(text); });
  };
  EXPECT_EQ(error("seqlen=1,nheads=1,headdim=1"),
            "shape has no dstate, expected an integer from 1 to 1048576");
  EXPECT_EQ(error("seqlen"),
            "shape: found \"seqlen\", expected NAME=VALUE, allow_tf32, packed or gated");
  EXPECT_EQ(error("packed=1"), "shape: found \"packed=1\", expected packed alone");
  EXPECT_EQ(error("seqlen=1,,"),
            "shape: found \"\", expected NAME=VALUE, allow_tf32, packed or gated");
  EXPECT_EQ(error("seqlen=1,seqlen=2"), "shape: \"seqlen\" is given twice");
  EXPECT_EQ(error("seqlen=many"), "shape: seqlen is \"many\", expected an integer");
  EXPECT_EQ(error("seqlen=1,nheads=1,headdim=1,dstate=1,depth=3"),
            "shape has the key \"depth\", expected no such key");
  EXPECT_EQ(error("seqlen=1,nheads=1,headdim=1,dstate=1,dtype=f64"),
            "shape: dtype is \"\\\"f64\\\"\", expected bf16, f16 or f32");
}

}  // namespace
}  // namespace adder::cuda
