#pragma once

// The ways to compute ssd_forward on a CUDA device, one table entry each: a new one is a value of
// SsdForwardVariant with a name in ssd_forward.cc, an entry and a rule for the built-in choice in
// cuda.cc, and its fields in tuning_json.cc. Needs no CUDA header.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "ops/ssd_forward/ssd_forward.h"

namespace adder::cuda {

/// Arguments are checked before, and the choice is of this variant.
struct SsdForwardImplementation {
  /// Why it cannot take the arguments or the choice, as a sentence's end ("dstate is 7, expected a
  /// multiple of 8"), or nothing if it can.
  std::string (*refuses)(const SsdForwardArgs& args, const SsdForwardChoice& choice);
  std::size_t (*workspace_bytes)(const SsdForwardArgs& args, const SsdForwardChoice& choice);
  void (*run)(const SsdForwardArgs& args, const SsdForwardChoice& choice,
              std::span<std::byte> workspace, Stream stream);
};

/// Windows of chunks through chunk_cumsum, fwd_pass_state and compute_out.
namespace general {
SsdForwardChoice choose(const SsdForwardArgs& args);
std::string refuses(const SsdForwardArgs& args, const SsdForwardChoice& choice);
std::size_t workspace_bytes(const SsdForwardArgs& args, const SsdForwardChoice& choice);
void run(const SsdForwardArgs& args, const SsdForwardChoice& choice, std::span<std::byte> workspace,
         Stream stream);
/// Choices of this variant that may be the fastest for the arguments on their device; some of them
/// it may refuse. None if it does not take the arguments.
std::vector<SsdForwardChoice> candidates(const SsdForwardArgs& args);
}  // namespace general

/// One kernel on the tensor cores of compute capability 9.0.
namespace hopper {
SsdForwardChoice choose(const SsdForwardArgs& args);
std::string refuses(const SsdForwardArgs& args, const SsdForwardChoice& choice);
std::size_t workspace_bytes(const SsdForwardArgs& args, const SsdForwardChoice& choice);
void run(const SsdForwardArgs& args, const SsdForwardChoice& choice, std::span<std::byte> workspace,
         Stream stream);
/// Choices of this variant that may be the fastest for the arguments on their device; some of them
/// it may refuse. None if it does not take the arguments.
std::vector<SsdForwardChoice> candidates(const SsdForwardArgs& args);
}  // namespace hopper

/// All choices worth measuring, each of which the arguments allow, none twice; the built-in one is
/// the first. Throws what `validate` throws.
std::vector<SsdForwardChoice> ssd_forward_candidates(const SsdForwardArgs& args);

}  // namespace adder::cuda
