#include "formats/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/charsmap.h"
#include "formats/tokenizer/spans.h"
#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// Rewrites character by character: rewrite(c, out) appends what becomes of c.
template <class Rewrite>
void rewrite_characters(NormalizedText& text, Rewrite&& rewrite) {
  std::string out;
  out.reserve(text.text.size());
  size_t head = 0;
  const char* end = text.text.data() + text.text.size();
  for (const char* p = text.text.data(); p != end;) {
    const bool in_head = static_cast<size_t>(p - text.text.data()) < text.head;
    rewrite(next_code_point(p), out);
    if (in_head) head = out.size();
  }
  text.text = std::move(out);
  text.head = head;
}

void check_growth(size_t size, size_t max_size) {
  if (size > max_size) {
    throw_error(ErrorCode::BadData, "tokenizer: the normalizer makes more than ", max_size,
                " bytes of this text");
  }
}

void append_lower(char32_t c, std::string& out) {
  if (c == 0x130) {
    out += "i\u0307";
  } else {
    append_utf8(out, to_lower(c));
  }
}

int utf8proc_options(NormalizationForm form) {
  switch (form) {
    case NormalizationForm::Nfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalizationForm::Nfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalizationForm::Nfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalizationForm::Nfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

void append_normalized(std::string_view text, NormalizationForm form, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result,
                                               static_cast<utf8proc_option_t>(utf8proc_options(form)));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
  if (length < 0) {
    throw_error(length == UTF8PROC_ERROR_NOMEM ? ErrorCode::OutOfMemory : ErrorCode::Internal,
                "normalizing a text of ", text.size(), " bytes: ", utf8proc_errmsg(length));
  }
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
}

// The bytes that no form changes: ASCII, and for NFC all below U+0300.
size_t unchanged_prefix(std::string_view text, NormalizationForm form) {
  const unsigned char limit = form == NormalizationForm::Nfc ? 0xCC : 0x80;
  const auto changed =
      std::find_if(text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) >= limit; });
  return static_cast<size_t>(changed - text.begin());
}

class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalizationForm form) : form_(form) {}
  void apply(NormalizedText& text) const override {
    if (unchanged_prefix(text.text, form_) == text.text.size()) return;
    std::string out = to_normalization_form(text.text, form_);
    text.head = normalized_head(text, out);
    text.text = std::move(out);
  }

 private:
  // The characters of the result that hold what the head decomposes into.
  size_t normalized_head(const NormalizedText& text, std::string_view out) const {
    const bool compatible = form_ == NormalizationForm::Nfkc || form_ == NormalizationForm::Nfkd;
    const auto decomposed = compatible ? NormalizationForm::Nfkd : NormalizationForm::Nfd;
    const size_t wanted =
        count_characters(to_normalization_form(std::string_view(text.text).substr(0, text.head), decomposed));
    size_t at = 0;
    for (size_t found = 0; found < wanted && at < out.size();) {
      const std::string_view character = out.substr(at, utf8_length(out[at]));
      found += count_characters(to_normalization_form(character, decomposed));
      at += character.size();
    }
    return at;
  }

  NormalizationForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { rewrite_characters(text, append_lower); }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedText& text) const override {
    std::string_view rest = text.text;
    while (left_ && !rest.empty() && is_white_space(code_point_at(rest.data()))) {
      rest.remove_prefix(utf8_length(rest.front()));
    }
    const size_t removed = text.text.size() - rest.size();
    while (right_ && !rest.empty()) {
      const char32_t c = last_code_point(rest);
      if (!is_white_space(c)) break;
      rest.remove_suffix(c < 0x80 ? 1 : c < 0x800 ? 2 : 3);
    }
    text.head = std::min(text.head - std::min(text.head, removed), rest.size());
    if (rest.size() < text.text.size()) text.text = std::string(rest);
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    rewrite_characters(text, [](char32_t c, std::string& out) {
      if (!has_property(c, kCombiningMark)) append_utf8(out, c);
    });
  }
};

class Replace : public Normalizer {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    std::vector<Span> spans;
    pattern_->find(text.text, spans);
    std::string out;
    out.reserve(text.text.size());
    size_t head = 0;
    for (const Span& span : spans) {
      if (span.match) {
        out += content_;
        // What replaces a match counts as its last character.
        if (span.end <= text.head) head = out.size();
      } else {
        if (span.begin < text.head) head = out.size() + std::min(span.end, text.head) - span.begin;
        out.append(text.text, span.begin, span.end - span.begin);
      }
      check_growth(out.size(), text.max_size);
    }
    text.text = std::move(out);
    text.head = head;
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    check_growth(text.text.size() + prefix_.size(), text.max_size);
    text.text.insert(0, prefix_);
    if (text.head > 0) text.head += prefix_.size();
  }

 private:
  std::string prefix_;
};

// As `tokenizers` applies the map: to each grapheme of less than six bytes as a whole, where the shortest
// rule that it begins with replaces all of it, else to each character.
class Precompiled : public Normalizer {
 public:
  explicit Precompiled(Charsmap charsmap) : charsmap_(std::move(charsmap)) {}
  void apply(NormalizedText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    const std::string_view view = text.text;
    size_t head = 0;
    for (size_t begin = 0; begin < view.size();) {
      const size_t end = short_grapheme_end(view, begin);
      append_grapheme(view.substr(begin, end - begin), out);
      check_growth(out.size(), text.max_size);
      if (begin < text.head) head = out.size();
      begin = end;
    }
    text.text = std::move(out);
    text.head = head;
  }

 private:
  void append_grapheme(std::string_view grapheme, std::string& out) const {
    if (grapheme.size() < 6) {
      if (const auto match = charsmap_.find_shortest(grapheme)) {
        out += match->replacement;
        return;
      }
    }
    for (size_t at = 0; at < grapheme.size();) {
      const std::string_view character = grapheme.substr(at, utf8_length(grapheme[at]));
      const auto match = charsmap_.find_shortest(character);
      out += match ? match->replacement : character;
      at += character.size();
    }
  }

  Charsmap charsmap_;
};

bool is_cjk_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(BertNormalizerOptions options) : options_(options) {}
  void apply(NormalizedText& text) const override {
    rewrite_characters(text, [this](char32_t c, std::string& out) { append_cleaned(c, out); });
    if (options_.strip_accents.value_or(options_.lowercase)) {
      UnicodeNormalizer(NormalizationForm::Nfd).apply(text);
      rewrite_characters(text, [](char32_t c, std::string& out) {
        if (!has_property(c, kNonspacingMark)) append_utf8(out, c);
      });
    }
    if (options_.lowercase) rewrite_characters(text, append_lower);
  }

 private:
  void append_cleaned(char32_t c, std::string& out) const {
    if (options_.clean_text) {
      if (has_property(c, kBertControl)) return;
      if (is_white_space(c)) c = ' ';
    }
    const bool apart = options_.handle_chinese_chars && is_cjk_ideograph(c);
    if (apart) out.push_back(' ');
    append_utf8(out, c);
    if (apart) out.push_back(' ');
  }

  BertNormalizerOptions options_;
};

class Nmt : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    rewrite_characters(text, [](char32_t c, std::string& out) {
      if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
        return;
      const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                         c == 0xFEFF || c == 0xFFFD;
      append_utf8(out, space ? U' ' : c);
    });
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    const std::string_view view = text.text;
    std::string out;
    append_byte_level(view.substr(0, text.head), out);
    const size_t head = out.size();
    append_byte_level(view.substr(text.head), out);
    text.text = std::move(out);
    text.head = head;
  }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(NormalizedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

NormalizedText::NormalizedText(std::string_view raw, size_t limit)
    : text(raw), head(raw.empty() ? 0 : utf8_length(raw.front())), max_size(limit) {}

// The installed utf8proc may know newer characters than `tokenizers`. To an older version these are starters
// that compose with nothing, so that the text may be cut at them and normalized piece by piece.
std::string to_normalization_form(std::string_view text, NormalizationForm form) {
  std::string out;
  out.reserve(text.size());
  const ByteTable& properties = property_table();
  size_t done = 0;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    const auto begin = static_cast<size_t>(p - text.data());
    if ((properties[next_code_point(p)] & kUnnormalized) == 0) continue;
    append_normalized(text.substr(done, begin - done), form, out);
    done = static_cast<size_t>(p - text.data());
    out.append(text.substr(begin, done - begin));
  }
  append_normalized(text.substr(done), form, out);
  return out;
}

std::unique_ptr<Normalizer> make_unicode_normalizer(NormalizationForm form) {
  return std::make_unique<UnicodeNormalizer>(form);
}
std::unique_ptr<Normalizer> make_lowercase() {
  return std::make_unique<Lowercase>();
}
std::unique_ptr<Normalizer> make_strip(bool left, bool right) {
  return std::make_unique<Strip>(left, right);
}
std::unique_ptr<Normalizer> make_strip_accents() {
  return std::make_unique<StripAccents>();
}
std::unique_ptr<Normalizer> make_replace(std::unique_ptr<Pattern> pattern, std::string content) {
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}
std::unique_ptr<Normalizer> make_prepend(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}
std::unique_ptr<Normalizer> make_precompiled(Charsmap charsmap) {
  return std::make_unique<Precompiled>(std::move(charsmap));
}
std::unique_ptr<Normalizer> make_bert_normalizer(BertNormalizerOptions options) {
  return std::make_unique<BertNormalizer>(options);
}
std::unique_ptr<Normalizer> make_nmt() {
  return std::make_unique<Nmt>();
}
std::unique_ptr<Normalizer> make_byte_level_normalizer() {
  return std::make_unique<ByteLevelNormalizer>();
}
std::unique_ptr<Normalizer> make_normalizer_sequence(std::vector<std::unique_ptr<Normalizer>> parts) {
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

}  // namespace quern::tokenizer
