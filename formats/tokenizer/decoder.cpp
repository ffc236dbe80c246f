#include "formats/tokenizer/decoder.h"

#include <utility>

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
namespace {

class JoinStage : public DecodeStage {
 public:
  void text(std::string_view part) override {
    if (between_tokens_) next_->text(" ");
    between_tokens_ = false;
    next_->text(part);
  }
  void end_token() override {
    if (between_tokens_) next_->text(" ");  // an empty token
    between_tokens_ = true;
    next_->end_token();
  }
  void finish() override {
    between_tokens_ = false;
    next_->finish();
  }

 private:
  bool between_tokens_ = false;
};

// All tokens become one, of the bytes that they spell.
class ByteLevelStage : public DecodeStage {
 public:
  void text(std::string_view part) override { token_.append(part); }

  void end_token() override {
    append_bytes();
    token_.clear();
    emit_characters();
  }

  void finish() override {
    if (!bytes_.empty()) next_->text(kReplacementUtf8);
    bytes_.clear();
    next_->end_token();
    next_->finish();
  }

 private:
  // A token with a character outside of the alphabet stands for itself.
  void append_bytes() {
    const size_t before = bytes_.size();
    const char* end = token_.data() + token_.size();
    for (const char* p = token_.data(); p != end;) {
      const int byte = byte_of_byte_level_char(next_code_point(p));
      if (byte < 0) {
        bytes_.resize(before);
        bytes_.append(token_);
        return;
      }
      bytes_.push_back(static_cast<char>(byte));
    }
  }

  // Passes on what is whole; a character that may yet be completed stays.
  void emit_characters() {
    std::string_view rest = bytes_;
    std::string out;
    while (!rest.empty()) {
      const Utf8Scan scan = scan_utf8(rest);
      if (scan.incomplete) break;
      out.append(scan.valid ? rest.substr(0, scan.length) : kReplacementUtf8);
      rest.remove_prefix(scan.length);
    }
    bytes_.erase(0, bytes_.size() - rest.size());
    if (!out.empty()) next_->text(out);
  }

  std::string token_;
  std::string bytes_;
};

}  // namespace

std::unique_ptr<DecodeStage> make_byte_level_stage() {
  return std::make_unique<ByteLevelStage>();
}

std::unique_ptr<DecodeStage> make_join_stage() {
  return std::make_unique<JoinStage>();
}

DecodeStream::DecodeStream(const std::vector<StageFactory>& factories, bool streaming) {
  for (const StageFactory& factory : factories) stages_.push_back(factory(streaming));
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i]->set_next(i + 1 < stages_.size() ? stages_[i + 1].get() : &sink_);
  }
}

std::string DecodeStream::push(std::string_view token) {
  stages_.front()->text(token);
  stages_.front()->end_token();
  return std::exchange(sink_.collected, {});
}

std::string DecodeStream::finish() {
  stages_.front()->finish();
  return std::exchange(sink_.collected, {});
}

}  // namespace quern::tokenizer
