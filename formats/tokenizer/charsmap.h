// The compiled normalization rules of SentencePiece ("precompiled_charsmap"): a double-array trie of strings
// and what replaces them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quern::tokenizer {

class Charsmap {
 public:
  struct Match {
    size_t length;                 // bytes of the text that are replaced
    std::string_view replacement;  // valid while the Charsmap lives
  };

  // `bytes`: u32 size of the trie, the trie's u32 units, the replacements separated by NUL; little-endian.
  // Throws Error{Corrupt}.
  explicit Charsmap(std::string_view bytes);

  // The shortest or the longest rule that `text` begins with.
  std::optional<Match> find_shortest(std::string_view text) const { return find(text, true); }
  std::optional<Match> find_longest(std::string_view text) const { return find(text, false); }

 private:
  std::optional<Match> find(std::string_view text, bool shortest) const;
  std::string_view replacement_at(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

// The extended grapheme clusters (UAX #29) of up to five bytes, all that matters to make_precompiled();
// longer ones may be told apart wrongly. The end of the one at `begin`.
size_t short_grapheme_end(std::string_view text, size_t begin);

}  // namespace quern::tokenizer
