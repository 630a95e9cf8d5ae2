// adder convert: a checkpoint with weights of 8 or 4 bits.

#include "adder/convert.h"

#include <fmt/format.h>

#include <memory>
#include <numbers>

#include "commands.h"
#include "core/check.h"
#include "model_options.h"
#include "output.h"
#include "progress.h"
#include "text_input.h"

namespace adder::cli {
namespace {

constexpr const char* kExplanation =
    R"(Writes a folder that every command takes with -m: large matrices as integers of 8 or 4 bits,
of which each 32 in a row share a scale, everything else as it was. It is multiplied with where it
is mapped: nothing is unpacked to load it. With --score, a text that the model was not trained on,
the model and the result are asked how well they predict it. A GGUF file is converted too, and
brings its tokenizer along.

Examples:
  adder convert --format int4 --out mamba2-130m-int4 -m path/to/mamba2-130m
  adder convert --format int8 --out books-int8 --score held-out.txt)";

struct Options {
  ModelOptions model;
  std::filesystem::path out;
  std::string format = "int8";
  std::string score;
  int nthreads = 0;
  bool json = false;
};

double bits_per_byte(const std::filesystem::path& path, const std::string& text, int nthreads,
                     const char* label) {
  constexpr std::size_t kPieceTokens = 512;
  const Model model = Model::load(path, {.nthreads = nthreads});
  TokenReader reader(model.tokenizer(), TextReader::of_file(text), {}, std::nullopt);
  Session session = model.new_session();
  Progress bar(label);
  double nats = 0;
  std::int64_t scored = 0;
  std::int64_t tokens = 0;
  for (std::vector<int> ids; reader.next(ids, kPieceTokens);) {
    tokens += static_cast<std::int64_t>(ids.size());
    for (double nll : session.score(ids)) {
      nats += nll;
      ++scored;
    }
    bar.update(reader.fraction());
  }
  check(scored > 0, "{} has {} tokens, expected at least two: the first one has no prediction",
        text, tokens);
  const double bytes_per_token =
      static_cast<double>(reader.text_bytes()) / static_cast<double>(tokens);
  return nats / static_cast<double>(scored) / std::numbers::ln2 / bytes_per_token;
}

int run(const Options& options) {
  const std::filesystem::path from = options.model.resolved_path();
  ConvertReport report;
  {
    Progress bar("converting");
    report = convert(from, options.out,
                     {.format = options.format == "int8" ? WeightFormat::int8 : WeightFormat::int4,
                      .nthreads = options.nthreads,
                      .progress = [&bar](double fraction) { bar.update(fraction); }});
  }
  Json out = {{"bytes_before", report.bytes_before},
              {"bytes_after", report.bytes_after},
              {"matrices", report.matrices},
              {"format", options.format}};
  std::string text = fmt::format(
      "{} matrices as {}: {} -> {} ({:.1f} %)\n", report.matrices, options.format,
      human_bytes(static_cast<double>(report.bytes_before)),
      human_bytes(static_cast<double>(report.bytes_after)),
      100 * static_cast<double>(report.bytes_after) / static_cast<double>(report.bytes_before));
  if (!options.score.empty()) {
    const double before = bits_per_byte(from, options.score, options.nthreads, "scoring before");
    const double after =
        bits_per_byte(options.out, options.score, options.nthreads, "scoring after");
    out["bits_per_byte_before"] = before;
    out["bits_per_byte_after"] = after;
    text += fmt::format("bits per byte: {:.5f} -> {:.5f} ({:+.2f} %)\n", before, after,
                        100 * (after / before - 1));
  }
  options.json ? print_json(out) : print(text);
  return 0;
}

}  // namespace

Command add_convert(CLI::App& root) {
  CLI::App* app = root.add_subcommand("convert", "Write a checkpoint with weights of 8 or 4 bits");
  app->footer(kExplanation);
  auto options = std::make_shared<Options>();
  options->model.add_path_to(*app);
  app->add_option("-o,--out", options->out, "The folder to write, without weights so far")
      ->option_text("DIR")
      ->required();
  app->add_option("--format", options->format, "int8 or int4 (default: int8)")
      ->option_text("FORMAT")
      ->check(one_of({"int8", "int4"}));
  app->add_option("--score", options->score,
                  "Say how well the model and the result predict this text")
      ->option_text("FILE");
  app->add_option("-t,--threads", options->nthreads,
                  "Threads (default: all cores this process may use)")
      ->option_text("N")
      ->check(whole_number(0, 1024));
  app->add_flag("--json", options->json, "Print one JSON object");
  return {app, [options] { return run(*options); }};
}

}  // namespace adder::cli
