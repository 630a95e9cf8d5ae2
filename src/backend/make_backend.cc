#include "backend/make_backend.h"

#include <charconv>

#include "backend/cpu/cpu_backend.h"
#include "core/check.h"

namespace adder {

std::optional<int> cuda_index(std::string_view device) {
  constexpr std::string_view kName = "cuda";
  if (!device.starts_with(kName)) return std::nullopt;
  device.remove_prefix(kName.size());
  if (device.empty()) return 0;
  int index = 0;
  const auto [end, error] =
      std::from_chars(device.data() + 1, device.data() + device.size(), index);
  if (device[0] != ':' || error != std::errc() || end != device.data() + device.size() ||
      index < 0) {
    return std::nullopt;
  }
  return index;
}

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.device == "cpu") {
    check(options.states == DType::f32,
          "device cpu: states of dtype {} were asked for, expected f32, or a CUDA device",
          name_of(options.states));
    return std::make_unique<CpuBackend>(options.nthreads, options.activations == DType::bf16);
  }
  if (const std::optional<int> index = cuda_index(options.device)) {
    return make_cuda_backend(*index, options.activations, options.states);
  }
  fail("device \"{}\" is unknown, expected cpu, cuda or cuda:N", options.device);
}

}  // namespace adder
