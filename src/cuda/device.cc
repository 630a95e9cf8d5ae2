#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <deque>
#include <mutex>

#include "core/check.h"
#include "cuda/check.h"

namespace adder::cuda {
namespace {

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "to read an attribute of the device");
  return value;
}

DeviceProperties read_properties(int index) {
  cudaDeviceProp raw{};
  check(cudaGetDeviceProperties(&raw, index), "to read the properties of the device");
  DeviceProperties out;
  out.name = raw.name;
  out.compute_capability = 10 * raw.major + raw.minor;
  out.multiprocessors = raw.multiProcessorCount;
  out.l2_bytes = raw.l2CacheSize;
  out.memory_bytes = static_cast<std::int64_t>(raw.totalGlobalMem);
  out.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  check(cudaDriverGetVersion(&out.driver_version), "to read the driver's version");
  check(cudaRuntimeGetVersion(&out.runtime_version), "to read the runtime's version");
  return out;
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::string why_no_device() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return "no NVIDIA driver is loaded";
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return cudaGetErrorString(status);
  }
  return count == 0 ? "the driver lists no device" : "";
}

const DeviceProperties& properties(int index) {
  static std::mutex mutex;
  static std::deque<DeviceProperties> known;  // references stay valid as it grows
  const int count = device_count();
  adder::check(count > 0, "cuda: there is no device {}: {}", index, why_no_device());
  adder::check(index >= 0 && index < count,
               "cuda: there is no device {}, expected a number from 0 to {}", index, count - 1);
  const std::lock_guard lock(mutex);
  while (known.size() <= static_cast<std::size_t>(index)) {
    known.push_back(read_properties(static_cast<int>(known.size())));
  }
  return known[static_cast<std::size_t>(index)];
}

int current_device() {
  int index = 0;
  check(cudaGetDevice(&index), "to name the current device");
  return index;
}

void set_device(int index) { check(cudaSetDevice(index), "to select the device"); }

DeviceGuard::DeviceGuard(int index) : before_(current_device()), index_(index) {
  if (index_ != before_) set_device(index_);
}

DeviceGuard::~DeviceGuard() {
  if (index_ != before_) cudaSetDevice(before_);  // it was the device before: nothing can go wrong
}

void check_current(std::string_view op, std::string_view argument, const ConstTensorView& view) {
  adder::check(view.device.type == DeviceType::cuda,
               "{}: {} is in {}, expected it in memory of a CUDA device", op, argument,
               place_string(view.device));
  const int current = current_device();
  adder::check(view.device.index == current,
               "{}: {} is in {}, expected it in memory of the current CUDA device, {}", op,
               argument, place_string(view.device), current);
}

bool is_idle(Stream stream) {
  const cudaError_t status = cudaStreamQuery(stream);
  if (status == cudaErrorNotReady) return false;
  check(status, "in work on the device");
  return true;
}

void synchronize(Stream stream) { check(cudaStreamSynchronize(stream), "in work on the device"); }

}  // namespace adder::cuda
