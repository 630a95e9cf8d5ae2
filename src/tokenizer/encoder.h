#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "adder/tokenizer.h"
#include "tokenizer/model.h"

namespace adder::text {

/// Turns a text into ids while it arrives. The ids do not depend on how the text is cut into
/// portions, because every step keeps back what later text may change:
///
///   text -> added tokens -> normalizer -> added tokens of the normalized kind -> words -> ids
///
/// The stretches between added tokens (sections) go through the later steps on their own. A byte
/// that belongs to no well-formed UTF-8 sequence is a section of one word, not normalized.
class Encoder {
 public:
  Encoder(const TokenizerModel& model, EncodeOptions options, std::size_t expected_bytes);

  /// `final` ends the text; another may follow.
  void feed(std::string_view text, bool final, std::vector<int>& ids);

 private:
  void section(std::string_view portion, bool ends, std::vector<int>& ids);
  std::size_t well_formed(std::string_view text, bool ends, std::vector<int>& ids);
  void invalid_byte(std::string_view byte, std::vector<int>& ids);
  void normalize_portion(std::string_view portion, bool ends, std::vector<int>& ids);
  void normalized_section(std::string_view portion, bool ends, std::vector<int>& ids);
  void cut_into_words(std::string_view portion, bool ends, std::vector<int>& ids);
  void stage(std::size_t index, std::string_view piece, bool first, std::vector<int>& ids);
  void split(std::size_t index, std::string_view portion, bool ends, bool& first,
             std::vector<int>& ids);
  void added_token(int id, std::vector<int>& ids);

  const TokenizerModel* model_;
  EncodeOptions options_;
  RegexScratch regex_scratch_;
  BpeScratch bpe_scratch_;
  AddedTokenScanner raw_scanner_;
  AddedTokenScanner normalized_scanner_;
  std::vector<Splitter> splitters_;    ///< one per pre-tokenizer stage
  std::vector<std::string> prepared_;  ///< work space of the stages
  std::vector<std::string> symbols_;
  std::string normalized_;
  std::size_t first_split_;

  std::size_t fed_bytes_ = 0;
  bool begun_ = false;            ///< the ids before the text are out
  bool at_start_ = true;          ///< nothing of the text was seen by the words' step
  std::string held_;              ///< of a section, before normalization
  std::size_t retry_at_ = 0;      ///< the size of held_ from which looking again may help
  bool section_open_ = false;     ///< a portion of the section was normalized
  bool normalized_open_ = false;  ///< a portion of the normalized section was handed on
  bool first_piece_ = false;      ///< the next piece is what the text starts with
  std::string word_;              ///< without a splitting stage: text that may become one word
  std::size_t cuts_scanned_ = 0;  ///< no cut in word_ before this position
  bool word_whole_ = true;
};

}  // namespace adder::text
