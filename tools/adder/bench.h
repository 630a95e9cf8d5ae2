#pragma once

#include "arguments.h"

namespace adder::cli {

// The kinds of `adder bench`, one per file.
Command add_bench_machine(CLI::App& bench);
Command add_bench_op(CLI::App& bench);
Command add_bench_model(CLI::App& bench);

}  // namespace adder::cli
