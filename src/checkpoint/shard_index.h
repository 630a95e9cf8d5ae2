#pragma once

#include <map>
#include <string>
#include <string_view>

namespace adder {

/// Parses `model.safetensors.index.json` or `pytorch_model.bin.index.json`: the `weight_map` from
/// tensor name to the name of the shard file that holds it. File names must be plain (no folder):
/// an index cannot point outside its own. `source` names the text in errors.
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     std::string_view source);

}  // namespace adder
