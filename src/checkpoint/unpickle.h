#pragma once

// A reader for the one kind of pickle that torch.save writes for a state dict: a dictionary from
// strings to tensors, in pickle protocol 2. Nothing is ever executed: the callables such a pickle
// names are a closed list, each with a meaning of its own here, and any other one is an error that
// names it.
//
//   GLOBAL  torch._utils _rebuild_tensor_v2, torch._utils _rebuild_parameter,
//           collections OrderedDict, torch {Double,Float,Half,BFloat16,Long,Int,...}Storage
//   BINPERSID ('storage', storage class, key, location, number of elements)

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adder/dtype.h"

namespace adder {

/// The elements a tensor takes from: entry data/KEY of the archive.
struct PickledStorage {
  DType dtype = DType::f32;
  std::string key;
  std::int64_t numel = 0;
};

/// A tensor as the pickle describes it; nothing about the storage's bytes is known here, but shape,
/// strides and offset are not negative, and as many of them as there are dimensions.
struct PickledTensor {
  std::string name;
  PickledStorage storage;
  std::int64_t offset = 0;  // elements
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // elements
};

/// Reads the pickle in `bytes`. `source` names it in errors. Throws adder::Error for anything but a
/// state dict, and for more than 16 MiB or a million values (a state dict of a thousand tensors
/// has a hundredth of that).
std::vector<PickledTensor> unpickle_state_dict(std::span<const std::byte> bytes,
                                               std::string_view source);

}  // namespace adder
