// Token texts to text, in stages that work token by token, so that a stream of tokens decodes as it comes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer/spans.h"

namespace quern::tokenizer {

// One step. Receives each token as some parts of text and an end; passes the same on to the next stage.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual void text(std::string_view part) = 0;
  virtual void end_token() = 0;
  // After the last token.
  virtual void finish() { next_->finish(); }
  void set_next(DecodeStage* next) { next_ = next; }

 protected:
  DecodeStage* next_ = nullptr;
};

// `streaming`: prefer showing text early over replacing a whole malformed sequence.
using StageFactory = std::function<std::unique_ptr<DecodeStage>(bool streaming)>;

// Joins the bytes that tokens spell in the byte-level alphabet.
StageFactory byte_level_stage();
// Joins the bytes that tokens like <0x0A> stand for.
StageFactory byte_fallback_stage();
// Joins all tokens into one.
StageFactory fuse_stage();
// Takes up to `start` and `stop` characters `content` off the ends of each token.
StageFactory strip_stage(char32_t content, size_t start, size_t stop);
StageFactory replace_string_stage(std::string string, std::string content);
StageFactory replace_pattern_stage(std::shared_ptr<const Pattern> pattern, std::string content);
// `replacement` becomes a space, or nothing in the first token if `drops_first`.
StageFactory metaspace_stage(std::string replacement, bool drops_first);
StageFactory word_piece_stage(std::string prefix, bool cleanup);
// `suffix` becomes a space, or nothing in the last token.
StageFactory bpe_stage(std::string suffix);

struct CtcOptions {
  std::string pad_token = "<pad>";
  std::string word_delimiter_token = "|";
  bool cleanup = true;
};
// Connectionist temporal classification: of equal tokens in a row one stays.
StageFactory ctc_stage(CtcOptions options);
// What stands between tokens when a tokenizer has no decoder: a space.
StageFactory join_stage();
// Bytes as they are; what is malformed becomes U+FFFD.
StageFactory raw_bytes_stage();

// Takes the spaces before punctuation and short forms of English away that tokenizing had put there.
std::string clean_up_spaces(std::string text);

// The stages of one decoding.
class DecodeStream {
 public:
  DecodeStream(const std::vector<StageFactory>& factories, bool streaming);
  // The text that became certain with this token.
  std::string push(std::string_view token);
  std::string finish();

 private:
  class Sink : public DecodeStage {
   public:
    void text(std::string_view part) override { collected.append(part); }
    void end_token() override {}
    void finish() override {}
    std::string collected;
  };
  Sink sink_;
  std::vector<std::unique_ptr<DecodeStage>> stages_;
  DecodeStage* first_ = &sink_;
};

}  // namespace quern::tokenizer
