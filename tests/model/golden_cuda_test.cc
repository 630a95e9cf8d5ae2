#include "tests/model/golden.h"
#include "tests/support/device.h"

namespace adder {

std::string golden_device() { return "cuda"; }

std::string why_no_golden_device() { return test::why_no_device(); }

}  // namespace adder
