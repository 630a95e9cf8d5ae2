#include "checkpoint/shard_index.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json_document.h"
#include "core/quote.h"

namespace adder {

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     std::string_view source) {
  const nlohmann::json document = parse_json_object(text, source);
  const auto found = document.find("weight_map");
  check(found != document.end() && found->is_object() && !found->empty(),
        "{} has no weight_map, expected an object from tensor names to file names", source);
  std::map<std::string, std::string> shards;
  for (const auto& [name, file] : found->items()) {
    check(file.is_string(), "{}: the file of tensor {} is a JSON {}, expected a string", source,
          in_quotes(name), file.type_name());
    const auto& text_value = file.get_ref<const std::string&>();
    const bool plain = !text_value.empty() && text_value != "." && text_value != ".." &&
                       text_value.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    check(plain, "{}: the file of tensor {} is {}, expected the plain name of a file beside it",
          source, in_quotes(name), in_quotes(text_value));
    shards.emplace(name, text_value);
  }
  return shards;
}

}  // namespace adder
