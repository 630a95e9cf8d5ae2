#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "core/check.h"
#include "core/json_object.h"
#include "core/quote.h"
#include "ops/ssd_forward/tuning.h"

namespace adder::cuda {
namespace {

using nlohmann::json;

// Products of all extents of a shape stay below 2^63 if each is small; the limits are far above
// what any device holds.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMostExtent = std::int64_t{1} << 20;

/// Calls visit(name, field, most) for each field that the choice's variant has: the one place that
/// knows them.
template <typename Choice, typename Visit>
void visit_fields(Choice& choice, Visit&& visit) {
  switch (choice.variant) {
    case SsdForwardVariant::general:
      visit("window_chunks", choice.window_chunks, kMostTokens);
      break;
    case SsdForwardVariant::hopper:
      visit("segments", choice.segments, kMostTokens);
      visit("warm_up", choice.warm_up, 1);
      visit("end_to_end", choice.end_to_end, 1);
      break;
  }
}

/// Calls visit(name, field, most) for the extents of a shape.
template <typename Shape, typename Visit>
void visit_extents(Shape& shape, Visit&& visit) {
  visit("batch", shape.batch, kMostExtent);
  visit("seqlen", shape.seqlen, kMostTokens);
  visit("nheads", shape.nheads, kMostExtent);
  visit("ngroups", shape.ngroups, kMostExtent);
  visit("headdim", shape.headdim, kMostExtent);
  visit("dstate", shape.dstate, kMostExtent);
}

DType read_dtype(JsonObject& object) {
  const std::string text = object.text("dtype");
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    if (text == name_of(dtype)) return dtype;
  }
  object.fail_value("dtype", "bf16, f16 or f32");
}

SsdForwardVariant read_variant(JsonObject& object) {
  const std::string text = object.text("variant");
  for (auto variant : {SsdForwardVariant::general, SsdForwardVariant::hopper}) {
    if (text == name_of(variant)) return variant;
  }
  object.fail_value("variant", "general or hopper");
}

bool is_flag(std::string_view name) {
  return name == "allow_tf32" || name == "packed" || name == "gated";
}

/// A word of parse_ssd_forward_shape as what a file would hold under its name.
json value_in(std::string_view name, std::string_view text) {
  if (name == "dtype") return text;
  if (is_flag(name)) return json(true);
  json value = json::parse(text, nullptr, false);
  check(value.is_number_integer(), "shape: {} is {}, expected an integer", name, in_quotes(text));
  return value;
}

}  // namespace

json to_json(const SsdForwardShape& shape) {
  json out = {{"dtype", name_of(shape.dtype)},
              {"allow_tf32", shape.allow_tf32},
              {"packed", shape.packed},
              {"gated", shape.gated}};
  visit_extents(shape,
                [&](const char* name, std::int64_t extent, std::int64_t) { out[name] = extent; });
  return out;
}

SsdForwardShape read_ssd_forward_shape(const json& value, const std::string& where) {
  JsonObject object(value, where);
  SsdForwardShape shape{.dtype = read_dtype(object),
                        .allow_tf32 = object.boolean("allow_tf32"),
                        .packed = object.boolean("packed"),
                        .gated = object.boolean("gated")};
  visit_extents(shape, [&](const char* name, std::int64_t& extent, std::int64_t most) {
    extent = object.integer(name, 1, most);
  });
  check(!shape.allow_tf32 || shape.dtype == DType::f32,
        "{}: allow_tf32 is given with {}, expected it with f32 only", where, name_of(shape.dtype));
  check(shape.nheads % shape.ngroups == 0, "{}: ngroups is {}, expected a divisor of the {} heads",
        where, shape.ngroups, shape.nheads);
  object.done();
  return shape;
}

json to_json(const SsdForwardChoice& choice) {
  json out = {{"variant", name_of(choice.variant)}};
  visit_fields(choice, [&](const char* name, auto field, std::int64_t) { out[name] = field; });
  return out;
}

SsdForwardChoice read_ssd_forward_choice(const json& value, const std::string& where) {
  JsonObject object(value, where);
  SsdForwardChoice choice{.variant = read_variant(object)};
  visit_fields(choice, [&]<typename Field>(const char* name, Field& field, std::int64_t most) {
    if constexpr (std::is_same_v<Field, bool>) {
      field = object.boolean(name);
    } else {
      field = object.integer(name, 1, most);
    }
  });
  object.done();
  return choice;
}

SsdForwardShape parse_ssd_forward_shape(std::string_view text) {
  json fields = json::object();
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const std::string_view name = word.substr(0, word.find('='));
    const bool flag = is_flag(name);
    check(flag == (name.size() == word.size()), "shape: found {}, expected {}", in_quotes(word),
          flag ? fmt::format("{} alone", name) : "NAME=VALUE, allow_tf32, packed or gated");
    const std::string_view value = flag ? std::string_view() : word.substr(name.size() + 1);
    check(!fields.contains(name), "shape: {} is given twice", in_quotes(name));
    fields[std::string(name)] = value_in(name, value);
  }
  const json defaults = {{"batch", 1},          {"ngroups", 1},    {"dtype", "bf16"},
                         {"allow_tf32", false}, {"packed", false}, {"gated", false}};
  for (const auto& [name, value] : defaults.items()) {
    if (!fields.contains(name)) fields[name] = value;
  }
  return read_ssd_forward_shape(fields, "shape");
}

std::string describe(const SsdForwardShape& s) {
  std::string out =
      fmt::format("{} {}, seqlen {}, nheads {}, headdim {}, dstate {}",
                  s.packed ? "packed" : "batch", s.batch, s.seqlen, s.nheads, s.headdim, s.dstate);
  if (s.ngroups != 1) out += fmt::format(", ngroups {}", s.ngroups);
  if (s.dtype != DType::bf16) out += fmt::format(", {}", name_of(s.dtype));
  if (s.allow_tf32) out += ", tf32 allowed";
  if (s.gated) out += ", gated";
  return out;
}

std::string describe(const SsdForwardChoice& choice) {
  std::string out(name_of(choice.variant));
  visit_fields(choice, [&]<typename Field>(const char* name, Field field, std::int64_t) {
    if constexpr (std::is_same_v<Field, bool>) {
      if (field) out += fmt::format(", {}", name);
    } else {
      out += fmt::format(", {} {}", name, field);
    }
  });
  return out;
}

}  // namespace adder::cuda
