#include "adder/tokenizer.h"
#include "tokenizer/encoder.h"
#include "tokenizer/model.h"
#include "tokenizer/unicode.h"

namespace adder {
namespace {

// A stream's text may be of any length: its words are remembered as for a long one.
constexpr std::size_t kExpectedBytes = 1u << 20;

}  // namespace

struct StreamDecoder::State {
  State(std::shared_ptr<const text::TokenizerModel> m, bool skip)
      : model(std::move(m)), stream(model->decoder()), skip_special(skip) {}

  std::shared_ptr<const text::TokenizerModel> model;
  text::DecodeStream stream;
  bool skip_special;
  std::string held;  ///< the beginning of a character
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>(tokenizer.model_, skip_special)) {}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int id) {
  const std::string_view token = state_->model->token(id);
  const text::AddedToken* added = state_->model->added_token(id);
  if (state_->skip_special && added != nullptr && added->special) return {};
  std::string out = std::move(state_->held);
  state_->stream.push(token, added != nullptr, out);
  const std::size_t complete = out.size() - text::incomplete_suffix(out);
  state_->held = out.substr(complete);
  out.resize(complete);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = std::move(state_->held);
  state_->held.clear();
  state_->stream.finish(out);
  return out;
}

struct StreamEncoder::State {
  State(std::shared_ptr<const text::TokenizerModel> m, EncodeOptions options)
      : model(std::move(m)), encoder(*model, options, kExpectedBytes) {}

  std::shared_ptr<const text::TokenizerModel> model;
  text::Encoder encoder;
};

StreamEncoder::StreamEncoder(const Tokenizer& tokenizer, EncodeOptions options)
    : state_(std::make_unique<State>(tokenizer.model_, options)) {}
StreamEncoder::~StreamEncoder() = default;
StreamEncoder::StreamEncoder(StreamEncoder&&) noexcept = default;
StreamEncoder& StreamEncoder::operator=(StreamEncoder&&) noexcept = default;

void StreamEncoder::push(std::string_view piece, std::vector<int>& ids) {
  state_->encoder.feed(piece, /*final=*/false, ids);
}

void StreamEncoder::finish(std::vector<int>& ids) { state_->encoder.feed("", /*final=*/true, ids); }

}  // namespace adder
