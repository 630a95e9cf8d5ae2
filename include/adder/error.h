#pragma once

#include <stdexcept>
#include <string>

namespace adder {

/// The one exception type of the library. `what()` is a single sentence that names the operation,
/// file, tensor or argument, what was found, and what was expected.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace adder
