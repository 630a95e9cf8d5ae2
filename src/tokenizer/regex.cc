#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "tokenizer/oniguruma.h"

namespace adder::text {
namespace {

// Backtracking steps of one match attempt. Tokenizer patterns take a handful per character.
constexpr std::uint32_t kMatchLimit = 10'000'000;
constexpr std::size_t kMaxStackBytes = 8u << 20;
// A search without a match returns to check the clock after this many start positions.
constexpr std::size_t kWindowBytes = 4096;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct RegexScratch::Handles {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = nullptr;  // made for the first match that needs more than 32 KiB

  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()) {
  check(handles_->data != nullptr && handles_->context != nullptr, "tokenizer: out of memory");
  pcre2_set_match_limit(handles_->context, kMatchLimit);
  start_budget(0);
}

RegexScratch::~RegexScratch() = default;

void RegexScratch::start_budget(std::size_t bytes) {
  deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(5) +
              std::chrono::microseconds(4 * bytes);
}

struct Regex::Code {
  pcre2_code* compiled = nullptr;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(std::string_view pattern, const std::string& context) : pattern_(pattern) {
  const std::string translated = oniguruma_to_pcre2(pattern, context);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // A pattern is untrusted: it may not run code units apart (\C) and its parentheses may not nest
  // beyond PCRE2's default of 250.
  constexpr std::uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>
      compile_context(pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(compile_context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(compile_context.get(), 64u << 10);
  auto code = std::make_shared<Code>();
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 kOptions, &error, &offset, compile_context.get());
  check(code->compiled != nullptr,
        "{} is '{}', which is not a valid pattern: {} (offset {} of '{}')", context, pattern_,
        error_text(error), offset, translated);
  // Where no machine code can be made, the interpreter runs with the same results.
  pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  std::uint32_t lookbehind = 0;
  pcre2_pattern_info(code->compiled, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
  lookbehind_ = lookbehind + 1;  // the line anchors look at one more
  code_ = std::move(code);
}

std::string Regex::quote(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}&-#").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Regex::Match Regex::search(std::string_view subject, std::size_t from, bool final,
                           RegexScratch& scratch) const {
  RegexScratch::Handles& handles = *scratch.handles_;
  const std::uint32_t options = PCRE2_NO_UTF_CHECK | (final ? 0 : PCRE2_PARTIAL_HARD);
  while (true) {
    if (++scratch.calls_ % 256 == 0) {
      check(std::chrono::steady_clock::now() < scratch.deadline_,
            "tokenizer: the pattern '{}' takes too long on this text, expected one that does not "
            "backtrack without bound",
            pattern_);
    }
    const std::size_t limit = from + kWindowBytes;
    pcre2_set_offset_limit(handles.context, limit);
    const int rc = pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(subject.data()),
                               subject.size(), from, options, handles.data, handles.context);
    if (rc >= 0) {
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(handles.data);
      // With \K inside a lookahead a match may begin after its end.
      return {Status::match, std::min(range[0], range[1]), range[1]};
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && handles.stack == nullptr) {
      handles.stack = pcre2_jit_stack_create(32u << 10, kMaxStackBytes, nullptr);
      check(handles.stack != nullptr, "tokenizer: out of memory");
      pcre2_jit_stack_assign(handles.context, nullptr, handles.stack);
      continue;
    }
    if (rc == PCRE2_ERROR_PARTIAL) return {Status::undecided};
    check(rc == PCRE2_ERROR_NOMATCH,
          "tokenizer: the pattern '{}' cannot be matched against this text ({}), expected one that "
          "does not backtrack without bound",
          pattern_, error_text(rc));
    if (limit >= subject.size()) return {final ? Status::none : Status::undecided};
    from = limit + 1;  // then to the start of a code point
    while (from < subject.size() && (static_cast<unsigned char>(subject[from]) & 0xc0) == 0x80) {
      ++from;
    }
    if (from >= subject.size()) return {final ? Status::none : Status::undecided};
    scratch.calls_ |= 255;  // look at the clock
  }
}

}  // namespace adder::text
