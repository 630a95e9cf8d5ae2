#pragma once

// Names of tests that are run for several checkpoints.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace adder::test {

/// For INSTANTIATE_TEST_SUITE_P: the parameter, a folder's name, as gtest allows names to be.
struct CheckpointName {
  template <typename Parameter>
  std::string operator()(const ::testing::TestParamInfo<Parameter>& parameter) const {
    std::string name = parameter.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  }
};

}  // namespace adder::test
