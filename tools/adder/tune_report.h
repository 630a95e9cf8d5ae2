#pragma once

// What `adder tune` found, as JSON, as an entry of a tuning file, and as a table.

#include <string>

#include "bench/device_tuner.h"
#include "output.h"
#include "tune/tuning_file.h"

namespace adder::cli {

/// One shape's result, with all its candidates.
Json describe(const bench::DeviceTunable& tunable, const bench::TuningResult& result);

/// What a tuning file keeps of it.
tune::TuningEntry entry_of(const cuda::DeviceModel& device, const bench::DeviceTunable& tunable,
                           const bench::TuningResult& result);

/// What the built-in choices cost in comparison with the measured ones, over results of `describe`:
/// {"shapes", "max_loss_percent", "max_loss_shape", "mean_loss_percent"}.
Json summary_of(const Json& results);

/// "batch 4, ...: hopper, segments 4, warm_up, 23.1 us (built-in 24.0 us, 1.040 times that)".
std::string line_of(const Json& result);

/// All results and their summary; nothing of none.
std::string table_of(const Json& results, const Json& summary);

/// The candidates whose results differ from those of the built-in choice: shape and name of each.
std::vector<std::string> wrong_candidates(const Json& results);

}  // namespace adder::cli
