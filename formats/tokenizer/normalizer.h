// What rewrites a text before it is cut into pieces.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quern::tokenizer {

class Pattern;
class Charsmap;

// A text on its way through the normalizers.
struct NormalizedText {
  std::string text;  // valid UTF-8
  // So many bytes at its beginning come from the first character that the text had before. Metaspace asks, to
  // know which piece begins the text.
  size_t head = 0;
  // More than this is an error: rules that replace a little by a lot must not fill the memory.
  size_t max_size = 0;

  NormalizedText(std::string_view raw, size_t limit);
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Throws Error{BadData} where the text grows over its max_size.
  virtual void apply(NormalizedText& text) const = 0;
};

// The Unicode normalization forms (UAX #15), of the Unicode version that `tokenizers` has.
enum class NormalizationForm { Nfc, Nfd, Nfkc, Nfkd };
std::string to_normalization_form(std::string_view text, NormalizationForm form);

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  std::optional<bool> strip_accents;  // as `lowercase`, if unset
  bool lowercase = true;
};

std::unique_ptr<Normalizer> make_unicode_normalizer(NormalizationForm form);
std::unique_ptr<Normalizer> make_lowercase();
std::unique_ptr<Normalizer> make_strip(bool left, bool right);
std::unique_ptr<Normalizer> make_strip_accents();
std::unique_ptr<Normalizer> make_replace(std::unique_ptr<Pattern> pattern, std::string content);
std::unique_ptr<Normalizer> make_prepend(std::string prefix);
std::unique_ptr<Normalizer> make_precompiled(Charsmap charsmap);
std::unique_ptr<Normalizer> make_bert_normalizer(BertNormalizerOptions options);
// SentencePiece's rules for neural machine translation: control characters go, odd whitespace becomes spaces.
std::unique_ptr<Normalizer> make_nmt();
std::unique_ptr<Normalizer> make_byte_level_normalizer();
std::unique_ptr<Normalizer> make_normalizer_sequence(std::vector<std::unique_ptr<Normalizer>> parts);

}  // namespace quern::tokenizer
