#include <array>
#include <string>

#include "core/check.h"
#include "core/workspace.h"
#include "cuda/device.h"
#include "ops/ssd_forward/cuda_variants.h"

namespace adder::cuda {
namespace {

constexpr auto kOp = "ssd_forward";

// In the order of SsdForwardVariant.
constexpr std::array kImplementations{
    SsdForwardImplementation{"general", general::refuses, general::workspace_bytes, general::run},
    SsdForwardImplementation{"hopper", hopper::refuses, hopper::workspace_bytes, hopper::run},
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
  adder::check(reason.empty(), "ssd_forward: the variant {} does not take this: {}", chosen.name,
               reason);
  return chosen;
}

void check_arguments(const SsdForwardArgs& args) {
  validate(args);
  check_current(kOp, "x", args.x);
}

}  // namespace

std::string_view name_of(SsdForwardVariant variant) { return implementation(variant).name; }

SsdForwardChoice choose_ssd_forward(const SsdForwardArgs& args) {
  check_arguments(args);
  const bool fused = hopper::refuses(args, SsdForwardChoice{}).empty();
  return fused ? hopper::choose(args) : general::choose(args);
}

std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args) {
  return ssd_forward_workspace_bytes(args, choose_ssd_forward(args));
}

std::size_t ssd_forward_workspace_bytes(const SsdForwardArgs& args,
                                        const SsdForwardChoice& choice) {
  check_arguments(args);
  return checked(args, choice).workspace_bytes(args, choice);
}

void ssd_forward(const SsdForwardArgs& args, std::span<std::byte> workspace, Stream stream) {
  ssd_forward(args, choose_ssd_forward(args), workspace, stream);
}

void ssd_forward(const SsdForwardArgs& args, const SsdForwardChoice& choice,
                 std::span<std::byte> workspace, Stream stream) {
  check_workspace(kOp, workspace, ssd_forward_workspace_bytes(args, choice));
  checked(args, choice).run(args, choice, workspace, stream);
}

}  // namespace adder::cuda
