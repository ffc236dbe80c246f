// SentencePiece's normalization and decoding.
#include "formats/tokenizer/sentencepiece_model.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

struct SpaceRules {
  bool add_dummy = true;
  bool dummy_at_end = false;
  bool remove_extra = true;
  std::string_view space = kSpaceMark;
};

class SentencePieceNormalizer : public Normalizer {
 public:
  SentencePieceNormalizer(Charsmap charsmap, StringMatcher user_defined, SpaceRules rules)
      : charsmap_(std::move(charsmap)), user_defined_(std::move(user_defined)), rules_(rules) {}

  void apply(NormalizedText& text) const override {
    std::string_view rest = text.text;
    if (rules_.remove_extra) {
      while (!rest.empty()) {
        const Charsmap::Match match = replace_prefix(rest);
        if (match.replacement != " ") break;
        rest.remove_prefix(match.length);
      }
    }
    std::string out;
    if (!rest.empty()) {
      if (rules_.add_dummy && !rules_.dummy_at_end) out += rules_.space;
      append_normalized(rest, text.max_size, out);
      while (rules_.remove_extra && out.ends_with(rules_.space)) out.resize(out.size() - rules_.space.size());
      if (rules_.add_dummy && rules_.dummy_at_end) out += rules_.space;
    }
    text.text = std::move(out);
    text.head = 0;
  }

 private:
  void append_normalized(std::string_view rest, size_t max_size, std::string& out) const {
    bool after_space = rules_.remove_extra;
    while (!rest.empty()) {
      const Charsmap::Match match = replace_prefix(rest);
      std::string_view part = match.replacement;
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      for (const char c : part) {
        if (c == ' ') {
          out += rules_.space;
        } else {
          out.push_back(c);
        }
      }
      if (!part.empty()) after_space = part.ends_with(' ');
      after_space = after_space && rules_.remove_extra;
      rest.remove_prefix(match.length);
      if (out.size() > max_size) {
        throw_error(ErrorCode::BadData, "tokenizer: the normalizer makes more than ", max_size,
                    " bytes of this text");
      }
    }
  }

  // What stands for the beginning of `text`.
  Charsmap::Match replace_prefix(std::string_view text) const {
    const size_t symbol = user_defined_.longest_at(text, 0);
    if (symbol > 0) return {symbol, text.substr(0, symbol)};
    if (const auto match = charsmap_.find_longest(text)) return *match;
    const Utf8Scan scan = scan_utf8(text);
    return scan.valid ? Charsmap::Match{scan.length, text.substr(0, scan.length)}
                      : Charsmap::Match{1, kReplacementUtf8};
  }

  Charsmap charsmap_;
  StringMatcher user_defined_;
  SpaceRules rules_;
};

class SentencePieceStage : public DecodeStage {
 public:
  explicit SentencePieceStage(SentencePieceDecoding decoding) : decoding_(std::move(decoding)) {}
  void text(std::string_view part) override { token_.append(part); }

  void end_token() override {
    if (!token_.empty()) take(token_[0], std::string_view(token_).substr(1));
    token_.clear();
  }

  void finish() override {
    end_bytes();
    at_start_ = true;
    dropped_space_ = false;
    empty_ = true;
    next_->end_token();
    next_->finish();
  }

 private:
  void take(char kind, std::string_view piece) {
    if (kind == 'b') {
      bytes_.append(piece);
      show_characters();
      return;
    }
    end_bytes();
    if (dropped_space_ || !empty_) at_start_ = false;
    dropped_space_ = false;
    if (kind == 'u') {
      show(decoding_.unk_surface);
    } else if (kind == 'n') {
      if (at_start_ && decoding_.drops_first_space && piece.starts_with(kSpaceMark)) {
        piece.remove_prefix(kSpaceMark.size());
        dropped_space_ = !decoding_.drops_all_first_spaces;
      }
      show_piece(piece);
    }
  }

  void show_piece(std::string_view piece) {
    std::string out;
    for (size_t at = piece.find(kSpaceMark); at != std::string_view::npos; at = piece.find(kSpaceMark)) {
      out.append(piece.substr(0, at)).push_back(' ');
      piece.remove_prefix(at + kSpaceMark.size());
    }
    show(out.append(piece));
  }

  void show(std::string_view out) {
    if (out.empty()) return;
    empty_ = false;
    next_->text(out);
  }

  // Of the bytes so far, what is certain; each that is no part of a character is U+FFFD.
  void show_characters() {
    size_t done = 0;
    while (done < bytes_.size()) {
      const Utf8Scan scan = scan_utf8(std::string_view(bytes_).substr(done));
      if (scan.incomplete) break;
      show(scan.valid ? std::string_view(bytes_).substr(done, scan.length) : kReplacementUtf8);
      done += scan.valid ? scan.length : 1;
    }
    bytes_.erase(0, done);
  }

  void end_bytes() {
    for (size_t i = 0; i < bytes_.size(); ++i) show(kReplacementUtf8);
    bytes_.clear();
  }

  SentencePieceDecoding decoding_;
  std::string token_;
  std::string bytes_;
  bool at_start_ = true;
  bool dropped_space_ = false;
  bool empty_ = true;
};

}  // namespace

std::unique_ptr<Normalizer> make_sentencepiece_normalizer(const sentencepiece::NormalizerSpec& spec,
                                                          const SentencePieces& pieces,
                                                          bool spaces_as_suffix) {
  SpaceRules rules;
  rules.add_dummy = spec.add_dummy_prefix();
  rules.dummy_at_end = spaces_as_suffix;
  rules.remove_extra = spec.remove_extra_whitespaces();
  rules.space = spec.escape_whitespaces() ? kSpaceMark : " ";
  return std::make_unique<SentencePieceNormalizer>(Charsmap(spec.precompiled_charsmap()), pieces.user_defined,
                                                   rules);
}

StageFactory sentencepiece_stage(SentencePieceDecoding decoding) {
  return [decoding](bool) { return std::make_unique<SentencePieceStage>(decoding); };
}

}  // namespace quern::tokenizer
