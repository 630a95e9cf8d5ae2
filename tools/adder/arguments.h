#pragma once

// What the subcommands' options have in common: how they are declared, checked and shown.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace adder::cli {

/// A subcommand: its parser, and what it does once the parser has filled its options in. `run`
/// returns the exit code.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

/// `--name=VALUE` must be a whole number from `low` to `high` (shown so in the message).
CLI::Validator whole_number(std::int64_t low,
                            std::int64_t high = std::numeric_limits<std::int64_t>::max());
/// An unsigned 64-bit number.
CLI::Validator seed_number();
/// `--name=VALUE` must be a number from `low` to `high`; not NaN.
CLI::Validator real_number(double low, double high);
/// One of the words.
CLI::Validator one_of(std::vector<std::string> words);
/// A list of token ids, see parse_ids.
CLI::Validator token_ids();

/// "cpu", "cuda" or "cuda:N".
CLI::Validator device_name();

/// The token ids in "1,2,3" (or "1 2 3"). Throws adder::Error if it is anything else.
std::vector<int> parse_ids(const std::string& text);

}  // namespace adder::cli
