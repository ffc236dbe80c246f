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

  int64_t step() const { return stride == 0 ? context : stride; }
  // Throws Error{InvalidArgument} unless 1 <= step() <= context.
  void check() const;
  // "non-overlapping windows of 256 tokens, each scored on its own, the next token of every position counted"
  std::string describe() const;
};

// Inputs: tokens begin .. begin + length - 1. Position p, from `first` on, is scored against token
// begin + p + 1.
struct Window {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t first = 0;
  int64_t scored() const { return length - first; }
  bool operator==(const Window&) const = default;
};

// The whole windows of a text of `tokens` tokens; what is left at its end is not scored. A text that fills no
// window is one shorter window, and one of fewer than two tokens none.
std::vector<Window> cut_windows(int64_t tokens, const WindowProtocol& protocol);

}  // namespace quern::calibrate
