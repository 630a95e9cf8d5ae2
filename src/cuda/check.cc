#include "cuda/check.h"

#include <filesystem>

#include "core/check.h"

namespace adder::cuda {

void fail_status(cudaError_t status, std::string_view doing, const std::source_location& where) {
  cudaGetLastError();
  fail("CUDA failed {}: {} ({}), at {}:{}", doing, cudaGetErrorString(status),
       cudaGetErrorName(status), std::filesystem::path(where.file_name()).filename().string(),
       where.line());
}

}  // namespace adder::cuda
