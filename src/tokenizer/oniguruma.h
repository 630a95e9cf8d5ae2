#pragma once

#include <string>
#include <string_view>

namespace adder::text {

/// Rewrites a pattern from Oniguruma's (Ruby) syntax, which tokenizer.json uses, into PCRE2's, for
/// compilation with UTF, UCP and MULTILINE. What the two read differently is spelled out:
/// `\s \S \w \W \h \H \b \B` by Unicode property, `\uHHHH`, `(?m)` (Ruby: the dot matches
/// newlines),
/// `{,n}`, and `{n,m}+`, which is not possessive in Ruby. Nested sets, `&&` and POSIX brackets are
/// errors; `context` begins the sentence.
std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& context);

}  // namespace adder::text
