#pragma once

#include <string>

namespace adder::cli {

/// "0.1.0"
std::string version();
/// The source's git commit at build time ("d4e1ccb", "d4e1ccb-dirty"), empty if unknown.
std::string commit();
/// "adder 0.1.0 (d4e1ccb-dirty)"
std::string version_line();
/// "g++ 12.2.0"
std::string compiler();

}  // namespace adder::cli
