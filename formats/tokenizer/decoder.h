// Token texts to text, in stages that work token by token, so that a stream of tokens decodes as it comes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
std::unique_ptr<DecodeStage> make_byte_level_stage();
// What stands between tokens when a tokenizer has no decoder: a space.
std::unique_ptr<DecodeStage> make_join_stage();

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
};

}  // namespace quern::tokenizer
