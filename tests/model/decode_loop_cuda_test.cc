#include "tests/model/decode_loop.h"

#include "backend/cuda/cuda_backend.h"
#include "tests/model/batch.h"
#include "tests/model/forwarding_backend.h"
#include "tests/support/device.h"

namespace adder {
namespace {

// A backend of the device that makes no loops.
class Steps final : public test::ForwardingBackend {
 public:
  explicit Steps(std::unique_ptr<Backend> other)
      : ForwardingBackend(*other), owned_(std::move(other)) {}

 private:
  std::unique_ptr<Backend> owned_;
};

// Who begins turns: a program for each way.
#ifdef ADDER_TEST_TURNS_OF_THE_HOST
constexpr auto kTurns = CudaDecodeLoop::Turns::host;
#else
constexpr auto kTurns = CudaDecodeLoop::Turns::device;
#endif

}  // namespace

std::unique_ptr<Backend> make_backend_with_loops() {
  return std::make_unique<CudaBackend>(0, DType::f32, DType::f32, kTurns);
}
std::unique_ptr<Backend> make_backend_without_loops() {
  return std::make_unique<Steps>(std::make_unique<CudaBackend>(0, DType::f32));
}
std::string why_no_backend_with_loops() { return test::why_no_device(); }

}  // namespace adder
