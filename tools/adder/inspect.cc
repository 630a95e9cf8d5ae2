// adder inspect: what a checkpoint holds, without loading its weights.

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "commands.h"
#include "core/check.h"
#include "model_options.h"
#include "models/network.h"
#include "output.h"

namespace adder::cli {
namespace {

struct Options {
  ModelOptions model;
  bool tensors = false;
  bool json = false;
};

/// A number as JSON; infinity, which JSON lacks, as a word.
Json json_number(float value) {
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  // The shortest decimal that reads back as this float: 1e-05, not its double expansion.
  return Json::parse(fmt::format("{}", value));
}

Json or_null(const std::optional<int>& id) { return id ? Json(*id) : Json(); }

void add_mamba1(const ModelConfig& config, Json& out) {
  out["dt_rank"] = config.dt_rank;
  if (config.architecture == Architecture::falcon_mamba) {
    out["mixer_norm_epsilon"] = json_number(config.mixer_norm_epsilon);
  }
}

void add_mamba2(const ModelConfig& config, Json& out) {
  out["nheads"] = config.nheads;
  out["headdim"] = config.headdim;
  out["ngroups"] = config.ngroups;
  out["chunk_size"] = config.chunk_size;
  out["dt_min"] = json_number(config.dt_min);
  out["dt_max"] = json_number(config.dt_max);
  out["gated_norm"] = config.gated_norm;
  out["norm_before_gate"] = config.norm_before_gate;
  out["d_has_headdim"] = config.d_has_headdim;
  out["d_mlp"] = config.d_mlp;
}

Json describe_config(const ModelConfig& config) {
  Json out = {{"format", config.format},         {"architecture", name_of(config.architecture)},
              {"d_model", config.d_model},       {"n_layer", config.n_layer},
              {"vocab_size", config.vocab_size}, {"padded_vocab_size", config.padded_vocab_size},
              {"d_inner", config.d_inner},       {"d_state", config.d_state},
              {"d_conv", config.d_conv},         {"conv_dim", config.conv_dim()}};
  config.architecture == Architecture::mamba2 ? add_mamba2(config, out) : add_mamba1(config, out);
  out["d_intermediate"] = config.d_intermediate;
  out["conv_bias"] = config.conv_bias;
  out["proj_bias"] = config.proj_bias;
  out["tie_embeddings"] = config.tie_embeddings;
  out["norm_epsilon"] = json_number(config.norm_epsilon);
  out["residual_in_fp32"] = config.residual_in_fp32;
  out["bos_token_id"] = or_null(config.bos_token_id);
  out["eos_token_ids"] = config.eos_token_ids;
  out["pad_token_id"] = or_null(config.pad_token_id);
  return out;
}

Json describe_weights(const Checkpoint& checkpoint) {
  std::map<std::string, std::int64_t> dtypes;
  for (const std::string& name : checkpoint.names()) {
    std::int64_t numel = 1;
    for (const std::int64_t extent : checkpoint.shape(name)) numel *= extent;
    dtypes[std::string(checkpoint.stored_format(name))] += numel;
  }
  Json files = Json::array();
  for (const std::filesystem::path& file : checkpoint.files()) {
    files.push_back({{"name", file.filename().string()},
                     {"bytes", static_cast<std::int64_t>(std::filesystem::file_size(file))}});
  }
  return {{"parameter_count", checkpoint.parameter_count()},
          {"bytes", checkpoint.total_bytes()},
          {"parameters_by_dtype", dtypes},
          {"state_bytes", state_bytes(checkpoint.config())},
          {"files", files}};
}

Json describe_tensors(const Checkpoint& checkpoint) {
  Json out = Json::array();
  for (const std::string& name : checkpoint.names()) {
    out.push_back({{"name", name},
                   {"dtype", checkpoint.stored_format(name)},
                   {"shape", checkpoint.shape(name)},
                   {"bytes", checkpoint.stored_bytes(name)}});
  }
  return out;
}

/// One aligned line per entry: numbers grouped, bytes with their unit.
std::string as_text(const Json& description) {
  std::string out;
  for (const auto& [name, value] : description.items()) {
    std::string shown;
    if (name == "bytes" || name == "state_bytes") {
      shown = fmt::format("{} ({})", grouped(value.get<std::int64_t>()),
                          human_bytes(value.get<double>()));
    } else if (value.is_number_integer()) {
      shown = grouped(value.get<std::int64_t>());
    } else if (name == "files") {
      for (const Json& file : value) {
        shown += (shown.empty() ? "" : ", ") + file["name"].get<std::string>();
      }
    } else if (name == "parameters_by_dtype") {
      for (const auto& [dtype, count] : value.items()) {
        shown += (shown.empty() ? "" : ", ") + dtype + " " + grouped(count.get<std::int64_t>());
      }
    } else if (name == "tensors") {
      for (const Json& tensor : value) {
        shown += fmt::format("\n  {:<40} {:<5} {}", tensor["name"].get<std::string>(),
                             tensor["dtype"].get<std::string>(), tensor["shape"].dump());
      }
    } else {
      shown = value.is_string() ? value.get<std::string>() : value.is_null() ? "-" : value.dump();
    }
    out += fmt::format("{:<20} {}\n", name, shown);
  }
  return out;
}

int run(const Options& options) {
  const std::filesystem::path path = options.model.resolved_path();
  const Checkpoint checkpoint = Checkpoint::open(path);
  Json description = {{"path", checkpoint.directory().string()}};
  description.update(describe_config(checkpoint.config()));
  description.update(describe_weights(checkpoint));
  if (options.tensors) description["tensors"] = describe_tensors(checkpoint);
  options.json ? print_json(description) : print(as_text(description));
  return 0;
}

}  // namespace

Command add_inspect(CLI::App& root) {
  CLI::App* app = root.add_subcommand("inspect", "Show what a checkpoint holds");
  app->footer(
      "Reads the configuration and the tensors' names and shapes; weights stay where they are.\n"
      "`state_bytes` is what one sequence needs, however long it is.\n\n"
      "Example:\n"
      "  adder inspect -m path/to/mamba2-130m --json");
  auto options = std::make_shared<Options>();
  options->model.add_path_to(*app);
  app->add_flag("--tensors", options->tensors, "List every tensor too");
  app->add_flag("--json", options->json, "Print one JSON object");
  return {app, [options] { return run(*options); }};
}

}  // namespace adder::cli
