#include "cuda/memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>

#include "core/check.h"
#include "cuda/check.h"
#include "cuda/device.h"

namespace adder::cuda {
namespace {

// Elements from the first to the last that a strided view covers.
std::int64_t extent(const ConstTensorView& view) {
  if (view.numel() == 0) return 0;
  std::int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.dim(i) - 1) * view.stride(i);
  return last + 1;
}

}  // namespace

std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), fmt::format("to allocate {} bytes on the device", bytes));
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

std::shared_ptr<std::byte> allocate_shared_host(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
        fmt::format("to allocate {} bytes of host memory for the device", bytes));
  std::memset(memory, 0, bytes);
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFreeHost(p); }};
}

Tensor empty(DType dtype, std::span<const std::int64_t> dims) {
  TensorView view(nullptr, dtype, dims, {DeviceType::cuda, current_device()});
  auto memory = allocate(static_cast<std::size_t>(view.size_bytes()));
  view.data = memory.get();
  return {view, memory};
}

Tensor to_device(const ConstTensorView& host) {
  if (!host.defined()) return {};
  const auto bytes = static_cast<std::size_t>(extent(host)) * size_of(host.dtype);
  auto memory = allocate(bytes);
  copy_to_device(memory.get(), host.data, bytes, nullptr);
  TensorView view(memory.get(), host.dtype, host.dims(), {DeviceType::cuda, current_device()});
  view.strides = host.strides;
  return {view, memory};
}

Tensor to_host(const ConstTensorView& device, Stream stream) {
  adder::check(device.is_contiguous(), "to_host: the view is not contiguous");
  Tensor out = Tensor::empty(device.dtype, device.dims());
  copy_to_host(out.view.data, device.data, static_cast<std::size_t>(out.view.size_bytes()), stream);
  return out;
}

std::int64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "to ask for the device's free memory");
  return static_cast<std::int64_t>(free);
}

void copy_to_device(void* device, const void* host, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  send_to_device(device, host, bytes, stream);
  synchronize(stream);
}

void send_to_device(void* device, const void* host, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream),
        fmt::format("to copy {} bytes to the device", bytes));
}

void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream),
        fmt::format("to copy {} bytes from the device", bytes));
  synchronize(stream);
}

void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
        fmt::format("to copy {} bytes on the device", bytes));
}

void copy_rows_to_device(void* device, std::size_t device_step, const void* host,
                         std::size_t host_step, std::size_t bytes, std::size_t rows,
                         Stream stream) {
  if (bytes == 0 || rows == 0) return;
  check(cudaMemcpy2DAsync(device, device_step, host, host_step, bytes, rows, cudaMemcpyHostToDevice,
                          stream),
        fmt::format("to copy {} rows of {} bytes to the device", rows, bytes));
  synchronize(stream);
}

void copy_rows_on_device(void* to, std::size_t to_step, const void* from, std::size_t from_step,
                         std::size_t bytes, std::size_t rows, Stream stream) {
  if (bytes == 0 || rows == 0) return;
  check(cudaMemcpy2DAsync(to, to_step, from, from_step, bytes, rows, cudaMemcpyDeviceToDevice,
                          stream),
        fmt::format("to copy {} rows of {} bytes on the device", rows, bytes));
}

void fill_bytes(void* device, unsigned char value, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(device, value, bytes, stream),
        fmt::format("to fill {} bytes on the device", bytes));
}

}  // namespace adder::cuda
