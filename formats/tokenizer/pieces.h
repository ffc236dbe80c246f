// A text cut into pieces, on its way through the pre-tokenizers.
#pragma once

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
    bool at_start;  // nothing of the whole input lies before it
  };

  // One piece, which is all of `text` (kept by the caller).
  Pieces(std::string_view text, bool at_start) : text_(text) {
    if (!text.empty()) pieces_.push_back({0, text.size(), at_start});
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
        scratch_.push_back({piece.begin + begin, piece.begin + end, piece.at_start && begin == 0});
      });
    }
    pieces_.swap(scratch_);
  }

  // Rewrites each piece: rewrite(text, piece, out) appends the new text of the piece to `out`.
  template <class Rewrite>
  void rewrite_each(Rewrite&& rewrite) {
    std::string rewritten;
    rewritten.reserve(text_.size() + 16);
    for (Piece& piece : pieces_) {
      const size_t begin = rewritten.size();
      rewrite(text(piece), piece, rewritten);
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
