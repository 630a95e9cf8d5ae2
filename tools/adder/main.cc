// The command line: parses, runs one subcommand, and turns every failure into one sentence and an
// exit code: 0 done, 1 failed, 2 wrong usage.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "adder/error.h"
#include "commands.h"
#include "output.h"
#include "process.h"
#include "version.h"

namespace adder::cli {
namespace {

constexpr const char* kDescription =
    "Adder runs state-space language models (Mamba, Mamba-2): it continues text, measures how well "
    "a\n"
    "model predicts it, and keeps the state of what it read in a small file to go on from.";

constexpr const char* kExamples = R"(Examples:
  adder generate -p "It was a dark and stormy night"    stream a story from the bundled model
  adder inspect -m path/to/mamba2-130m                  what a checkpoint holds
  adder bench model                                     how fast it runs on this machine

`adder COMMAND --help` tells what each command takes.)";

constexpr int kFailure = 1;
constexpr int kWrongUsage = 2;

/// Options in two columns, with their explanations wrapped.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }

  std::string make_usage(const CLI::App* app, std::string) const override {
    std::string path = app->get_name();
    for (const CLI::App* up = app->get_parent(); up != nullptr; up = up->get_parent()) {
      path.insert(0, up->get_name() + " ");
    }
    std::string arguments;
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional()) arguments += " " + make_option_usage(option);
    }
    const bool has_commands = !app->get_subcommands({}).empty();
    return fmt::format("\nUsage: {}{}{} [OPTIONS]\n", path, has_commands ? " COMMAND" : "",
                       arguments);
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string& value = option->get_option_text();
    return value.empty() ? value : " " + value;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description());
  }

 private:
  static constexpr std::size_t kColumn = 30;
  static constexpr std::size_t kWidth = 100;

  static std::string wrapped(const std::string& text) {
    std::string out;
    std::size_t room = kWidth - kColumn;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      const std::size_t length = end - begin;
      if (!out.empty() && length + 1 > room) {
        out += '\n';  // CLI11 indents what follows
        room = kWidth - kColumn;
      } else if (!out.empty()) {
        out += ' ';
        --room;
      }
      out += text.substr(begin, length);
      room -= std::min(room, length);
      begin = end + 1;
    }
    return out;
  }
};

/// "adder generate": the innermost command on the line, for the hint.
std::string command_path(const CLI::App& root) {
  std::string path = root.get_name();
  for (const CLI::App* app = &root; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    path += " " + app->get_name();
  }
  return path;
}

int wrong_usage(const CLI::App& root, std::string problem) {
  // A validator's message starts on a new line in some cases; it stays one sentence here.
  for (char& c : problem) c = c == '\n' ? ' ' : c;
  fmt::print(stderr, "adder: {} (see `{} --help`)\n", problem, command_path(root));
  return kWrongUsage;
}

int run(int argc, char** argv) {
  CLI::App root(kDescription, "adder");
  root.formatter(std::make_shared<HelpFormatter>());
  root.footer(kExamples);
  root.require_subcommand(0, 1);
  root.set_version_flag("--version", version_line(), "Show the version");
  root.set_help_flag("-h,--help", "Show this help");
  const std::vector<Command> commands = {add_generate(root), add_score(root),   add_logits(root),
                                         add_tokenize(root), add_inspect(root), add_convert(root),
                                         add_bench(root),    add_tune(root)};
  if (argc < 2) {
    fmt::print(stderr, "{}", root.help());
    return kWrongUsage;
  }
  for (const Command& command : commands) command.app->group("Commands");
  const std::string_view first = argv[1];
  const bool known = std::any_of(commands.begin(), commands.end(), [&](const Command& command) {
    return command.app->get_name() == first;
  });
  if (!known && !first.starts_with('-')) {
    return wrong_usage(root, fmt::format("there is no command '{}'", first));
  }
  try {
    root.parse(argc, argv);
    for (const Command& command : commands) {
      if (command.app->parsed()) return command.run();
    }
    return wrong_usage(root, "no command was given");
  } catch (const CLI::CallForHelp&) {
    const CLI::App* app = &root;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
    print(app->help());
    return 0;
  } catch (const CLI::CallForVersion&) {
    print(version_line() + "\n");
    return 0;
  } catch (const CLI::ParseError& error) {
    return wrong_usage(root, error.what());
  }
}

}  // namespace
}  // namespace adder::cli

int main(int argc, char** argv) {
  adder::cli::prepare_standard_streams();
  try {
    return adder::cli::run(argc, argv);
  } catch (const adder::cli::OutputClosed&) {
    return 0;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "adder: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "adder: {}\n", error.what());
  }
  return adder::cli::kFailure;
}
