#include "backend/cuda/decode_loop.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "core/check.h"
#include "cuda/device.h"
#include "cuda/memory.h"

namespace adder {
namespace {

using cuda::decode::End;
using cuda::decode::kRing;
using cuda::decode::Word;

// Tokens come every 100 µs to 10 ms. A host that looks this often uses little of a core.
constexpr std::chrono::microseconds kLookEvery{150};

constexpr std::int64_t kLooksBetweenChecks = 1024;
constexpr std::int64_t kMostStopTokens = 1024;

Word read_word(const Word* word) { return *const_cast<const volatile Word*>(word); }

Tensor zeros(DType dtype, std::initializer_list<std::int64_t> dims, cuda::Stream stream) {
  Tensor out = cuda::empty(dtype, std::span(dims.begin(), dims.size()));
  cuda::fill_bytes(out.view.data, 0, static_cast<std::size_t>(out.view.size_bytes()), stream);
  return out;
}

template <typename T>
void send(const Tensor& to, const std::vector<T>& values, cuda::Stream stream) {
  cuda::send_to_device(to.view.data, values.data(), values.size() * sizeof(T), stream);
}

}  // namespace

CudaDecodeLoop::CudaDecodeLoop(int device, cuda::Stream others,
                               std::unique_ptr<cuda::OwnedStream> stream,
                               std::shared_ptr<MemoryPool> arena,
                               std::shared_ptr<const void> recorder, std::int64_t batch,
                               std::int64_t vocab_size, const Step& step, Turns turns)
    : device_(device),
      others_(others),
      owned_stream_(std::move(stream)),
      stream_(*owned_stream_),
      arena_(std::move(arena)),
      recorder_(std::move(recorder)),
      batch_(batch),
      vocab_size_(vocab_size),
      ids_(zeros(DType::i32, {batch}, stream_)),
      sampling_(zeros(DType::u8, {batch, sizeof(SequenceSampling)}, stream_)),
      position_(zeros(DType::i64, {batch}, stream_)),
      recent_(zeros(DType::i32, {batch, kMaxRecentCapacity}, stream_)),
      recent_count_(zeros(DType::i64, {batch}, stream_)),
      active_(zeros(DType::u8, {batch}, stream_)),
      status_(zeros(DType::i32, {batch, 2}, stream_)),
      produced_(zeros(DType::i64, {batch}, stream_)),
      max_tokens_(zeros(DType::i64, {batch}, stream_)),
      limit_(zeros(DType::i64, {1}, stream_)),
      stop_tokens_(zeros(DType::i32, {kMostStopTokens}, stream_)),
      nstop_tokens_(zeros(DType::i64, {batch}, stream_)),
      workspace_(
          zeros(DType::u8,
                {static_cast<std::int64_t>(cuda::sample_tokens_workspace_bytes(batch, vocab_size))},
                stream_)),
      handed_out_(static_cast<std::size_t>(batch), 0) {
  const std::size_t nrings = static_cast<std::size_t>(batch * kRing);
  const auto nends = static_cast<std::size_t>(batch);
  shared_ = cuda::allocate_shared_host((nrings + nends) * sizeof(Word) + sizeof(std::int32_t));
  auto* words = reinterpret_cast<Word*>(shared_.get());
  is_cancelled_ = reinterpret_cast<std::int32_t*>(words + nrings + nends);
  params_ = {.batch = batch,
             .tokens = ids_.as<std::int32_t>(),
             .status = status_.as<std::int32_t>(),
             .active = active_.as<std::uint8_t>(),
             .produced = produced_.as<std::int64_t>(),
             .max_tokens = max_tokens_.as<std::int64_t>(),
             .limit = limit_.as<std::int64_t>(),
             .stop_tokens = stop_tokens_.as<std::int32_t>(),
             .nstop_tokens = nstop_tokens_.as<std::int64_t>(),
             .ring = words,
             .ends = words + nrings,
             .is_cancelled = is_cancelled_};

  cuda::synchronize(others_);
  // Once without a graph: memory is in the arena then, and what is looked up once is known.
  // No sequence is active yet, so nothing but the state changes.
  sample(step(ids_).view);
  launch_advance(params_, true, 0, stream_);
  cuda::synchronize(stream_);
  const auto turn = [this, step](cuda::WhileHandle handle) {
    sample(step(ids_).view);
    launch_advance(params_, false, handle, stream_);
  };
  if (turns == Turns::device) {
    while_ = std::make_unique<cuda::WhileGraph>(
        stream_,
        [this](cuda::WhileHandle handle) { launch_advance(params_, true, handle, stream_); }, turn);
  } else {
    turn_ = std::make_unique<cuda::Graph>(
        stream_, [turn] { turn(0); }, cuda::GraphMemory::may_allocate);
  }
}

CudaDecodeLoop::~CudaDecodeLoop() {
  // The device may still run: it stops within a token, and only then is the memory free.
  *const_cast<volatile std::int32_t*>(is_cancelled_) = 1;
  try {
    const cuda::DeviceGuard guard(device_);
    cuda::synchronize(stream_);
  } catch (const Error&) {
    // The device has failed: whoever reads from it next hears why.
  }
}

CudaDecodeLoop::Turns CudaDecodeLoop::best_turns() {
  return cuda::WhileGraph::is_supported() ? Turns::device : Turns::host;
}

// ---- what a turn consists of --------------------------------------------------------------------

SampleTokensArgs CudaDecodeLoop::sampling_args(const ConstTensorView& logits) const {
  return {.logits = logits.narrow(1, 0, vocab_size_),
          .sampling = sampling_.view,
          .position = position_.view,
          .recent = recent_.view,
          .recent_count = recent_count_.view,
          .active = active_.view,
          .tokens = ids_.view,
          .status = status_.view};
}

void CudaDecodeLoop::sample(const ConstTensorView& logits) {
  cuda::sample_tokens(sampling_args(logits),
                      {static_cast<std::byte*>(workspace_.view.data),
                       static_cast<std::size_t>(workspace_.view.size_bytes())},
                      stream_);
}

// ---- the host's side ----------------------------------------------------------------------------

void CudaDecodeLoop::start(const Tensor& logits, std::span<const DecodeRequest> requests,
                           std::span<const int> stop_tokens) {
  check(static_cast<std::int64_t>(requests.size()) == batch_,
        "decode: {} requests, expected one for each of {} sequences", requests.size(), batch_);
  check(static_cast<std::int64_t>(stop_tokens.size()) <= kMostStopTokens,
        "decode: {} stop tokens, expected at most {}", stop_tokens.size(), kMostStopTokens);
  const cuda::DeviceGuard guard(device_);
  cancel();
  cuda::synchronize(others_);
  first_logits_ = logits;  // read after this returns

  const auto batch = static_cast<std::size_t>(batch_);
  std::vector<std::int64_t> position(batch);
  std::vector<std::int64_t> recent_count(batch);
  std::vector<std::int64_t> max_tokens(batch);
  std::vector<std::int64_t> nstop_tokens(batch);
  std::vector<std::int32_t> recent(batch * kMaxRecentCapacity, 0);
  std::vector<std::uint8_t> active(batch);
  requests_.assign(batch, {});
  for (std::size_t s = 0; s < batch; ++s) {
    const DecodeRequest& r = requests[s];
    requests_[s] = {.params = r.sampling, .repeat_window = r.repeat_window, .seed = r.seed};
    position[s] = static_cast<std::int64_t>(r.random_position);
    max_tokens[s] = r.max_tokens;
    nstop_tokens[s] = r.stops ? std::ssize(stop_tokens) : 0;
    active[s] = r.max_tokens != 0;
    const std::size_t count = std::min<std::size_t>(r.recent.size(), kMaxRecentCapacity);
    std::copy(r.recent.end() - static_cast<std::ptrdiff_t>(count), r.recent.end(),
              recent.begin() + static_cast<std::ptrdiff_t>(s * kMaxRecentCapacity));
    recent_count[s] = static_cast<std::int64_t>(count);
  }
  send(sampling_, requests_, stream_);
  send(position_, position, stream_);
  send(recent_, recent, stream_);
  send(recent_count_, recent_count, stream_);
  send(max_tokens_, max_tokens, stream_);
  send(active_, active, stream_);
  send(stop_tokens_, std::vector<std::int32_t>(stop_tokens.begin(), stop_tokens.end()), stream_);
  send(nstop_tokens_, nstop_tokens, stream_);
  for (const Tensor* t : {&status_, &produced_}) {
    cuda::fill_bytes(t->view.data, 0, static_cast<std::size_t>(t->view.size_bytes()), stream_);
  }

  std::fill(handed_out_.begin(), handed_out_.end(), 0);
  std::memset(shared_.get(), 0, (batch * kRing + batch) * sizeof(Word));
  for (std::size_t s = 0; s < batch; ++s) {
    if (active[s] == 0) {
      params_.ends[s] = cuda::decode::make_word(0, static_cast<std::uint32_t>(End::max_tokens));
    }
  }
  *const_cast<volatile std::int32_t*>(is_cancelled_) = 0;
  send_limit(kRing);
  sample(logits.view);
  launch_advance(params_, false, 0, stream_);
  launch();
}

void CudaDecodeLoop::send_limit(std::int64_t limit) {
  limit_now_ = limit;
  send(limit_, std::vector<std::int64_t>{limit}, stream_);
}

void CudaDecodeLoop::launch() {
  if (while_ != nullptr) while_->launch(stream_);
}

bool CudaDecodeLoop::has_ended(std::int64_t sequence) const {
  return cuda::decode::below(read_word(params_.ends + sequence)) !=
         static_cast<std::uint32_t>(End::running);
}

void CudaDecodeLoop::throw_sample_error(std::int64_t sequence) const {
  const Tensor status = cuda::to_host(status_.view, stream_);
  const std::int32_t* row = status.as<std::int32_t>() + 2 * sequence;
  check_sampled({static_cast<SampleError>(row[0]), row[1]},
                requests_[static_cast<std::size_t>(sequence)], vocab_size_);
  fail("decode: sequence {} ended with an error that it does not name", sequence);
}

// Sees to it that another token of the sequence comes, in case the device waits for the host.
void CudaDecodeLoop::go_on(std::int64_t sequence) {
  // Whoever copies the state out of a loop that holds still is done before it changes.
  if (std::exchange(is_settled_, false)) cuda::synchronize(others_);
  if (while_ == nullptr) return turn_->launch(stream_);
  if (handed_out_[static_cast<std::size_t>(sequence)] < limit_now_) return;
  std::int64_t least = limit_now_;
  for (std::int64_t s = 0; s < batch_; ++s) {
    if (!has_ended(s)) least = std::min(least, handed_out_[static_cast<std::size_t>(s)]);
  }
  check(least + kRing > limit_now_,
        "decode: {} tokens of a sequence were not asked for, expected all sequences read in turn",
        kRing);
  send_limit(least + kRing);
  launch();
}

std::optional<int> CudaDecodeLoop::token(std::int64_t sequence, std::int64_t n) {
  using cuda::decode::above;
  using cuda::decode::below;
  const cuda::DeviceGuard guard(device_);
  const Word* place = params_.ring + sequence * kRing + n % kRing;
  int idle_looks = 0;
  for (std::int64_t looks = 0;; ++looks) {
    if (while_ == nullptr) cuda::synchronize(stream_);
    const Word word = read_word(place);
    if (above(word) == static_cast<std::uint32_t>(n + 1)) {
      handed_out_[static_cast<std::size_t>(sequence)] = n + 1;
      return static_cast<int>(below(word));
    }
    const Word end = read_word(params_.ends + sequence);
    const auto why = static_cast<End>(below(end));
    if (why != End::running && above(end) <= static_cast<std::uint32_t>(n)) {
      if (why == End::error) throw_sample_error(sequence);
      return std::nullopt;
    }
    if (why == End::running) go_on(sequence);
    // A device that has failed publishes nothing, and one that is idle never will.
    if (looks % kLooksBetweenChecks == kLooksBetweenChecks - 1 && cuda::is_idle(stream_)) {
      check(
          ++idle_looks < 3 || read_word(place) != word || read_word(params_.ends + sequence) != end,
          "decode: the device stopped before token {} of sequence {}", n, sequence);
    }
    if (while_ != nullptr) std::this_thread::sleep_for(kLookEvery);
  }
}

DecodeEnd CudaDecodeLoop::end(std::int64_t sequence) const {
  switch (static_cast<End>(cuda::decode::below(read_word(params_.ends + sequence)))) {
    case End::max_tokens:
      return DecodeEnd::max_tokens;
    case End::stop_token:
      return DecodeEnd::stop_token;
    case End::error:
      return DecodeEnd::failed;
    default:
      return DecodeEnd::running;
  }
}

void CudaDecodeLoop::cancel() {
  const cuda::DeviceGuard guard(device_);
  *const_cast<volatile std::int32_t*>(is_cancelled_) = 1;
  cuda::synchronize(stream_);
}

bool CudaDecodeLoop::settle() {
  for (std::int64_t s = 0; s < batch_; ++s) {
    const std::int64_t count = handed_out_[static_cast<std::size_t>(s)];
    const Word end = read_word(params_.ends + s);
    const bool is_over =
        has_ended(s) && cuda::decode::above(end) == static_cast<std::uint32_t>(count);
    // By turns of the host, a step is taken when the first sequence is asked for its token.
    const bool is_next_there =
        cuda::decode::above(read_word(params_.ring + s * kRing + count % kRing)) ==
        static_cast<std::uint32_t>(count + 1);
    const bool is_paused =
        !has_ended(s) && (while_ == nullptr ? !is_next_there : count == limit_now_);
    if (!is_over && !is_paused) return false;
  }
  const cuda::DeviceGuard guard(device_);
  cuda::synchronize(stream_);
  is_settled_ = true;
  return true;
}

}  // namespace adder
