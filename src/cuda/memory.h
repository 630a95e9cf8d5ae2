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

/// A contiguous tensor in memory of the current device.
Tensor empty(DType dtype, std::span<const std::int64_t> dims);

/// A copy on the current device with the same shape and strides, gaps included; waits for it.
/// An undefined view gives an undefined tensor.
Tensor to_device(const ConstTensorView& host);

/// A contiguous copy in host memory of a contiguous device tensor; waits for the stream first.
Tensor to_host(const ConstTensorView& device, Stream stream = nullptr);

void copy_to_device(void* device, const void* host, std::size_t bytes, Stream stream);
void copy_to_host(void* host, const void* device, std::size_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, std::size_t bytes, Stream stream);
void fill_bytes(void* device, unsigned char value, std::size_t bytes, Stream stream);

}  // namespace adder::cuda
