#pragma once

#include "arguments.h"

namespace adder::cli {

// One per file of the same name.
Command add_generate(CLI::App& root);
Command add_score(CLI::App& root);
Command add_logits(CLI::App& root);
Command add_tokenize(CLI::App& root);
Command add_inspect(CLI::App& root);
Command add_convert(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_tune(CLI::App& root);

}  // namespace adder::cli
