#pragma once

// What a tuning table knows of ssd_forward: which choice was the fastest for which shape on which
// kind of device. Needs no CUDA, so that tables can be read and looked at anywhere.

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adder/cuda_device.h"
#include "ops/ssd_forward/ssd_forward.h"

namespace adder::cuda {

/// Raised by one with every change of the CUDA kernels, of their candidates or of what a choice
/// means: whatever was measured before no longer counts.
inline constexpr std::int64_t kSsdForwardKernelVersion = 3;

/// What the best choice depends on besides the device. Strides and addresses only decide which
/// choices are allowed; the other options cost about the same by every choice.
struct SsdForwardShape {
  DType dtype = DType::bf16;  ///< of x
  bool allow_tf32 = false;    ///< and x is f32: of other inputs it changes nothing
  bool packed = false;        ///< cu_seqlens is given
  bool gated = false;         ///< z is given
  std::int64_t batch = 1;     ///< rows, or packed sequences
  std::int64_t nheads = 1;
  std::int64_t ngroups = 1;
  std::int64_t headdim = 1;
  std::int64_t dstate = 1;
  std::int64_t seqlen =
      1;  ///< tokens of a row, or of all packed sequences; the last to be compared

  // clang-tidy 14 takes what is not written here for a null pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const SsdForwardShape&, const SsdForwardShape&) = default;
};

/// Of valid arguments; nothing where no choice is looked up: with seq_idx, where the work depends
/// on its values, which the host does not see.
std::optional<SsdForwardShape> shape_of(const SsdForwardArgs& args);

// As tuning files hold shapes and choices. A choice has `variant` and the fields of that variant;
// reading takes exactly what writing gives, and throws adder::Error, in which `where` says where
// the value stands.
nlohmann::json to_json(const SsdForwardShape& shape);
nlohmann::json to_json(const SsdForwardChoice& choice);
SsdForwardShape read_ssd_forward_shape(const nlohmann::json& value, const std::string& where);
SsdForwardChoice read_ssd_forward_choice(const nlohmann::json& value, const std::string& where);

/// A shape as people write it: "seqlen=3000,nheads=80,headdim=64,dstate=128", with the names that
/// files use. batch and ngroups may be left out (1), dtype (bf16), and allow_tf32, packed and gated
/// (no; the bare word is yes). Throws adder::Error.
SsdForwardShape parse_ssd_forward_shape(std::string_view text);

// For people: "batch 4, seqlen 4096, nheads 8, headdim 64, dstate 128" and what differs from bf16,
// one group, rows and no gate; "hopper, segments 4, warm_up".
std::string describe(const SsdForwardShape& shape);
std::string describe(const SsdForwardChoice& choice);

/// Choices by kind of device and shape.
class SsdForwardTuning {
 public:
  /// Replaces what was known of the shape.
  void add(const DeviceModel& device, const SsdForwardShape& shape, const SsdForwardChoice& choice);
  std::size_t size() const;

  /// The choice measured for this shape, or for the same shape at another length where that is safe
  /// to go by; else null. Between two lengths at most a factor of 4 apart that agree, their choice:
  /// times grow about linearly with the length, and of two straight lines the one that is lower at
  /// both ends is lower between. Otherwise that of the nearest length within an eighth. A choice
  /// for another length may still be one that the arguments do not allow. Allocates nothing.
  const SsdForwardChoice* find(const DeviceModel& device, const SsdForwardShape& shape) const;

 private:
  using Choices = std::map<SsdForwardShape, SsdForwardChoice>;
  const Choices* choices_for(const DeviceModel& device) const;

  std::vector<std::pair<DeviceModel, Choices>> devices_;
};

/// Makes the table the one that choose_ssd_forward consults in the whole process from now on; null
/// for none. May be called while other threads look choices up.
void install_ssd_forward_tuning(std::shared_ptr<const SsdForwardTuning> tuning);

/// The installed table's choice for valid arguments. Safe in any thread; allocates nothing, and
/// costs one load where nothing is installed.
std::optional<SsdForwardChoice> installed_ssd_forward_choice(const DeviceModel& device,
                                                             const SsdForwardArgs& args);

}  // namespace adder::cuda
