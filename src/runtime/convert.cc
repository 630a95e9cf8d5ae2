#include "adder/convert.h"

#include <string>
#include <vector>

#include "adder/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "core/check.h"
#include "core/quote.h"
#include "core/tensor.h"
#include "models/network.h"
#include "ops/quantized_linear/quantized_linear.h"

namespace adder {
namespace {

namespace fs = std::filesystem;

// Where a checkpoint may hold weights, so that none is written beside or over others.
void check_target(const fs::path& to) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json"}) {
    check(!fs::exists(to / name), "{} exists already, expected a folder without weights",
          (to / name).string());
  }
  std::error_code error;
  fs::create_directories(to, error);
  check(!error && fs::is_directory(to), "cannot make the folder {}: {}", to.string(),
        error ? error.message() : "there is a file of that name");
}

void copy_text(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  check(!error, "cannot copy {} to {}: {}", from.string(), to.string(), error.message());
}

// What is to be written, and what keeps it.
class Tensors {
 public:
  void add(std::string name, const ConstTensorView& view) {
    tensors_.push_back({std::move(name), view});
    bytes_ += view.size_bytes();
  }
  void add(const std::string& name, const QuantizedMatrix& matrix) {
    matrices_.push_back(matrix);
    add(fmt::format("{}.{}", name, name_of(matrix.format())),
        ConstTensorView(matrix.data(), DType::u8,
                        std::vector{matrix.panels(), matrix.panel_bytes()}));
    Tensor shape = Tensor::empty(DType::i64, {2});
    shape.as<std::int64_t>()[0] = matrix.rows();
    shape.as<std::int64_t>()[1] = matrix.columns();
    shapes_.push_back(shape);
    add(name + ".shape", shape.view);
  }

  const std::vector<NamedTensor>& all() const { return tensors_; }
  int matrices() const { return static_cast<int>(matrices_.size()); }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<NamedTensor> tensors_;
  std::vector<QuantizedMatrix> matrices_;
  std::vector<Tensor> shapes_;
  std::int64_t bytes_ = 0;
};

}  // namespace

ConvertReport convert(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  check(is_quantized(options.format), "convert: format is {}, expected int8 or int4",
        name_of(options.format));
  const Checkpoint checkpoint = Checkpoint::open(from);
  check(checkpoint.config().format != "gguf",
        "{} is a GGUF file, expected a checkpoint with config.json", from.string());
  check_target(to);
  ThreadPool pool(options.nthreads);
  Tensors tensors;
  std::int64_t done = 0;
  for (const std::string& name : checkpoint.names()) {
    check(!is_quantized(checkpoint.format(name)),
          "{}: tensor {} is {} already, expected floating-point numbers", from.string(),
          in_quotes(name), name_of(checkpoint.format(name)));
    const ConstTensorView view = checkpoint.tensor(name);
    done += view.size_bytes();
    if (may_be_quantized(checkpoint.config(), name)) {
      tensors.add(name,
                  cpu::quantize_linear(view, options.format, {},
                                       fmt::format("{}: tensor {}", from.string(), name), pool));
      checkpoint.release(name);
    } else {
      tensors.add(name, view);
    }
    if (options.progress) {
      options.progress(static_cast<double>(done) / static_cast<double>(checkpoint.total_bytes()));
    }
  }
  copy_text(checkpoint.directory() / "config.json", to / "config.json");
  for (const char* name : {"tokenizer.json", "generation_config.json"}) {
    if (fs::exists(checkpoint.directory() / name)) {
      copy_text(checkpoint.directory() / name, to / name);
    }
  }
  write_safetensors(to / "model.safetensors", tensors.all(), {{"format", "pt"}});
  return {.bytes_before = checkpoint.total_bytes(),
          .bytes_after = tensors.bytes(),
          .matrices = tensors.matrices()};
}

}  // namespace adder
