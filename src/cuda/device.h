#pragma once

// NVIDIA devices as the rest of the library sees them; needs no CUDA header.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "adder/cuda_device.h"
#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"

namespace adder::cuda {

struct DeviceProperties : DeviceModel {
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t shared_bytes_per_block = 0;  ///< dynamic limit after opting in
  int driver_version = 0;                   ///< 13000 for CUDA 13.0
  int runtime_version = 0;
};

/// Devices that can be used; 0 if there is no driver.
int device_count();

/// Why `device_count()` is 0, as a sentence without its end: "no NVIDIA driver is loaded".
std::string why_no_device();

/// Of device `index`, looked up once per device. Throws if there is none.
const DeviceProperties& properties(int index);

/// The calling thread's device.
int current_device();
void set_device(int index);

/// Makes a device the calling thread's for as long as the guard lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_;
  int index_;
};

/// The view is in memory of the calling thread's device, on which kernels are launched: for entries
/// that run on the device.
void check_current(std::string_view op, std::string_view argument, const ConstTensorView& view);

/// Waits for everything that was put on the stream; throws if any of it failed.
void synchronize(Stream stream);
/// Whether everything that was put on the stream is done; throws if any of it failed.
bool is_idle(Stream stream);

}  // namespace adder::cuda
