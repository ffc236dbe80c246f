#include "formats/tokenizer/pre_tokenizer.h"

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
namespace {

class ByteLevel : public PreTokenizer {
 public:
  explicit ByteLevel(ByteLevelOptions options) : options_(options) {}

  void apply(Pieces& pieces) const override {
    if (options_.add_prefix_space) {
      pieces.rewrite_each([](std::string_view text, size_t& head, std::string& out) {
        if (text.front() != ' ') {
          out.push_back(' ');
          if (head > 0) ++head;
        }
        out.append(text);
      });
    }
    if (options_.use_regex) {
      pieces.cut_each([](std::string_view text, auto&& emit) { SplitMatcher::gpt2().for_each(text, emit); });
    }
    if (keeps_bytes_) return;
    pieces.rewrite_each([](std::string_view text, size_t& head, std::string& out) {
      const size_t begin = out.size();
      append_byte_level(text.substr(0, head), out);
      const size_t new_head = out.size() - begin;
      append_byte_level(text.substr(head), out);
      head = new_head;
    });
  }

  bool keep_bytes() override {
    keeps_bytes_ = true;
    return true;
  }

 private:
  ByteLevelOptions options_;
  bool keeps_bytes_ = false;
};

class Split : public PreTokenizer {
 public:
  Split(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {
    // Where everything matches, these keep every match as a piece.
    if ((behavior == SplitBehavior::Removed && invert) || behavior == SplitBehavior::Isolated) {
      matcher_ = pattern_->matcher();
    }
  }

  void apply(Pieces& pieces) const override {
    if (matcher_) {
      pieces.cut_each([this](std::string_view text, auto&& emit) { matcher_->for_each(text, emit); });
      return;
    }
    std::vector<Span> spans;
    pieces.cut_each([&](std::string_view text, auto&& emit) {
      spans.clear();
      pattern_->find(text, spans);
      if (invert_) {
        for (Span& span : spans) span.match = !span.match;
      }
      apply_behavior(behavior_, spans);
      for (const Span& span : spans) emit(span.begin, span.end);
    });
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
  std::optional<SplitMatcher> matcher_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options) : options_(std::move(options)) {}

  void apply(Pieces& pieces) const override {
    pieces.rewrite_each([this](std::string_view text, size_t& head, std::string& out) {
      const size_t begin = out.size();
      const bool wants = options_.prepend_scheme == PrependScheme::Always ||
                         (options_.prepend_scheme == PrependScheme::First && head > 0);
      if (wants && text.front() != ' ' && !text.starts_with(options_.replacement))
        out += options_.replacement;
      size_t new_head = 0;
      for (size_t at = 0; at < text.size(); ++at) {
        if (text[at] == ' ') {
          out += options_.replacement;
        } else {
          out.push_back(text[at]);
        }
        if (at < head) new_head = out.size() - begin;
      }
      head = new_head;
    });
    if (!options_.split) return;
    // Each replacement begins a piece.
    pieces.cut_each([this](std::string_view text, auto&& emit) {
      size_t begin = 0;
      for (size_t at = text.find(options_.replacement, 1); at != std::string_view::npos;
           at = text.find(options_.replacement, at + 1)) {
        emit(begin, at);
        begin = at;
      }
      emit(begin, text.size());
    });
  }

 private:
  MetaspaceOptions options_;
};

class Whitespace : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    pieces.cut_each([](std::string_view text, auto&& emit) {
      enum class Kind { Space, Word, Other };
      const ByteTable& properties = property_table();
      Kind kind = Kind::Space;
      size_t begin = 0;
      const char* end = text.data() + text.size();
      for (const char* p = text.data(); p != end;) {
        const auto at = static_cast<size_t>(p - text.data());
        const char32_t c = next_code_point(p);
        const Kind next = (properties[c] & kWordCharacter) != 0 ? Kind::Word
                          : is_white_space(c)                   ? Kind::Space
                                                                : Kind::Other;
        if (next == kind) continue;
        if (kind != Kind::Space) emit(begin, at);
        begin = at;
        kind = next;
      }
      if (kind != Kind::Space) emit(begin, text.size());
    });
  }
};

// Like `tokenizers`, drops what stands before the first character that has a script.
class UnicodeScripts : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    pieces.cut_each([](std::string_view text, auto&& emit) {
      const ByteTable& classes = script_class_table();
      size_t begin = 0;
      uint8_t last = 0;
      const char* end = text.data() + text.size();
      for (const char* p = text.data(); p != end;) {
        const auto at = static_cast<size_t>(p - text.data());
        const uint8_t own = classes[next_code_point(p)];
        if (own == 0) continue;
        if (last != own) {
          if (last != 0) emit(begin, at);
          begin = at;
        }
        last = own;
      }
      if (last != 0) emit(begin, text.size());
    });
  }
};

class FixedLength : public PreTokenizer {
 public:
  explicit FixedLength(size_t length) : length_(length) {}
  void apply(Pieces& pieces) const override {
    pieces.cut_each([this](std::string_view text, auto&& emit) {
      size_t begin = 0;
      size_t characters = 0;
      for (size_t at = 0; at < text.size();) {
        at += utf8_length(text[at]);
        if (++characters < length_) continue;
        emit(begin, at);
        begin = at;
        characters = 0;
      }
      emit(begin, text.size());
    });
  }

 private:
  size_t length_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts)
      : parts_(std::move(parts)) {}
  void apply(Pieces& pieces) const override {
    for (const auto& part : parts_) part->apply(pieces);
  }
  bool keep_bytes() override { return !parts_.empty() && parts_.back()->keep_bytes(); }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

bool is_punctuation(char32_t c) {
  return has_property(c, kPunctuation);
}

}  // namespace

std::unique_ptr<PreTokenizer> make_byte_level_pre_tokenizer(ByteLevelOptions options) {
  return std::make_unique<ByteLevel>(options);
}

std::unique_ptr<PreTokenizer> make_split(std::unique_ptr<Pattern> pattern, SplitBehavior behavior,
                                         bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizer> make_metaspace(MetaspaceOptions options) {
  return std::make_unique<Metaspace>(std::move(options));
}

std::unique_ptr<PreTokenizer> make_whitespace() {
  return std::make_unique<Whitespace>();
}

std::unique_ptr<PreTokenizer> make_whitespace_split() {
  return make_split(make_char_pattern(is_white_space), SplitBehavior::Removed, false);
}

std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer() {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  parts.push_back(make_whitespace_split());
  parts.push_back(make_punctuation(SplitBehavior::Isolated));
  return make_pre_tokenizer_sequence(std::move(parts));
}

std::unique_ptr<PreTokenizer> make_punctuation(SplitBehavior behavior) {
  return make_split(make_char_pattern(is_punctuation), behavior, false);
}

std::unique_ptr<PreTokenizer> make_digits(bool individual) {
  return make_split(make_char_pattern([](char32_t c) { return has_property(c, kNumeric); }),
                    individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous, false);
}

std::unique_ptr<PreTokenizer> make_char_delimiter(char32_t delimiter) {
  return make_split(make_char_pattern([delimiter](char32_t c) { return c == delimiter; }),
                    SplitBehavior::Removed, false);
}

std::unique_ptr<PreTokenizer> make_unicode_scripts() {
  return std::make_unique<UnicodeScripts>();
}

std::unique_ptr<PreTokenizer> make_fixed_length(size_t length) {
  return std::make_unique<FixedLength>(length);
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) {
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

}  // namespace quern::tokenizer
