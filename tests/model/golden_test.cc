#include "tests/model/golden.h"

namespace adder {

std::string golden_device() { return "cpu"; }
std::string why_no_golden_device() { return {}; }

}  // namespace adder
