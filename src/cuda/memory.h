#pragma once

// Device memory and copies; needs no CUDA header.

#include <cstddef>
#include <span>

#include "adder/cuda_stream.h"
#include "adder/tensor_view.h"
#include "core/tensor.h"

namespace adder::cuda {

/// Uninitialized memory of the current device that is freed with its last owner, which waits for
/// the device. Zero bytes are allowed. Throws if there is not enough.
std::shared_ptr<std::byte> allocate(std::size_t bytes);

/// `bytes` of zeroed, page-locked host memory that devices read and write at the same address.
std::shared_ptr<std::byte> allocate_shared_host(std::size_t bytes);

/// A contiguous tensor in memory of the current device.
Tensor empty(DType dtype, std::span<const std::int64_t> dims);

/// A copy on the current device with the same shape and strides, gaps included; waits for it.
/// An undefined view gives an undefined tensor.
Tensor to_device(const ConstTensorView& host);

/// A contiguous copy in host memory of a contiguous device tensor; waits for the stream first.
Tensor to_host(const ConstTensorView& device, Stream stream = nullptr);

/// Bytes of the current device that `allocate` may still give.
std::int64_t free_bytes();

void copy_to_device(void* device, const void* host, std::size_t bytes, Stream stream);
/// From pageable memory, which may be used again on return; the copy takes its turn on the stream.
void send_to_device(void* device, const void* host, std::size_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream);
/// `rows` rows of `bytes` bytes each; steps are between rows. The first waits for the stream.
void copy_rows_to_device(void* device, std::size_t device_step, const void* host,
                         std::size_t host_step, std::size_t bytes, std::size_t rows, Stream stream);
void copy_rows_on_device(void* to, std::size_t to_step, const void* from, std::size_t from_step,
                         std::size_t bytes, std::size_t rows, Stream stream);
void fill_bytes(void* device, unsigned char value, std::size_t bytes, Stream stream);

}  // namespace adder::cuda
