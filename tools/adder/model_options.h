#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "adder/model.h"

namespace adder::cli {

/// Which model a subcommand works on, and how it is held and fed: -m, --device, --dtype,
/// --state-dtype, --piece, -t.
struct ModelOptions {
  std::string path;  ///< empty: the bundled model
  std::string device = "cpu";
  std::string dtype = "f32";
  std::string state_dtype = "f32";
  std::int64_t piece_tokens = 0;
  int nthreads = 0;

  void add_path_to(CLI::App& app);
  void add_to(CLI::App& app);

  /// The checkpoint that was asked for, or the bundled one: what the environment variable
  /// ADDER_MODEL names, else models/books-11m beside the program (installed or in its build tree)
  /// or in the current folder. Throws adder::Error that says where it looked.
  std::filesystem::path resolved_path() const;

  LoadOptions load_options() const;
  /// Loads it, with a progress bar.
  Model load() const;
};

}  // namespace adder::cli
