#pragma once

// The two kinds of files that describe a tokenizer.

#include <string>
#include <string_view>

#include "gguf/gguf_file.h"
#include "tokenizer/model.h"

namespace adder::text {

/// tokenizer.json in the format of Hugging Face's tokenizers; `file` names the document. Throws
/// adder::Error, naming the member, for what is missing, wrong or not supported.
TokenizerParts parse_tokenizer_json(std::string_view json, const std::string& file);

/// The metadata `tokenizer.ggml.*` of a GGUF file, read as llama.cpp reads them. Two models are
/// supported:
///
///   gpt2    byte-level BPE. `pre` names the patterns that cut text into words, those of GPT-2,
///           GPT-NeoX (olmo, mpt), Falcon, Llama 3, StarCoder and Qwen 2 and whatever shares them;
///           without it they are llama.cpp's default ones.
///   llama   SentencePiece's BPE, whose merges are given by the scores of tokens.
///
/// There is no key for a normalizer, so text is never normalized: ids of text that is not in
/// normal form may differ from those of the tokenizer.json that the file was converted from.
/// Throws adder::Error, naming the key, for what is missing, wrong or not supported.
TokenizerParts read_gguf_tokenizer(const GgufFile& file);

}  // namespace adder::text
