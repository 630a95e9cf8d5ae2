#pragma once

// Entries of tuning files for tests.

#include <string>

#include "adder/error.h"
#include "ops/ssd_forward/tuning.h"
#include "tests/support/error_of.h"
#include "tune/tuning_file.h"

namespace adder::test {

inline const cuda::DeviceModel kH200{"NVIDIA H200", 90, 132};
inline const cuda::DeviceModel kA100{"NVIDIA A100", 80, 108};

inline cuda::SsdForwardShape ssd_shape(std::int64_t seqlen) {
  return {.batch = 4, .nheads = 8, .headdim = 64, .dstate = 128, .seqlen = seqlen};
}

inline tune::TuningEntry ssd_entry(std::int64_t seqlen, std::int64_t segments,
                                   const cuda::DeviceModel& device = kH200) {
  return {.device = device,
          .operation = "ssd_forward",
          .kernel_version = cuda::kSsdForwardKernelVersion,
          .shape = cuda::to_json(ssd_shape(seqlen)),
          .choice = cuda::to_json(cuda::SsdForwardChoice{.variant = cuda::SsdForwardVariant::hopper,
                                                         .segments = segments}),
          .measured = {{"median_s", 1e-4}}};
}

}  // namespace adder::test
