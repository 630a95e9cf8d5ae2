#pragma once

#include <string>
#include <vector>

#include "output.h"

namespace adder::cli {

/// A prompt as it was given.
struct Prompt {
  Json value;          ///< a text, or a list of token ids
  std::string source;  ///< where it stands, for errors
};

/// The texts of options.
std::vector<Prompt> prompts_of(const std::vector<std::string>& texts);

/// The prompts in a file, "-" for standard input. If the first line that is not empty begins with
/// `{`, each line is a JSON object whose "prompt" is a text or a list of token ids; else each line
/// is a text. Empty lines are none. Throws adder::Error that names file and line if one cannot be
/// read so, or if there is none.
std::vector<Prompt> read_prompts(const std::string& path);

}  // namespace adder::cli
