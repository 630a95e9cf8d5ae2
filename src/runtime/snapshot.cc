// Snapshots and their file format, little-endian:
//
//   offset  bytes
//   0       8      "ADDERST\0"
//   8       4      version (1)
//   12      4      reserved, 0
//   16      8      fingerprint of the model
//   24      8      ntokens
//   32      8      number of recent tokens R
//   40      8      floats of the last hidden row H (0 or d_model)
//   48      8      floats of the state S
//   56      4R     recent tokens, i32
//           4H     last hidden row, f32
//           4S     state, f32: per layer the convolution's window, then the SSM state
//           8      XXH3-64 of everything before

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "adder/session.h"
#include "core/atomic_file.h"
#include "core/check.h"
#include "core/mapped_file.h"
#include "runtime/model_impl.h"

namespace adder {
namespace {

static_assert(std::endian::native == std::endian::little, "state files are little-endian");

constexpr char kMagic[8] = {'A', 'D', 'D', 'E', 'R', 'S', 'T', '\0'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 56;
constexpr std::size_t kChecksumBytes = 8;

template <typename T>
void append(std::vector<std::byte>& out, const T* values, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  out.insert(out.end(), bytes, bytes + count * sizeof(T));
}

template <typename T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
std::vector<T> read_array(std::span<const std::byte> bytes, std::size_t& offset,
                          std::size_t count) {
  std::vector<T> out(count);
  if (count > 0) std::memcpy(out.data(), bytes.data() + offset, count * sizeof(T));
  offset += count * sizeof(T);
  return out;
}

}  // namespace

std::int64_t snapshot_floats(const ModelConfig& config) {
  return state_bytes(config) / static_cast<std::int64_t>(sizeof(float));
}

Snapshot Session::snapshot() const {
  impl_->settle();
  impl_->flush();
  Backend& backend = *impl_->model->backend;
  auto out = std::make_shared<Snapshot::Impl>();
  out->fingerprint = impl_->model->fingerprint;
  out->ntokens = impl_->ntokens;
  out->recent = impl_->recent;
  if (impl_->last_hidden.defined()) {
    out->last_hidden.resize(static_cast<std::size_t>(impl_->last_hidden.view.numel()));
    backend.download(impl_->last_hidden, out->last_hidden);
  }
  out->state.resize(static_cast<std::size_t>(snapshot_floats(impl_->model->network->config())));
  std::span<float> rest(out->state);
  for (const LayerState& layer : impl_->state) {
    for (const Tensor* tensor : {&layer.conv, &layer.ssm}) {
      const auto count = static_cast<std::size_t>(tensor->view.numel());
      backend.download(*tensor, rest.first(count));
      rest = rest.subspan(count);
    }
  }
  return Snapshot(std::move(out));
}

std::int64_t Session::restore(const Snapshot& snapshot) {
  const Snapshot::Impl& from = snapshot.impl();
  check(from.fingerprint == impl_->model->fingerprint,
        "restore: the snapshot is of a model with fingerprint {:016x}, expected {:016x} ({})",
        from.fingerprint, impl_->model->fingerprint, impl_->model->name);
  Backend& backend = *impl_->model->backend;
  impl_->reset();
  if (from.ntokens == 0) return 0;
  std::span<const float> rest(from.state);
  for (LayerState& layer : impl_->state) {
    for (Tensor* tensor : {&layer.conv, &layer.ssm}) {
      const auto count = static_cast<std::size_t>(tensor->view.numel());
      backend.assign(*tensor, rest.first(count));
      rest = rest.subspan(count);
    }
  }
  if (!from.last_hidden.empty()) {
    const std::int64_t dims[] = {1, static_cast<std::int64_t>(from.last_hidden.size())};
    impl_->last_hidden = backend.new_activations(dims);
    backend.assign(impl_->last_hidden, from.last_hidden);
  }
  impl_->recent = from.recent;
  impl_->ntokens = from.ntokens;
  return from.ntokens;
}

std::int64_t Snapshot::ntokens() const { return impl_->ntokens; }

std::int64_t Snapshot::size_bytes() const {
  return static_cast<std::int64_t>(
      kHeaderBytes + kChecksumBytes +
      sizeof(float) * (impl_->recent.size() + impl_->last_hidden.size() + impl_->state.size()));
}

std::vector<std::byte> Snapshot::serialize() const {
  std::vector<std::byte> out;
  out.reserve(static_cast<std::size_t>(size_bytes()));
  append(out, kMagic, sizeof(kMagic));
  const std::uint32_t version_and_reserved[] = {kVersion, 0};
  append(out, version_and_reserved, 2);
  const std::uint64_t numbers[] = {impl_->fingerprint, static_cast<std::uint64_t>(impl_->ntokens),
                                   impl_->recent.size(), impl_->last_hidden.size(),
                                   impl_->state.size()};
  append(out, numbers, 5);
  append(out, impl_->recent.data(), impl_->recent.size());
  append(out, impl_->last_hidden.data(), impl_->last_hidden.size());
  append(out, impl_->state.data(), impl_->state.size());
  const std::uint64_t checksum = XXH3_64bits(out.data(), out.size());
  append(out, &checksum, 1);
  return out;
}

void Snapshot::save(const std::filesystem::path& path) const {
  write_file_atomically(path, serialize());
}

Snapshot Snapshot::load(const std::filesystem::path& path, const Model& model) {
  const MappedFile file(path);
  return parse(file.bytes(), path.string(), model);
}

Snapshot Snapshot::parse(std::span<const std::byte> bytes, const std::string& name,
                         const Model& model) {
  check(bytes.size() >= kHeaderBytes + kChecksumBytes,
        "{}: {} bytes are too few for a state file, expected at least {}", name, bytes.size(),
        kHeaderBytes + kChecksumBytes);
  check(std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) == 0,
        "{}: it does not start as a state file does", name);
  const auto version = read_at<std::uint32_t>(bytes, 8);
  check(version == kVersion, "{}: the state file's version is {}, expected {}", name, version,
        kVersion);
  const std::size_t body = bytes.size() - kChecksumBytes;
  const auto stored = read_at<std::uint64_t>(bytes, body);
  const std::uint64_t computed = XXH3_64bits(bytes.data(), body);
  check(stored == computed,
        "{}: the state file is damaged: its checksum is {:016x}, its content has {:016x}", name,
        stored, computed);

  auto out = std::make_shared<Snapshot::Impl>();
  out->fingerprint = read_at<std::uint64_t>(bytes, 16);
  check(out->fingerprint == model.fingerprint(),
        "{}: the state is of a model with fingerprint {:016x}, expected {:016x} ({})", name,
        out->fingerprint, model.fingerprint(), model.impl().name);
  const ModelConfig& config = model.config();
  const auto ntokens = read_at<std::uint64_t>(bytes, 24);
  const auto nrecent = read_at<std::uint64_t>(bytes, 32);
  const auto nhidden = read_at<std::uint64_t>(bytes, 40);
  const auto nstate = read_at<std::uint64_t>(bytes, 48);
  const auto d_model = static_cast<std::uint64_t>(config.d_model);
  const auto floats = static_cast<std::uint64_t>(snapshot_floats(config));
  check(ntokens <= static_cast<std::uint64_t>(INT64_MAX), "{}: it claims {} tokens", name, ntokens);
  check(nrecent <= std::min<std::uint64_t>(ntokens, kRecentTokens),
        "{}: it claims {} recent tokens of {}, expected at most {}", name, nrecent, ntokens,
        kRecentTokens);
  check(nhidden == (ntokens > 0 ? d_model : 0),
        "{}: its last hidden row has {} values, expected {}", name, nhidden,
        ntokens > 0 ? d_model : 0);
  check(nstate == floats, "{}: its state has {} values, expected {}", name, nstate, floats);
  const std::uint64_t expected = kHeaderBytes + 4 * (nrecent + nhidden + nstate);
  check(body == expected, "{}: it holds {} bytes before the checksum, expected {}", name, body,
        expected);

  std::size_t offset = kHeaderBytes;
  out->ntokens = static_cast<std::int64_t>(ntokens);
  out->recent = read_array<int>(bytes, offset, nrecent);
  out->last_hidden = read_array<float>(bytes, offset, nhidden);
  out->state = read_array<float>(bytes, offset, nstate);
  for (int token : out->recent) {
    check(token >= 0 && token < config.padded_vocab_size,
          "{}: it remembers the token {}, expected an id from 0 to {}", name, token,
          config.padded_vocab_size - 1);
  }
  return Snapshot(std::move(out));
}

}  // namespace adder
