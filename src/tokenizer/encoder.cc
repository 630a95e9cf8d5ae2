#include "tokenizer/encoder.h"

#include "tokenizer/unicode.h"

namespace adder::text {

Encoder::Encoder(const TokenizerModel& model, EncodeOptions options, std::size_t expected_bytes)
    : model_(&model),
      options_(options),
      bpe_scratch_(expected_bytes),
      raw_scanner_(model.raw_matcher(), options.parse_special),
      normalized_scanner_(model.normalized_matcher(), options.parse_special),
      splitters_(model.pre_tokenizer().stages.size()),
      prepared_(splitters_.size()),
      symbols_(splitters_.size()),
      first_split_(model.pre_tokenizer().first_split()) {}

void Encoder::feed(std::string_view text, bool final, std::vector<int>& ids) {
  const PostProcessor& post = model_->post_processor();
  fed_bytes_ += text.size();
  regex_scratch_.start_budget(fed_bytes_);
  if (!begun_ && options_.add_special_tokens) {
    ids.insert(ids.end(), post.before.begin(), post.before.end());
  }
  begun_ = true;
  raw_scanner_.feed(
      text, final, [&](std::string_view portion, bool ends) { section(portion, ends, ids); },
      [&](int id) { added_token(id, ids); });
  if (!final) return;
  if (options_.add_special_tokens) ids.insert(ids.end(), post.after.begin(), post.after.end());
  fed_bytes_ = 0;
  begun_ = false;
  at_start_ = true;
}

void Encoder::added_token(int id, std::vector<int>& ids) {
  at_start_ = false;
  ids.push_back(id);
}

void Encoder::section(std::string_view portion, bool ends, std::vector<int>& ids) {
  if (ends && held_.empty()) {  // all at once: no copy
    well_formed(portion, true, ids);
    return;
  }
  held_ += portion;
  if (!ends && held_.size() < retry_at_) return;
  held_.erase(0, well_formed(held_, ends, ids));
  // Looking again at much undecided text only when it has doubled keeps it linear.
  retry_at_ = ends ? 0 : held_.size() + (held_.size() > 1024 ? held_.size() : 0);
}

/// Hands on what is decided of a section and returns its size.
std::size_t Encoder::well_formed(std::string_view text, bool ends, std::vector<int>& ids) {
  std::size_t used = 0;
  while (true) {
    const std::string_view rest = text.substr(used);
    const std::size_t valid = valid_prefix(rest);
    const bool all = valid == rest.size();
    if (all && ends) {
      normalize_portion(rest, true, ids);
      return text.size();
    }
    if (all || (!ends && rest.size() - valid == incomplete_suffix(rest))) {
      const std::size_t cut = model_->normalizer().safe_cut(rest.substr(0, valid));
      if (cut > 0) normalize_portion(rest.substr(0, cut), false, ids);
      return used + cut;
    }
    normalize_portion(rest.substr(0, valid), true, ids);
    invalid_byte(rest.substr(valid, 1), ids);
    used += valid + 1;
  }
}

void Encoder::invalid_byte(std::string_view byte, std::vector<int>& ids) {
  at_start_ = false;
  std::string spelled(byte);
  for (const PreTokenizerStage& s : model_->pre_tokenizer().stages) {
    if (!s.to_byte_symbols) continue;
    spelled.clear();
    append_byte_symbols(spelled, byte);
    break;
  }
  model_->bpe().tokenize(spelled, true, bpe_scratch_, ids);
}

void Encoder::normalize_portion(std::string_view portion, bool ends, std::vector<int>& ids) {
  if (portion.empty() && !section_open_) return;
  const std::string_view normalized =
      model_->normalizer().apply(portion, !section_open_, regex_scratch_, normalized_);
  section_open_ = !ends;
  normalized_scanner_.feed(
      normalized, ends,
      [&](std::string_view text, bool end) { normalized_section(text, end, ids); },
      [&](int id) { added_token(id, ids); });
}

void Encoder::normalized_section(std::string_view portion, bool ends, std::vector<int>& ids) {
  const bool begins = !normalized_open_ && !portion.empty();
  if (begins) {
    first_piece_ = at_start_;
    at_start_ = false;
    normalized_open_ = true;
  }
  const auto& stages = model_->pre_tokenizer().stages;
  for (std::size_t i = 0; i < first_split_; ++i) {
    portion = stages[i].prepare(portion, begins, first_piece_, prepared_[i]);
    if (!stages[i].to_byte_symbols) continue;
    symbols_[i].clear();
    append_byte_symbols(symbols_[i], portion);
    portion = symbols_[i];
  }
  if (first_split_ == stages.size()) {
    cut_into_words(portion, ends, ids);
  } else {
    portion = stages[first_split_].prepare(portion, begins, first_piece_, prepared_[first_split_]);
    split(first_split_, portion, ends, first_piece_, ids);
  }
  if (ends) normalized_open_ = false;
}

void Encoder::split(std::size_t index, std::string_view portion, bool ends, bool& first,
                    std::vector<int>& ids) {
  const PreTokenizerStage& s = model_->pre_tokenizer().stages[index];
  splitters_[index].feed(*s.split, portion, ends, regex_scratch_, [&](std::string_view piece) {
    if (s.to_byte_symbols) {
      symbols_[index].clear();
      append_byte_symbols(symbols_[index], piece);
      piece = symbols_[index];
    }
    stage(index + 1, piece, first, ids);
    first = false;
  });
}

/// A finished piece on its way through the stages from `index` on.
void Encoder::stage(std::size_t index, std::string_view piece, bool first, std::vector<int>& ids) {
  const auto& stages = model_->pre_tokenizer().stages;
  if (index == stages.size()) {
    model_->bpe().tokenize(piece, true, bpe_scratch_, ids);
    return;
  }
  piece = stages[index].prepare(piece, true, first, prepared_[index]);
  if (stages[index].split) {
    split(index, piece, true, first, ids);
    return;
  }
  if (stages[index].to_byte_symbols) {
    symbols_[index].clear();
    append_byte_symbols(symbols_[index], piece);
    piece = symbols_[index];
  }
  stage(index + 1, piece, first, ids);
}

/// Without a splitting stage a section is one word. It is cut where that changes nothing, so that
/// it takes neither memory nor time beyond what a word does.
void Encoder::cut_into_words(std::string_view portion, bool ends, std::vector<int>& ids) {
  const Bpe& bpe = model_->bpe();
  const bool direct = ends && word_.empty();
  if (!direct) {
    word_ += portion;
    portion = word_;
  }
  std::size_t begin = 0;
  char32_t previous =
      cuts_scanned_ == 0 ? kInvalid : code_point_before(portion, cuts_scanned_).value;
  std::size_t i = cuts_scanned_;
  while (i < portion.size()) {
    const CodePoint c = code_point_at(portion, i);
    if (bpe.can_cut(previous, c.value)) {
      bpe.tokenize(portion.substr(begin, i - begin), false, bpe_scratch_, ids);
      word_whole_ = false;
      begin = i;
    }
    previous = c.value;
    i += c.length;
  }
  cuts_scanned_ = i - begin;
  if (ends) {
    bpe.tokenize(portion.substr(begin), word_whole_, bpe_scratch_, ids);
    word_.clear();
    cuts_scanned_ = 0;
    word_whole_ = true;
  } else {
    word_.erase(0, begin);
  }
}

}  // namespace adder::text
