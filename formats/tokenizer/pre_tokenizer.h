// What cuts the normalized text into the pieces that a model encodes one by one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/tokenizer/pieces.h"
#include "formats/tokenizer/spans.h"

namespace quern::tokenizer {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
  // Asks the last step, if it spells bytes in the byte-level alphabet, to leave them as they are, for a model
  // that reads them (Bpe::encode_bytes). False if it doesn't.
  virtual bool keep_bytes() { return false; }
};

struct ByteLevelOptions {
  bool add_prefix_space = true;
  bool use_regex = true;
};

enum class PrependScheme { First, Never, Always };

struct MetaspaceOptions {
  std::string replacement = "\u2581";  // one character
  PrependScheme prepend_scheme = PrependScheme::Always;
  bool split = true;
};

// GPT-2's: cuts by its pattern and spells the bytes in the byte-level alphabet.
std::unique_ptr<PreTokenizer> make_byte_level_pre_tokenizer(ByteLevelOptions options);
// Matches, or what is between them, are delimiters.
std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<Pattern> pattern, SplitBehavior behavior,
                                         bool invert);
// SentencePiece's: spaces become a visible character, and each begins a piece.
std::unique_ptr<PreTokenizer> make_metaspace(MetaspaceOptions options);
// Words and runs of other characters: \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_whitespace();
std::unique_ptr<PreTokenizer> make_whitespace_split();
std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer();
std::unique_ptr<PreTokenizer> make_punctuation(SplitBehavior behavior);
std::unique_ptr<PreTokenizer> make_digits(bool individual);
std::unique_ptr<PreTokenizer> make_char_delimiter(char32_t delimiter);
// Cuts where the script changes.
std::unique_ptr<PreTokenizer> make_unicode_scripts();
// Pieces of `length` characters, which is 1 or more.
std::unique_ptr<PreTokenizer> make_fixed_length(size_t length);
std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(std::vector<std::unique_ptr<PreTokenizer>> parts);

}  // namespace quern::tokenizer
