#include "cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/check.h"
#include "cuda/device.h"

namespace adder::cuda {
namespace {

// ---- the library --------------------------------------------------------------------------------

// The functions used here, with the types of the header.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

// Where the dynamic linker looks, then where CUDA toolkits are.
void* open_library(const std::string& name) {
  std::vector<std::string> paths{name};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* folder = std::getenv(variable)) {
      paths.push_back(fmt::format("{}/lib64/{}", folder, name));
    }
  }
  paths.push_back("/usr/local/cuda/lib64/" + name);
  for (const std::string& path : paths) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  fail(
      "cuda: {} was not found, expected it where the dynamic linker looks, in $CUDA_HOME/lib64 or "
      "in /usr/local/cuda/lib64: matrix products on a device need cuBLASLt {}",
      name, CUBLAS_VER_MAJOR);
}

Library load_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* handle = open_library(name);
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
    adder::check(function != nullptr, "cuda: {} has no {}, expected that of CUDA {}", name, symbol,
                 CUBLAS_VER_MAJOR);
  };
  Library out{};
  find(out.create, "cublasLtCreate");
  find(out.status_string, "cublasLtGetStatusString");
  find(out.matmul, "cublasLtMatmul");
  find(out.get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(out.desc_create, "cublasLtMatmulDescCreate");
  find(out.desc_destroy, "cublasLtMatmulDescDestroy");
  find(out.desc_set, "cublasLtMatmulDescSetAttribute");
  find(out.layout_create, "cublasLtMatrixLayoutCreate");
  find(out.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(out.preference_create, "cublasLtMatmulPreferenceCreate");
  find(out.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(out.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  return out;
}

// Never unloaded: plans of other threads may be in use until the process ends.
const Library& library() {
  static const Library loaded = load_library();
  return loaded;
}

void check_status(cublasStatus_t status, std::string_view doing) {
  adder::check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt failed {}: {}", doing,
               library().status_string(status));
}

// ---- plans --------------------------------------------------------------------------------------

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// Bytes that an address is a multiple of; beyond 256 no algorithm asks.
std::uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// All that the choice of an algorithm depends on.
struct Key {
  int device;
  DType dtype, y_dtype;
  std::int64_t rows, out, in, x_stride, weight_stride, y_stride;
  std::uint32_t x_alignment, weight_alignment, y_alignment;
  std::size_t workspace;

  auto operator<=>(const Key&) const = default;
};

template <typename T, typename Destroy>
std::shared_ptr<T> owned(T* raw, Destroy destroy) {
  return {raw, [destroy](T* p) { destroy(p); }};
}

// cuBLASLt counts columns first: yᵀ (out × rows) = W · xᵀ, where W as it lies in memory is the
// transpose of what it is to cuBLASLt.
struct Plan {
  cublasLtHandle_t handle;
  std::shared_ptr<cublasLtMatmulDescOpaque_t> desc;
  std::shared_ptr<cublasLtMatrixLayoutOpaque_t> weight, x, y;
  cublasLtMatmulAlgo_t algorithm;
};

std::shared_ptr<cublasLtMatrixLayoutOpaque_t> layout(DType dtype, std::int64_t length,
                                                     std::int64_t count, std::int64_t stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  check_status(library().layout_create(&raw, data_type(dtype), static_cast<std::uint64_t>(length),
                                       static_cast<std::uint64_t>(count), stride),
               "to describe a matrix");
  return owned(raw, library().layout_destroy);
}

std::shared_ptr<cublasLtMatmulDescOpaque_t> describe_product(DType dtype) {
  cublasLtMatmulDesc_t raw = nullptr;
  // Pedantic: no environment variable may turn f32 into TF32.
  const auto compute = dtype == DType::f32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  check_status(library().desc_create(&raw, compute, CUDA_R_32F), "to describe a product");
  auto desc = owned(raw, library().desc_destroy);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check_status(
      library().desc_set(raw, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
      "to describe a product");
  return desc;
}

std::shared_ptr<cublasLtMatmulPreferenceOpaque_t> preference_of(const Key& key) {
  cublasLtMatmulPreference_t raw = nullptr;
  check_status(library().preference_create(&raw), "to state a preference");
  auto preference = owned(raw, library().preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    check_status(library().preference_set(raw, which, &value, sizeof(value)),
                 "to state a preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{key.workspace});
  // Parts of a sum are added as they are, not once they are rounded to the type of y.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.y_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.y_alignment);
  return preference;
}

Plan make_plan(const Key& key, cublasLtHandle_t handle) {
  Plan plan{.handle = handle,
            .desc = describe_product(key.dtype),
            .weight = layout(key.dtype, key.in, key.out, key.weight_stride),
            .x = layout(key.dtype, key.in, key.rows, key.x_stride),
            .y = layout(key.y_dtype, key.out, key.rows, key.y_stride),
            .algorithm = {}};
  const auto preference = preference_of(key);
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status =
      library().get_heuristic(handle, plan.desc.get(), plan.weight.get(), plan.x.get(),
                              plan.y.get(), plan.y.get(), preference.get(), 1, &result, &count);
  const bool found =
      status == CUBLAS_STATUS_SUCCESS && count == 1 && result.state == CUBLAS_STATUS_SUCCESS;
  adder::check(found, "cuBLASLt has no algorithm for x ({}, {}) times a weight ({}, {}) of {} ({})",
               key.rows, key.in, key.out, key.in, name_of(key.dtype),
               library().status_string(status == CUBLAS_STATUS_SUCCESS ? result.state : status));
  plan.algorithm = result.algo;
  return plan;
}

// Made once for each key and kept: prompts have few lengths, and the question costs as much as a
// small product.
class Plans {
 public:
  Plan find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_.emplace(key, make_plan(key, handle_of(key.device))).first->second;
  }

 private:
  static constexpr std::size_t kMostPlans = 4096;

  // Handles live as long as the process, like the library.
  cublasLtHandle_t handle_of(int device) {
    cublasLtHandle_t& handle = handles_[device];
    if (handle == nullptr) check_status(library().create(&handle), "to begin");
    return handle;
  }

  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Key, Plan> plans_;
};

Plans& plans() {
  // Never destroyed: the library may be gone by then.
  static Plans& all = *new Plans;
  return all;
}

}  // namespace

void multiply(const MatrixProduct& p, std::span<std::byte> workspace, Stream stream) {
  if (p.rows == 0 || p.out == 0) return;
  const Plan plan = plans().find({.device = current_device(),
                                  .dtype = p.dtype,
                                  .y_dtype = p.y_dtype,
                                  .rows = p.rows,
                                  .out = p.out,
                                  .in = p.in,
                                  .x_stride = p.x_stride,
                                  .weight_stride = p.weight_stride,
                                  .y_stride = p.y_stride,
                                  .x_alignment = alignment_of(p.x),
                                  .weight_alignment = alignment_of(p.weight),
                                  .y_alignment = alignment_of(p.y),
                                  .workspace = workspace.size()});
  const float alpha = 1.0F;
  const float beta = p.accumulate ? 1.0F : 0.0F;
  check_status(library().matmul(plan.handle, plan.desc.get(), &alpha, p.weight, plan.weight.get(),
                                p.x, plan.x.get(), &beta, p.y, plan.y.get(), p.y, plan.y.get(),
                                &plan.algorithm, workspace.data(), workspace.size(), stream),
               "to multiply matrices");
}

}  // namespace adder::cuda
