#pragma once

#include <string>

#include "adder/error.h"

namespace adder::test {

/// What the adder::Error says that a call throws, or "no error".
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace adder::test
