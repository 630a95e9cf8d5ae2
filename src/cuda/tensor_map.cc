#include "cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "core/check.h"
#include "cuda/check.h"

namespace adder::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's entry point, found at run time: nothing links against the driver's library.
Encode encode_function() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &result),
          "to find cuTensorMapEncodeTiled");
    adder::check(result == cudaDriverEntryPointSuccess && entry != nullptr,
                 "cuda: the driver has no cuTensorMapEncodeTiled, expected CUDA 12 or later");
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

constexpr std::int64_t kElementBytes = 2;

}  // namespace

bool can_map(const TensorMapShape& shape) {
  if (shape.data == nullptr || reinterpret_cast<std::uintptr_t>(shape.data) % 16 != 0) return false;
  for (std::int64_t extent : shape.extents) {
    if (extent < 1 || extent > (std::int64_t{1} << 31)) return false;
  }
  for (std::size_t i = 0; i < shape.strides.size(); ++i) {
    // The stride of a dimension of one element is never used; make_tensor_map replaces it.
    if (shape.extents[i + 1] == 1) continue;
    const std::int64_t bytes = shape.strides[i] * kElementBytes;
    if (bytes <= 0 || bytes % 16 != 0 || bytes >= (std::int64_t{1} << 40)) return false;
  }
  return true;
}

CUtensorMap make_tensor_map(std::string_view tensor, const TensorMapShape& shape) {
  std::array<cuuint64_t, 4> extents{};
  std::array<cuuint64_t, 3> strides_bytes{};
  std::array<cuuint32_t, 4> box{};
  const std::array<cuuint32_t, 4> steps{1, 1, 1, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    extents[i] = static_cast<cuuint64_t>(shape.extents[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
    if (i == 0) continue;
    const std::int64_t stride = shape.extents[i] == 1 ? 8 : shape.strides[i - 1];
    strides_bytes[i - 1] = static_cast<cuuint64_t>(stride * kElementBytes);
  }
  const auto type = shape.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const CUresult status = encode_function()(
      &map, type, 4, const_cast<void*>(shape.data), extents.data(), strides_bytes.data(),
      box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  adder::check(status == CUDA_SUCCESS, "cuda: the driver cannot map {} (status {})", tensor,
               static_cast<int>(status));
  return map;
}

}  // namespace adder::cuda
