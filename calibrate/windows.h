// How a long text is cut into the windows that a model scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quern::calibrate {

// The usual protocol of perplexity figures: windows of `context` tokens, each scored on its own (nothing is
// remembered from one to the next), the next token of every position counted. With a stride shorter than the
// context, windows overlap, and each scores only what the one before did not: every token but the first
// window's then has at least context - stride tokens before it.
struct WindowProtocol {
  int64_t context = 256;
  int64_t stride = 0;  // 0: as long as the context
  // Tokens at the beginning of the text that the tokenizer put there (<s>): every window begins with them, as
  // every text did that the model was trained on. They take places of the context and are not scored.
  int64_t opening = 0;

  // Tokens of the text in a window that begins with the opening.
  int64_t room() const { return context - opening; }
  int64_t step() const { return stride == 0 || stride > room() ? room() : stride; }
  // Throws Error{InvalidArgument} unless 1 <= stride <= context, or it is 0, and 1 <= room().
  void check() const;
  // "non-overlapping windows of 256 tokens, each scored on its own, the next token of every position counted"
  std::string describe() const;
};

// Inputs: the text's first `opening` tokens again, then those from `begin` on, `length` together. Position p,
// from `first` on, is scored against token target(p).
struct Window {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t first = 0;
  int64_t opening = 0;  // 0: of the first window, where they stand anyway
  int64_t scored() const { return length - first; }
  int64_t target(int64_t position) const { return begin + position - opening + 1; }
  bool operator==(const Window&) const = default;
};

// The whole windows of a text of `tokens` tokens, its opening included; what is left at its end is not
// scored. A text that fills no window is one shorter window, and one of fewer than two tokens, or of its
// opening alone, none.
std::vector<Window> cut_windows(int64_t tokens, const WindowProtocol& protocol);

}  // namespace quern::calibrate
