#pragma once

// What the two ways to run `adder generate` share: one prompt, whose text is streamed, and several
// prompts, whose texts are generated together.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "adder/model.h"
#include "model_options.h"
#include "text_input.h"

namespace adder::cli {

struct GenerateArguments {
  ModelOptions model;
  std::vector<std::string> texts;  ///< of each -p
  TextOptions prompt;              ///< -f, --ids, or the only -p
  std::string prompts_file;
  std::int64_t batch = 64;
  GenerateOptions generate;
  std::optional<std::uint64_t> seed;
  bool echo = false;
  bool no_echo = false;
  bool ignore_eos = false;
  bool json = false;
  std::string save_state;
  std::string load_state;

  bool has_several_prompts() const { return texts.size() > 1 || !prompts_file.empty(); }
};

/// What a text without a beginning begins with. Throws adder::Error if the model names no such
/// token.
int first_token(const Model& model);

/// Continues several prompts and prints a line of JSON for each, in their order. Returns the exit
/// code.
int generate_batch(const GenerateArguments& arguments);

}  // namespace adder::cli
