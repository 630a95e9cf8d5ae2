#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/workspace.h"
#include "cuda/device.h"
#include "ops/ssd_forward/cuda_variants.h"
#include "ops/ssd_forward/tuning.h"

namespace adder::cuda {
namespace {

constexpr auto kOp = "ssd_forward";

// In the order of SsdForwardVariant.
constexpr std::array kImplementations{
    SsdForwardImplementation{general::refuses, general::workspace_bytes, general::run},
    SsdForwardImplementation{hopper::refuses, hopper::workspace_bytes, hopper::run},
};

const SsdForwardImplementation& implementation(SsdForwardVariant variant) {
  const auto index = static_cast<std::size_t>(variant);
  check(index < kImplementations.size(), "ssd_forward: there is no variant {}", index);
  return kImplementations[index];
}

// The implementation of a choice, once it is known to take the arguments.
const SsdForwardImplementation& checked(const SsdForwardArgs& args,
                                        const SsdForwardChoice& choice) {
  const SsdForwardImplementation& chosen = implementation(choice.variant);
  const std::string reason = chosen.refuses(args, choice);
  adder::check(reason.empty(), "ssd_forward: the variant {} does not take this: {}",
               name_of(choice.variant), reason);
  return chosen;
}

void check_arguments(const SsdForwardArgs& args) {
  validate(args);
  check_current(kOp, "x", args.x);
}

bool takes(const SsdForwardArgs& args, const SsdForwardChoice& choice) {
  return implementation(choice.variant).refuses(args, choice).empty();
}

// Arguments are checked before.
SsdForwardChoice built_in_choice(const SsdForwardArgs& args) {
  const bool fused = hopper::refuses(args, SsdForwardChoice{}).empty();
  return fused ? hopper::choose(args) : general::choose(args);
}

}  // namespace

SsdForwardDecision choose_ssd_forward(const SsdForwardArgs& args) {
  check_arguments(args);
  const auto tuned = installed_ssd_forward_choice(properties(args.x.device.index), args);
  // One measured at a length nearby, or with other strides, may not do.
  if (tuned && takes(args, *tuned)) return {.choice = *tuned, .tuned = true};
  return {.choice = built_in_choice(args)};
}

SsdForwardChoice built_in_ssd_forward_choice(const SsdForwardArgs& args) {
  check_arguments(args);
  return built_in_choice(args);
}

std::vector<SsdForwardChoice> ssd_forward_candidates(const SsdForwardArgs& args) {
  std::vector<SsdForwardChoice> out{built_in_ssd_forward_choice(args)};
  for (const auto& candidates : {hopper::candidates(args), general::candidates(args)}) {
    for (const SsdForwardChoice& choice : candidates) {
      const bool is_new = std::find(out.begin(), out.end(), choice) == out.end();
      if (is_new && takes(args, choice)) out.push_back(choice);
    }
  }
  return out;
}

std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args) {
  return ssd_forward_workspace_bytes(args, choose_ssd_forward(args).choice);
}

std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args,
                                        const SsdForwardChoice& choice) {
  check_arguments(args);
  return checked(args, choice).workspace_bytes(args, choice);
}

void ssd_forward(const SsdForwardArgs& args, std::span<std::byte> workspace, Stream stream) {
  ssd_forward(args, choose_ssd_forward(args).choice, workspace, stream);
}

void ssd_forward(const SsdForwardArgs& args, const SsdForwardChoice& choice,
                 std::span<std::byte> workspace, Stream stream) {
  check_workspace(kOp, workspace, ssd_forward_workspace_bytes(args, choice));
  checked(args, choice).run(args, choice, workspace, stream);
}

}  // namespace adder::cuda
