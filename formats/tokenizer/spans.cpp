#include "formats/tokenizer/spans.h"

#include <algorithm>

#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
namespace {

// Adds a match at [begin, end) and the text between it and the last span.
void add_match(size_t& done, size_t begin, size_t end, std::vector<Span>& spans) {
  if (done < begin) spans.push_back({done, begin, false});
  spans.push_back({begin, end, true});
  done = end;
}

void add_rest(size_t done, std::string_view text, std::vector<Span>& spans) {
  if (done < text.size()) spans.push_back({done, text.size(), false});
}

class MatcherPattern : public Pattern {
 public:
  explicit MatcherPattern(SplitMatcher matcher) : matcher_(matcher) {}
  void find(std::string_view text, std::vector<Span>& spans) const override {
    matcher_.for_each(text, [&](size_t begin, size_t end) { spans.push_back({begin, end, true}); });
  }
  std::optional<SplitMatcher> matcher() const override { return matcher_; }

 private:
  SplitMatcher matcher_;
};

class RegexPattern : public Pattern {
 public:
  explicit RegexPattern(std::string_view regex) : regex_(regex) {}
  void find(std::string_view text, std::vector<Span>& spans) const override {
    size_t done = 0;
    Regex::Iterator matches(regex_, text);
    while (const auto match = matches.next()) add_match(done, match->begin, match->end, spans);
    add_rest(done, text, spans);
  }

 private:
  Regex regex_;
};

class StringPattern : public Pattern {
 public:
  explicit StringPattern(std::string_view string) : string_(string) {}
  void find(std::string_view text, std::vector<Span>& spans) const override {
    size_t done = 0;
    if (string_.empty()) {
      for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) add_match(done, at, at, spans);
      add_match(done, text.size(), text.size(), spans);
      return;
    }
    for (size_t at = text.find(string_); at != std::string_view::npos; at = text.find(string_, done)) {
      add_match(done, at, at + string_.size(), spans);
    }
    add_rest(done, text, spans);
  }

 private:
  std::string string_;
};

class CharPattern : public Pattern {
 public:
  explicit CharPattern(std::function<bool(char32_t)> matches) : matches_(std::move(matches)) {}
  void find(std::string_view text, std::vector<Span>& spans) const override {
    size_t done = 0;
    const char* end = text.data() + text.size();
    for (const char* p = text.data(); p != end;) {
      const auto begin = static_cast<size_t>(p - text.data());
      if (matches_(next_code_point(p))) add_match(done, begin, static_cast<size_t>(p - text.data()), spans);
    }
    add_rest(done, text, spans);
  }

 private:
  std::function<bool(char32_t)> matches_;
};

// Joins a span to the one kept before it where `joins(span, the match flag of the span before)`.
template <class Joins>
void join_spans(std::vector<Span>& spans, Joins&& joins) {
  size_t kept = 0;
  bool previous = false;
  for (const Span& span : spans) {
    const Span current = span;
    if (kept > 0 && joins(current.match, previous)) {
      Span& last = spans[kept - 1];
      last.begin = std::min(last.begin, current.begin);
      last.end = std::max(last.end, current.end);
    } else {
      spans[kept++] = current;
    }
    previous = current.match;
  }
  spans.resize(kept);
}

}  // namespace

std::unique_ptr<Pattern> make_regex_pattern(std::string_view regex) {
  if (const auto matcher = SplitMatcher::known(regex)) return std::make_unique<MatcherPattern>(*matcher);
  return std::make_unique<RegexPattern>(regex);
}

std::unique_ptr<Pattern> make_string_pattern(std::string_view string) {
  return std::make_unique<StringPattern>(string);
}

std::unique_ptr<Pattern> make_char_pattern(std::function<bool(char32_t)> matches) {
  return std::make_unique<CharPattern>(std::move(matches));
}

void apply_behavior(SplitBehavior behavior, std::vector<Span>& spans) {
  switch (behavior) {
    case SplitBehavior::Removed:
      std::erase_if(spans, [](const Span& span) { return span.match; });
      return;
    case SplitBehavior::Isolated:
      return;
    case SplitBehavior::Contiguous:
      join_spans(spans, [](bool match, bool previous) { return match == previous; });
      return;
    case SplitBehavior::MergedWithPrevious:
      join_spans(spans, [](bool match, bool previous) { return match && !previous; });
      return;
    case SplitBehavior::MergedWithNext:
      std::reverse(spans.begin(), spans.end());
      join_spans(spans, [](bool match, bool previous) { return match && !previous; });
      std::reverse(spans.begin(), spans.end());
      return;
  }
}

}  // namespace quern::tokenizer
