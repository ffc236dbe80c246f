#include "formats/tokenizer/decoder.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

// More than any token becomes, but for rules made to fill the memory.
constexpr size_t kMaxTokenText = size_t{1} << 26;

void check_growth(const std::string& text) {
  if (text.size() > kMaxTokenText) {
    throw_error(ErrorCode::BadData, "tokenizer: the decoder makes more than ", kMaxTokenText,
                " bytes of one token");
  }
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = from.empty() ? std::string_view::npos : text.find(from); at != std::string_view::npos;
       at = text.find(from, done)) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
    check_growth(out);
  }
  return out.append(text.substr(done));
}

// A stage that needs each token as a whole.
class WholeTokenStage : public DecodeStage {
 public:
  void text(std::string_view part) override { token_.append(part); }
  void end_token() override { take(std::exchange(token_, {})); }

 protected:
  virtual void take(std::string token) = 0;
  void pass(std::string_view token) {
    next_->text(token);
    next_->end_token();
  }

 private:
  std::string token_;
};

class FuseStage : public DecodeStage {
 public:
  void text(std::string_view part) override { next_->text(part); }
  void end_token() override {}
  void finish() override {
    next_->end_token();
    next_->finish();
  }
};

class StripStage : public DecodeStage {
 public:
  StripStage(char32_t content, size_t start, size_t stop) : start_(start), stop_(stop), left_(start) {
    append_utf8(content_, content);
  }

  void text(std::string_view part) override {
    std::string out;
    for (size_t at = 0; at < part.size();) {
      const std::string_view character = part.substr(at, utf8_length(part[at]));
      at += character.size();
      if (character != content_) {
        left_ = 0;
        for (; held_ > 0; --held_) out += content_;
        out += character;
      } else if (left_ > 0) {
        --left_;
      } else if (held_ < stop_) {
        ++held_;  // may be the end of the token
      } else {
        out += content_;
      }
    }
    if (!out.empty()) next_->text(out);
  }

  void end_token() override {
    left_ = start_;
    held_ = 0;
    next_->end_token();
  }

 private:
  std::string content_;
  size_t start_;
  size_t stop_;
  size_t left_;      // characters that may still go from the start of the token
  size_t held_ = 0;  // characters that go if the token ends
};

// Holds no more back than might be the beginning of a match.
class ReplaceStringStage : public DecodeStage {
 public:
  ReplaceStringStage(std::string string, std::string content)
      : string_(std::move(string)), content_(std::move(content)) {}

  void text(std::string_view part) override {
    pending_.append(part);
    size_t done = 0;
    std::string out;
    for (size_t at = pending_.find(string_); at != std::string::npos; at = pending_.find(string_, done)) {
      out.append(pending_, done, at - done).append(content_);
      done = at + string_.size();
      check_growth(out);
    }
    const size_t keep = first_possible_match(done);
    out.append(pending_, done, keep - done);
    pending_.erase(0, keep);
    if (!out.empty()) next_->text(out);
  }

  void end_token() override {
    if (!pending_.empty()) next_->text(pending_);
    pending_.clear();
    next_->end_token();
  }

 private:
  // Where, from `from` on, the rest of pending_ begins like string_; its end if nowhere.
  size_t first_possible_match(size_t from) const {
    const size_t longest = std::min(pending_.size() - from, string_.size() - 1);
    for (size_t at = pending_.size() - longest; at < pending_.size(); ++at) {
      if (string_.starts_with(std::string_view(pending_).substr(at))) return at;
    }
    return pending_.size();
  }

  std::string string_;
  std::string content_;
  std::string pending_;
};

class ReplacePatternStage : public WholeTokenStage {
 public:
  ReplacePatternStage(std::shared_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 protected:
  void take(std::string token) override {
    std::string out;
    std::vector<Span> spans;
    if (!token.empty()) pattern_->find(token, spans);
    for (const Span& span : spans) {
      out += span.match ? std::string_view(content_)
                        : std::string_view(token).substr(span.begin, span.end - span.begin);
      check_growth(out);
    }
    pass(out);
  }

 private:
  std::shared_ptr<const Pattern> pattern_;
  std::string content_;
};

class MetaspaceStage : public DecodeStage {
 public:
  MetaspaceStage(std::string replacement, bool drops_first)
      : replacement_(std::move(replacement)), drops_first_(drops_first), dropping_(drops_first) {}
  void text(std::string_view part) override {
    const std::string out = replace_all(part, replacement_, dropping_ ? "" : " ");
    if (!out.empty()) next_->text(out);
  }
  void end_token() override {
    dropping_ = false;
    next_->end_token();
  }
  void finish() override {
    dropping_ = drops_first_;
    next_->finish();
  }

 private:
  std::string replacement_;
  bool drops_first_;
  bool dropping_;
};

class WordPieceStage : public WholeTokenStage {
 public:
  WordPieceStage(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void finish() override {
    first_ = true;
    next_->finish();
  }

 protected:
  void take(std::string token) override {
    if (!first_) {
      if (token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else {
        token.insert(0, " ");
      }
    }
    first_ = false;
    pass(cleanup_ ? clean_up_spaces(std::move(token)) : token);
  }

 private:
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

// Holds back what follows the last token's first suffix, until it is known whether a token follows.
class BpeStage : public WholeTokenStage {
 public:
  explicit BpeStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void finish() override {
    release("");
    next_->finish();
  }

 protected:
  void take(std::string token) override {
    release(" ");
    const size_t at = suffix_.empty() ? std::string::npos : token.find(suffix_);
    next_->text(std::string_view(token).substr(0, at));
    held_ = at == std::string::npos ? "" : token.substr(at);
  }

 private:
  void release(std::string_view replacement) {
    if (!held_) return;
    if (!held_->empty()) next_->text(replace_all(*held_, suffix_, replacement));
    next_->end_token();
    held_.reset();
  }

  std::string suffix_;
  std::optional<std::string> held_;
};

class CtcStage : public WholeTokenStage {
 public:
  explicit CtcStage(CtcOptions options) : options_(std::move(options)) {}
  void finish() override {
    last_.reset();
    next_->finish();
  }

 protected:
  void take(std::string token) override {
    if (last_ == token) return;
    last_ = token;
    std::string out = replace_all(token, options_.pad_token, "");
    if (options_.cleanup)
      out = replace_all(clean_up_spaces(std::move(out)), options_.word_delimiter_token, " ");
    if (!out.empty()) pass(out);
  }

 private:
  CtcOptions options_;
  std::optional<std::string> last_;
};

class JoinStage : public WholeTokenStage {
 public:
  void finish() override {
    first_ = true;
    next_->finish();
  }

 protected:
  void take(std::string token) override {
    if (!first_) next_->text(" ");
    first_ = false;
    pass(token);
  }

 private:
  bool first_ = true;
};

template <class Stage, class... Arguments>
StageFactory factory_of(Arguments... arguments) {
  return [=](bool) { return std::make_unique<Stage>(arguments...); };
}

}  // namespace

std::string clean_up_spaces(std::string text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kRules = {
      {{" .", "."},
       {" ?", "?"},
       {" !", "!"},
       {" ,", ","},
       {" ' ", "'"},
       {" n't", "n't"},
       {" 'm", "'m"},
       {" do not", " don't"},
       {" 's", "'s"},
       {" 've", "'ve"},
       {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) text = replace_all(text, from, to);
  return text;
}

StageFactory fuse_stage() {
  return factory_of<FuseStage>();
}
StageFactory strip_stage(char32_t content, size_t start, size_t stop) {
  return factory_of<StripStage>(content, start, stop);
}
StageFactory replace_string_stage(std::string string, std::string content) {
  if (string.empty()) return replace_pattern_stage(make_string_pattern(""), std::move(content));
  return factory_of<ReplaceStringStage>(std::move(string), std::move(content));
}
StageFactory replace_pattern_stage(std::shared_ptr<const Pattern> pattern, std::string content) {
  return factory_of<ReplacePatternStage>(std::move(pattern), std::move(content));
}
StageFactory metaspace_stage(std::string replacement, bool drops_first) {
  return factory_of<MetaspaceStage>(std::move(replacement), drops_first);
}
StageFactory word_piece_stage(std::string prefix, bool cleanup) {
  return factory_of<WordPieceStage>(std::move(prefix), cleanup);
}
StageFactory bpe_stage(std::string suffix) {
  return factory_of<BpeStage>(std::move(suffix));
}
StageFactory ctc_stage(CtcOptions options) {
  return factory_of<CtcStage>(std::move(options));
}
StageFactory join_stage() {
  return factory_of<JoinStage>();
}

DecodeStream::DecodeStream(const std::vector<StageFactory>& factories, bool streaming) {
  for (const StageFactory& factory : factories) stages_.push_back(factory(streaming));
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    (*stage)->set_next(first_);
    first_ = stage->get();
  }
}

std::string DecodeStream::push(std::string_view token) {
  first_->text(token);
  first_->end_token();
  return std::exchange(sink_.collected, {});
}

std::string DecodeStream::finish() {
  first_->finish();
  return std::exchange(sink_.collected, {});
}

}  // namespace quern::tokenizer
