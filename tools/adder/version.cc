#include "version.h"

#include <fmt/format.h>

#include "commit.h"  // written by commit.cmake in the build folder

namespace adder::cli {

std::string version() { return ADDER_VERSION; }

std::string commit() { return ADDER_COMMIT; }

std::string version_line() {
  if (commit().empty()) return fmt::format("adder {}", version());
  return fmt::format("adder {} ({})", version(), commit());
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

}  // namespace adder::cli
