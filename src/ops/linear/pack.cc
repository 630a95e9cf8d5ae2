#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/ceil_div.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/half.h"
#include "core/tensor.h"
#include "ops/linear/linear.h"
#include "ops/linear/shares.h"

namespace adder::cpu {
namespace {

// Inputs that are stored side by side for one output.
constexpr std::int64_t inputs_per_lane(DType dtype) { return dtype == DType::bf16 ? 2 : 1; }

// Where in its panel the weight of output `lane` (below 16) for `input` is stored.
template <typename T>
constexpr std::int64_t offset_in_panel(std::int64_t input, std::int64_t lane) {
  constexpr std::int64_t kInputs = inputs_per_lane(DTypeOf<T>::value);
  return input / kInputs * (kInputs * kPanelOutputs) + lane * kInputs + input % kInputs;
}

template <typename From, typename To>
To convert_weight(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else {
    return from_float<To>(to_float(value));
  }
}

// 32-bit words of 16 rows, [lane][word] with `row_bytes` from one row to the next at any address,
// to [word][lane].
void transpose_words(const std::byte* source, std::int64_t row_bytes, std::int64_t words,
                     std::byte* panel) {
  using Words = std::uint32_t __attribute__((vector_size(16)));
  constexpr std::int64_t kWord = 4;
  constexpr std::int64_t kWidth = 4;  // words of a vector
  const auto load = [&](std::int64_t lane, std::int64_t word) {
    Words out;
    std::memcpy(&out, source + lane * row_bytes + word * kWord, sizeof(out));
    return out;
  };
  const auto store = [&](std::int64_t word, std::int64_t lane, Words value) {
    std::memcpy(panel + (word * kPanelOutputs + lane) * kWord, &value, sizeof(value));
  };
  std::int64_t word = 0;
  for (; word + kWidth <= words; word += kWidth) {
    for (std::int64_t lane = 0; lane < kPanelOutputs; lane += kWidth) {
      const Words a = load(lane, word);
      const Words b = load(lane + 1, word);
      const Words c = load(lane + 2, word);
      const Words d = load(lane + 3, word);
      const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      store(word, lane, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
      store(word + 1, lane, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
      store(word + 2, lane, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
      store(word + 3, lane, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
    }
  }
  for (; word < words; ++word) {
    for (std::int64_t lane = 0; lane < kPanelOutputs; ++lane) {
      std::memcpy(panel + (word * kPanelOutputs + lane) * kWord,
                  source + lane * row_bytes + word * kWord, kWord);
    }
  }
}

// One panel: `rows` source rows, at most 16, `row_stride` apart. Goes over blocks of inputs whose
// destination stays in L1, so that source rows are read along and the panel is written once.
template <typename From, typename To>
void pack_panel(const From* source, std::int64_t row_stride, std::int64_t rows,
                std::int64_t in_features, To* panel, std::int64_t panel_elements) {
  constexpr std::int64_t kBlock = 128;
  if (rows < kPanelOutputs || panel_elements != in_features * kPanelOutputs) {
    std::memset(static_cast<void*>(panel), 0,
                static_cast<std::size_t>(panel_elements) * sizeof(To));
  }
  std::int64_t packed = 0;  // inputs
  // Words are moved as they are where they hold the same before and after.
  constexpr std::int64_t kInputs = inputs_per_lane(DTypeOf<To>::value);
  if constexpr (std::is_same_v<From, To> && kInputs * sizeof(To) == sizeof(std::uint32_t)) {
    if (rows == kPanelOutputs) {
      const std::int64_t words = in_features / kInputs;
      transpose_words(reinterpret_cast<const std::byte*>(source),
                      row_stride * static_cast<std::int64_t>(sizeof(From)), words,
                      reinterpret_cast<std::byte*>(panel));
      packed = words * kInputs;
    }
  }
  for (std::int64_t begin = packed; begin < in_features; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, in_features);
    for (std::int64_t lane = 0; lane < rows; ++lane) {
      const From* row = source + lane * row_stride;
      for (std::int64_t i = begin; i < end; ++i) {
        panel[offset_in_panel<To>(i, lane)] = convert_weight<From, To>(row[i]);
      }
    }
  }
}

// A matrix in memory, which stays there.
class ViewRows final : public MatrixRows {
 public:
  explicit ViewRows(const ConstTensorView& view) : view_(view) {}
  const std::string& name() const override { return name_; }
  std::int64_t rows() const override { return view_.dim(0); }
  std::int64_t columns() const override { return view_.dim(1); }
  ConstTensorView view() const override { return view_; }
  void read(std::int64_t, std::int64_t, std::span<float>) const override {}  // it has a view

 private:
  ConstTensorView view_;
  std::string name_ = "a weight";
};

}  // namespace

std::int64_t PackedLinear::panels() const {
  return round_up(out_features_, kPanelOutputs) / kPanelOutputs;
}

std::int64_t PackedLinear::panel_elements() const {
  return round_up(in_features_, inputs_per_lane(dtype_)) * kPanelOutputs;
}

std::int64_t PackedLinear::bytes() const {
  return panels() * panel_elements() * static_cast<std::int64_t>(size_of(dtype_));
}

void PackedLinear::unpack_row(std::int64_t row, std::span<float> out) const {
  check(row >= 0 && row < out_features_, "linear: row {} of a weight of {} rows was asked for", row,
        out_features_);
  check(static_cast<std::int64_t>(out.size()) == in_features_,
        "linear: a row was to be unpacked into {} values, expected in_features {}", out.size(),
        in_features_);
  visit_float(dtype_, [&]<typename T>(TypeTag<T>) {
    const T* panel =
        reinterpret_cast<const T*>(storage_.get()) + row / kPanelOutputs * panel_elements();
    for (std::int64_t i = 0; i < in_features_; ++i) {
      out[static_cast<std::size_t>(i)] =
          to_float(panel[offset_in_panel<T>(i, row % kPanelOutputs)]);
    }
  });
}

PackedLinear pack_linear(const ConstTensorView& source, DType storage_dtype, ThreadPool& pool) {
  check_shape("pack_linear", "source", source, {kAny, kAny});
  return pack_linear(ViewRows(source), storage_dtype, pool);
}

PackedLinear pack_linear(const MatrixRows& source, DType storage_dtype, ThreadPool& pool) {
  constexpr auto kOp = "pack_linear";
  const ConstTensorView view = source.view();
  if (view.defined()) {
    check_shape(kOp, "source", view, {source.rows(), source.columns()});
    check_dtype(kOp, "source", view, {DType::f32, DType::bf16, DType::f16});
    check_rows(kOp, "source", view);
  }
  check(storage_dtype == DType::f32 || storage_dtype == DType::bf16 || storage_dtype == DType::f16,
        "pack_linear: storage dtype is {}, expected f32, bf16 or f16", name_of(storage_dtype));
  PackedLinear packed;
  packed.out_features_ = source.rows();
  packed.in_features_ = source.columns();
  packed.dtype_ = storage_dtype;
  packed.storage_ = allocate_host(static_cast<std::size_t>(packed.bytes()));
  const std::int64_t panel_elements = packed.panel_elements();
  const std::int64_t in_features = packed.in_features_;
  // `from(row, count)` is where such rows begin, `stride` apart.
  const auto pack = [&]<typename From, typename To>(std::int64_t stride, const auto& from, To* to,
                                                    std::int64_t begin, std::int64_t end,
                                                    TypeTag<From>) {
    ConsumedRows consumed(source, begin * kPanelOutputs);
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t row = panel * kPanelOutputs;
      const std::int64_t count = std::min(kPanelOutputs, packed.out_features_ - row);
      pack_panel<From, To>(from(row, count), stride, count, in_features,
                           to + panel * panel_elements, panel_elements);
      consumed.up_to(row + count);
    }
  };
  const std::int64_t grain = panel_grain(1, panel_elements);
  visit_float(storage_dtype, [&]<typename To>(TypeTag<To>) {
    To* to = reinterpret_cast<To*>(packed.storage_.get());
    if (!view.defined()) {
      pool.parallel_for(packed.panels(), grain, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> rows(static_cast<std::size_t>(kPanelOutputs * in_features));
        const auto from = [&](std::int64_t row, std::int64_t count) {
          source.read(row, count,
                      std::span(rows).first(static_cast<std::size_t>(count * in_features)));
          return static_cast<const float*>(rows.data());
        };
        pack(in_features, from, to, begin, end, TypeTag<float>());
      });
      return;
    }
    visit_float(view.dtype, [&]<typename From>(TypeTag<From> tag) {
      pool.parallel_for(packed.panels(), grain, [&](std::int64_t begin, std::int64_t end) {
        const auto from = [&](std::int64_t row, std::int64_t) {
          return view.as<From>() + row * view.stride(0);
        };
        pack(view.stride(0), from, to, begin, end, tag);
      });
    });
  });
  return packed;
}

}  // namespace adder::cpu
