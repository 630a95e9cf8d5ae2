// What a build without the CUDA toolkit has in place of the CUDA backend.

#include "backend/make_backend.h"
#include "core/check.h"

namespace adder {

std::unique_ptr<Backend> make_cuda_backend(int index, DType /*activations*/, DType /*states*/) {
  fail("device cuda:{}: this program was built without CUDA, expected a build with it", index);
}

}  // namespace adder
