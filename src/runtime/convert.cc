#include "adder/convert.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "adder/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config_writer.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "core/atomic_file.h"
#include "core/check.h"
#include "core/mapped_file.h"
#include "core/quote.h"
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
  const MappedFile file(from);
  write_file_atomically(to, file.bytes());
}

// The folder to write, which goes again if it was made for nothing.
class Target {
 public:
  explicit Target(fs::path folder) : folder_(std::move(folder)) {
    is_new_ = !fs::exists(folder_);
    check_target(folder_);
  }
  ~Target() {
    std::error_code ignored;
    if (is_new_ && !kept_) fs::remove_all(folder_, ignored);
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  fs::path operator/(std::string_view name) const { return folder_ / name; }
  void keep() { kept_ = true; }

 private:
  fs::path folder_;
  bool is_new_ = false;
  bool kept_ = false;
};

// What a tensor of the checkpoint becomes. One is in memory at a time, of a large one a part.
class Conversion {
 public:
  Conversion(const Checkpoint& checkpoint, const fs::path& from, const ConvertOptions& options)
      : checkpoint_(checkpoint), options_(options), pool_(options.nthreads) {
    for (const std::string& name : checkpoint.names()) {
      check(!checkpoint.has_panels(name),
            "{}: tensor {} is {} already, expected floating-point numbers", from.string(),
            in_quotes(name), name_of(checkpoint.format(name)));
      const std::vector<std::int64_t> shape = checkpoint.shape(name);
      if (!may_be_quantized(checkpoint.config(), name)) {
        add({name, dtype_of_other(name), shape}, [this, name] { write_other(name); });
        continue;
      }
      const QuantizedMatrix layout(options.format, shape[0], shape[1], nullptr);
      add({fmt::format("{}.{}", name, name_of(options.format)),
           DType::u8,
           {layout.panels(), layout.panel_bytes()}},
          [this, name, layout] { write_matrix(name, layout); });
      add({name + ".shape", DType::i64, {2}},
          [this, shape] { stream_->write(std::as_bytes(std::span(shape))); });
      ++report_.matrices;
    }
    report_.bytes_before = checkpoint.total_bytes();
  }

  const ConvertReport& report() const { return report_; }

  void write(SafetensorsStream& stream) {
    stream_ = &stream;
    for (const TensorHeader& tensor : stream.tensors()) writers_.at(tensor.name)();
    if (options_.progress) options_.progress(1.0);
  }
  const std::vector<TensorHeader>& headers() const { return headers_; }

 private:
  void add(TensorHeader header, std::function<void()> writer) {
    report_.bytes_after += header.bytes();
    writers_[header.name] = std::move(writer);
    headers_.push_back(std::move(header));
  }

  // As it is stored; what is in blocks and may not be integers here is decoded.
  DType dtype_of_other(const std::string& name) const {
    return is_quantized(checkpoint_.format(name)) ? DType::f32
                                                  : *dtype_of(checkpoint_.format(name));
  }

  void write_other(const std::string& name) {
    const ConstTensorView view = checkpoint_.tensor(name);
    write({static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.size_bytes())});
    checkpoint_.release(name);
  }

  void write_matrix(const std::string& name, const QuantizedMatrix& layout) {
    constexpr std::int64_t kPartBytes = std::int64_t{8} << 20;
    const std::unique_ptr<const MatrixRows> rows = checkpoint_.rows(name);
    if (rows == nullptr) {  // strided
      const auto whole = cpu::quantize_linear(checkpoint_.tensor(name), options_.format, {},
                                              fmt::format("tensor {}", in_quotes(name)), pool_);
      write({whole.data(), static_cast<std::size_t>(whole.bytes())});
      return checkpoint_.release(name);
    }
    const std::int64_t most = std::max<std::int64_t>(1, kPartBytes / layout.panel_bytes());
    std::vector<std::byte> part;
    for (std::int64_t first = 0; first < layout.panels(); first += most) {
      const std::int64_t count = std::min(most, layout.panels() - first);
      part.resize(static_cast<std::size_t>(count * layout.panel_bytes()));
      cpu::quantize_panels(*rows, options_.format, {}, first, count, part.data(), pool_);
      write(part);
    }
    checkpoint_.release(name);
  }

  void write(std::span<const std::byte> bytes) {
    stream_->write(bytes);
    done_ += static_cast<std::int64_t>(bytes.size());
    if (options_.progress) {
      options_.progress(static_cast<double>(done_) / static_cast<double>(report_.bytes_after));
    }
  }

  const Checkpoint& checkpoint_;
  const ConvertOptions& options_;
  ThreadPool pool_;
  std::vector<TensorHeader> headers_;
  std::map<std::string, std::function<void()>, std::less<>> writers_;
  SafetensorsStream* stream_ = nullptr;
  ConvertReport report_;
  std::int64_t done_ = 0;
};

// What says how the weights are used, and how text becomes ids.
void write_texts(const Checkpoint& checkpoint, const Target& to) {
  if (checkpoint.config().format == "gguf") {
    write_file_atomically(to / kGgufTokenizer, gguf_metadata(checkpoint.files().front()));
    const std::string config = huggingface_config(checkpoint.config());
    write_file_atomically(to / "config.json", std::as_bytes(std::span(config)));
    return;
  }
  copy_text(checkpoint.directory() / "config.json", to / "config.json");
  for (const char* name : {"tokenizer.json", "generation_config.json"}) {
    if (fs::exists(checkpoint.directory() / name)) {
      copy_text(checkpoint.directory() / name, to / name);
    }
  }
}

}  // namespace

ConvertReport convert(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
  check(is_quantized(options.format), "convert: format is {}, expected int8 or int4",
        name_of(options.format));
  const Checkpoint checkpoint = Checkpoint::open(from);
  Target target(to);
  Conversion conversion(checkpoint, from, options);
  SafetensorsStream stream(target / "model.safetensors", conversion.headers(), {{"format", "pt"}});
  conversion.write(stream);
  write_texts(checkpoint, target);
  stream.commit();
  target.keep();
  return conversion.report();
}

}  // namespace adder
