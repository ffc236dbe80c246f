// The decoding stages that put bytes together.
#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/decoder.h"
#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
namespace {

// Gathers bytes and lets whole characters out.
class CharacterBuffer {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }
  void push_back(char byte) { bytes_.push_back(byte); }
  bool empty() const { return bytes_.empty(); }
  void clear() { bytes_.clear(); }

  // What is certain so far; a character that may yet be completed stays.
  std::string take_characters() {
    std::string_view rest = bytes_;
    std::string out;
    while (!rest.empty()) {
      const Utf8Scan scan = scan_utf8(rest);
      if (scan.incomplete) break;
      out.append(scan.valid ? rest.substr(0, scan.length) : kReplacementUtf8);
      rest.remove_prefix(scan.length);
    }
    bytes_.erase(0, bytes_.size() - rest.size());
    return out;
  }

 private:
  std::string bytes_;
};

// All tokens become one, of the bytes that they spell (or are, if `raw`).
class JoinedBytesStage : public DecodeStage {
 public:
  explicit JoinedBytesStage(bool raw) : raw_(raw) {}
  void text(std::string_view part) override { token_.append(part); }

  void end_token() override {
    if (raw_ || !append_spelt()) buffer_.append(token_);
    token_.clear();
    const std::string out = buffer_.take_characters();
    if (!out.empty()) next_->text(out);
  }

  void finish() override {
    if (!buffer_.empty()) next_->text(kReplacementUtf8);
    buffer_.clear();
    next_->end_token();
    next_->finish();
  }

 private:
  // A token with a character outside of the alphabet stands for itself.
  bool append_spelt() {
    std::string bytes;
    const char* end = token_.data() + token_.size();
    for (const char* p = token_.data(); p != end;) {
      const int byte = byte_of_byte_level_char(next_code_point(p));
      if (byte < 0) return false;
      bytes.push_back(static_cast<char>(byte));
    }
    buffer_.append(bytes);
    return true;
  }

  bool raw_;
  std::string token_;
  CharacterBuffer buffer_;
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of a token like <0x0A>, or -1. Rust reads "+5" as a number, too.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return -1;
  const int high = token[3] == '+' ? 0 : hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// A run of byte tokens becomes one token: the characters that its bytes make, or U+FFFD for each byte if they
// make none. When streaming, characters go out as soon as they are whole.
class ByteFallbackStage : public DecodeStage {
 public:
  explicit ByteFallbackStage(bool streaming) : streaming_(streaming) {}
  void text(std::string_view part) override { token_.append(part); }

  void end_token() override {
    const int byte = byte_of_token(token_);
    if (byte < 0) {
      end_run();
      next_->text(token_);
      next_->end_token();
    } else {
      run_.push_back(static_cast<char>(byte));
      if (streaming_ && !scan_tail().incomplete) end_run();
    }
    token_.clear();
  }

  void finish() override {
    end_run();
    next_->finish();
  }

 private:
  // A streaming run holds one character at most.
  Utf8Scan scan_tail() const { return scan_utf8(run_); }

  void end_run() {
    if (run_.empty()) return;
    if (is_valid_utf8(run_)) {
      next_->text(run_);
      next_->end_token();
    } else {
      for (size_t i = 0; i < run_.size(); ++i) {
        next_->text(kReplacementUtf8);
        next_->end_token();
      }
    }
    run_.clear();
  }

  bool streaming_;
  std::string token_;
  std::string run_;
};

}  // namespace

StageFactory byte_level_stage() {
  return [](bool) { return std::make_unique<JoinedBytesStage>(false); };
}

StageFactory raw_bytes_stage() {
  return [](bool) { return std::make_unique<JoinedBytesStage>(true); };
}

StageFactory byte_fallback_stage() {
  return [](bool streaming) { return std::make_unique<ByteFallbackStage>(streaming); };
}

}  // namespace quern::tokenizer
