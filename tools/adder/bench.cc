// adder bench: the machine, one operation, or a whole model.

#include "bench.h"

#include <memory>

#include "commands.h"

namespace adder::cli {

Command add_bench(CLI::App& root) {
  CLI::App* app = root.add_subcommand("bench", "Measure this machine, an operation or a model");
  app->require_subcommand(0, 1);
  app->footer(
      "Examples:\n"
      "  adder bench machine\n"
      "  adder bench op all\n"
      "  adder bench model --random mamba2-130m --dtype bf16 --json result.json\n\n"
      "docs/benchmarks.md explains what is measured and the JSON it writes.");
  const auto kinds = std::make_shared<std::vector<Command>>(
      std::vector<Command>{add_bench_machine(*app), add_bench_op(*app), add_bench_model(*app)});
  return {app, [kinds] {
            for (const Command& kind : *kinds) {
              if (kind.app->parsed()) return kind.run();
            }
            throw CLI::RequiredError("machine, op or model");
          }};
}

}  // namespace adder::cli
