// A text cut into pieces, on its way through the pre-tokenizers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quern::tokenizer {

class Pieces {
 public:
  struct Piece {
    size_t begin;
    size_t end;
    size_t head;  // bytes at its beginning that come from the first character of the whole input
  };

  // One piece, which is all of `text` (kept by the caller).
  Pieces(std::string_view text, size_t head) : text_(text) {
    if (!text.empty()) pieces_.push_back({0, text.size(), head});
  }

  const std::vector<Piece>& list() const { return pieces_; }
  std::string_view text(const Piece& piece) const {
    return text_.substr(piece.begin, piece.end - piece.begin);
  }

  // Cuts each piece anew: cut(text, emit) calls emit(begin, end) for each part of `text`, in order; empty
  // parts are dropped.
  template <class Cut>
  void cut_each(Cut&& cut) {
    scratch_.clear();
    for (const Piece& piece : pieces_) {
      cut(text(piece), [&](size_t begin, size_t end) {
        if (begin == end) return;
        const size_t head = std::min(piece.head - std::min(piece.head, begin), end - begin);
        scratch_.push_back({piece.begin + begin, piece.begin + end, head});
      });
    }
    pieces_.swap(scratch_);
  }

  // Rewrites each piece: rewrite(text, head, out) appends the new text of the piece to `out` and updates its
  // head.
  template <class Rewrite>
  void rewrite_each(Rewrite&& rewrite) {
    std::string rewritten;
    rewritten.reserve(text_.size() + 16);
    for (Piece& piece : pieces_) {
      const size_t begin = rewritten.size();
      rewrite(text(piece), piece.head, rewritten);
      piece.begin = begin;
      piece.end = rewritten.size();
    }
    owned_ = std::move(rewritten);
    text_ = owned_;
  }

 private:
  std::string owned_;
  std::string_view text_;
  std::vector<Piece> pieces_;
  std::vector<Piece> scratch_;
};

}  // namespace quern::tokenizer
