#include "formats/tokenizer/pre_tokenizer.h"

#include "formats/tokenizer/byte_level.h"
#include "formats/tokenizer/split_patterns.h"

namespace quern::tokenizer {

void ByteLevelPreTokenizer::apply(Pieces& pieces) const {
  if (options_.add_prefix_space) {
    pieces.rewrite_each([](std::string_view text, const Pieces::Piece&, std::string& out) {
      if (text.front() != ' ') out.push_back(' ');
      out.append(text);
    });
  }
  if (options_.use_regex) {
    pieces.cut_each([](std::string_view text, auto&& emit) {
      const ClassReader reader(text);
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = gpt2_match_end(reader, begin);
        emit(begin, end);
        begin = end;
      }
    });
  }
  if (options_.keep_bytes) return;
  pieces.rewrite_each(
      [](std::string_view text, const Pieces::Piece&, std::string& out) { append_byte_level(text, out); });
}

}  // namespace quern::tokenizer
