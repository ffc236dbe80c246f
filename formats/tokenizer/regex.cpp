#include "formats/tokenizer/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// Steps of backtracking that one search may take. Real split patterns need a few for each character.
constexpr unsigned long kMaxRetries = 20'000'000;
constexpr unsigned kMaxStack = 4'000'000;

// \w of Oniguruma: as Rust's `regex` has it, without its joiners. Standing alone, but not within brackets, it
// also holds the digits of Latin-1.
std::vector<CodeRange> word_ranges(bool latin_digits) {
  std::vector<CodeRange> ranges;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const bool latin_digit = c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
    if (!(latin_digit && latin_digits) && (!has_property(c, kWordCharacter) || c == 0x200C || c == 0x200D))
      continue;
    if (!ranges.empty() && ranges.back().last + 1 == c) {
      ranges.back().last = c;
    } else {
      ranges.push_back({c, c});
    }
  }
  return ranges;
}

struct OwnProperty {
  const char* name;   // as patterns spell it, in lower case
  const char* known;  // as Oniguruma knows it
  std::vector<CodeRange> ranges;
};

// The properties of split patterns, with our tables' Unicode version instead of the installed library's.
// Oniguruma has room for twenty.
std::vector<OwnProperty> own_properties() {
  const auto category = [](Category first, Category last) { return category_ranges(first, last); };
  return {{"l", "QuernL", category(Category::Ll, Category::Lu)},
          {"n", "QuernN", category(Category::Nd, Category::No)},
          {"p", "QuernP", category(Category::Pc, Category::Ps)},
          {"s", "QuernS", category(Category::Sc, Category::So)},
          {"m", "QuernM", category(Category::Mc, Category::Mn)},
          {"lu", "QuernLu", category(Category::Lu, Category::Lu)},
          {"ll", "QuernLl", category(Category::Ll, Category::Ll)},
          {"lt", "QuernLt", category(Category::Lt, Category::Lt)},
          {"lm", "QuernLm", category(Category::Lm, Category::Lm)},
          {"lo", "QuernLo", category(Category::Lo, Category::Lo)},
          {"mn", "QuernMn", category(Category::Mn, Category::Mn)},
          {"nd", "QuernNd", category(Category::Nd, Category::Nd)},
          // Spelt \w; patterns can't name these two by a property of their own.
          {"-", "QuernWord", word_ranges(true)},
          {"-", "QuernWordInBrackets", word_ranges(false)},
          {"han", "QuernHan", script_ranges(Script::Han)},
          {"hangul", "QuernHangul", script_ranges(Script::Hangul)},
          {"hiragana", "QuernHiragana", script_ranges(Script::Hiragana)},
          {"katakana", "QuernKatakana", script_ranges(Script::Katakana)}};
}

// Oniguruma keeps what it is given, for the life of the process.
const std::vector<OwnProperty>& registered_properties() {
  static const std::vector<OwnProperty> properties = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    std::vector<OwnProperty> own = own_properties();
    static std::vector<std::vector<OnigCodePoint>> tables;
    tables.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      tables[i].push_back(static_cast<OnigCodePoint>(own[i].ranges.size()));
      for (const CodeRange& range : own[i].ranges) {
        tables[i].push_back(range.first);
        tables[i].push_back(range.last);
      }
      onig_unicode_define_user_property(own[i].known, tables[i].data());
    }
    return own;
  }();
  return properties;
}

std::string normalized_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') out.push_back(static_cast<char>(std::tolower(c)));
  }
  return out;
}

// \w and the like as properties.
std::string_view own_class(char letter, bool in_brackets) {
  switch (letter) {
    case 'w':
      return in_brackets ? "\\p{QuernWordInBrackets}" : "\\p{QuernWord}";
    case 'W':
      return in_brackets ? "\\P{QuernWordInBrackets}" : "\\P{QuernWord}";
    case 'd':
      return "\\p{QuernNd}";
    case 'D':
      return "\\P{QuernNd}";
    default:
      return {};
  }
}

// Rewrites a pattern so that \p{L} and its like name our own properties.
class PropertyRewriter {
 public:
  explicit PropertyRewriter(std::string_view pattern) : pattern_(pattern) {}

  std::string rewrite() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\' && at_ + 1 < pattern_.size()) {
        rewrite_escape();
      } else {
        follow_brackets();
        out_.push_back(pattern_[at_++]);
      }
    }
    return std::move(out_);
  }

 private:
  // A bracket that closes right after the opening one is a character of the class.
  void follow_brackets() {
    if (pattern_[at_] == '[') {
      ++depth_;
      opened_at_ = at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '^' ? at_ + 2 : at_ + 1;
    } else if (pattern_[at_] == ']' && depth_ > 0 && at_ != opened_at_) {
      --depth_;
    }
  }

  void rewrite_escape() {
    const char letter = pattern_[at_ + 1];
    const bool named =
        (letter == 'p' || letter == 'P') && at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{';
    const size_t close = named ? pattern_.find('}', at_) : std::string_view::npos;
    if (close != std::string_view::npos) {
      rewrite_property(close);
      return;
    }
    const std::string_view own = own_class(letter, depth_ > 0);
    out_.append(own.empty() ? pattern_.substr(at_, 2) : own);
    at_ += 2;
  }

  void rewrite_property(size_t close) {
    const size_t name_at = at_ + 3 + (pattern_[at_ + 3] == '^' ? 1 : 0);
    const std::string name = normalized_name(pattern_.substr(name_at, close - name_at));
    const auto& own = registered_properties();
    const auto found =
        std::find_if(own.begin(), own.end(), [&](const OwnProperty& p) { return name == p.name; });
    if (found == own.end()) {
      out_.append(pattern_.substr(at_, close + 1 - at_));
    } else {
      out_.append(pattern_.substr(at_, name_at - at_)).append(found->known).append("}");
    }
    at_ = close + 1;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  size_t opened_at_ = 0;
  std::string out_;
};

std::string onig_message(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int length = info != nullptr ? onig_error_code_to_str(text.data(), code, info)
                                     : onig_error_code_to_str(text.data(), code);
  return to_valid_utf8({reinterpret_cast<const char*>(text.data()), static_cast<size_t>(length)});
}

// Oniguruma's syntax without what lets a pattern call out.
const OnigSyntaxType& syntax() {
  static const OnigSyntaxType own = [] {
    OnigSyntaxType type;
    onig_copy_syntax(&type, ONIG_SYNTAX_ONIGURUMA);
    onig_set_syntax_op2(&type, onig_get_syntax_op2(&type) & ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS |
                                                              ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME));
    return type;
  }();
  return own;
}

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

}  // namespace

struct Regex::Compiled {
  regex_t* regex = nullptr;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

Regex::Regex(std::string_view pattern) : pattern_(pattern), compiled_(std::make_unique<Compiled>()) {
  const std::string own = PropertyRewriter(pattern).rewrite();
  registered_properties();
  OnigErrorInfo info{};
  // Oniguruma guards its global tables with nothing.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int code = onig_new(&compiled_->regex, bytes_of(own), bytes_of(own) + own.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, const_cast<OnigSyntaxType*>(&syntax()), &info);
  if (code != ONIG_NORMAL) {
    compiled_->regex = nullptr;
    throw_error(ErrorCode::InvalidModel, "tokenizer: the regular expression '", pattern,
                "' is invalid: ", onig_message(code, &info));
  }
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

namespace {

// What Oniguruma works in; of use to any search of its thread.
struct Workspace {
  Workspace() : region(onig_region_new()), param(onig_new_match_param()) {
    onig_initialize_match_param(param);
    onig_set_match_stack_limit_size_of_match_param(param, kMaxStack);
    onig_set_retry_limit_in_match_of_match_param(param, kMaxRetries);
    onig_set_retry_limit_in_search_of_match_param(param, kMaxRetries);
  }
  ~Workspace() {
    onig_region_free(region, 1);
    onig_free_match_param(param);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  OnigRegion* region;
  OnigMatchParam* param;
};

}  // namespace

std::optional<Regex::Match> Regex::Iterator::next() {
  thread_local const Workspace workspace;
  const OnigUChar* begin = bytes_of(text_);
  const OnigUChar* end = begin + text_.size();
  while (from_ <= text_.size()) {
    onig_region_clear(workspace.region);
    const int at = onig_search_with_param(regex_.compiled_->regex, begin, end, begin + from_, end,
                                          workspace.region, ONIG_OPTION_NONE, workspace.param);
    if (at == ONIG_MISMATCH) return std::nullopt;
    if (at < 0) {
      throw_error(ErrorCode::BadData, "tokenizer: the regular expression '", regex_.pattern_,
                  "' gives up on this text: ", onig_message(at, nullptr));
    }
    const Match match{static_cast<size_t>(workspace.region->beg[0]),
                      static_cast<size_t>(workspace.region->end[0])};
    if (match.begin == match.end && last_end_ == match.end) {
      from_ += from_ < text_.size() ? utf8_length(text_[from_]) : 1;
      continue;
    }
    from_ = match.end;
    last_end_ = match.end;
    return match;
  }
  return std::nullopt;
}

}  // namespace quern::tokenizer
