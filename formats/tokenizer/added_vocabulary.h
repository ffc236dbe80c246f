// The tokens that are looked for in a text before anything else, and those that are special.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/tokenizer/normalizer.h"
#include "formats/tokenizer/tokenizer.h"
#include "formats/tokenizer/vocabulary.h"

namespace quern::tokenizer {

// Finds the leftmost, and there the longest, of a set of strings.
class StringMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    uint32_t value;
  };
  void add(std::string_view string, uint32_t value);
  bool empty() const { return nodes_.size() == 1; }
  // Bytes of the longest string that stands at `at`; 0 for none.
  size_t longest_at(std::string_view text, size_t at) const;
  // The first match at or after `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    uint32_t value = kNoId;
  };
  const Node* child(const Node& node, char byte) const;

  std::vector<Node> nodes_{1};
  std::array<bool, 256> starts_{};
};

struct AddOptions {
  // Whether encode() looks for the tokens in texts.
  bool match_in_text = true;
  // Whether a token keeps the id that it comes with.
  bool keep_ids = false;
};

class AddedVocabulary {
 public:
  // A stretch of text, or a token found between such stretches.
  struct Section {
    size_t begin;
    size_t end;
    uint32_t id;  // kNoId for text
  };

  // Unless they keep theirs, tokens without an id of their own in `model` get the ids that `tokenizers` would
  // give them, whatever the file says. `normalizer` may be null.
  void add(std::vector<AddedToken> tokens, const Vocabulary& model, const Normalizer* normalizer,
           AddOptions options = {});

  // Cuts `text` at the tokens that are searched in raw or in normalized text.
  std::vector<Section> split_raw(std::string_view text) const { return split(text, raw_); }
  std::vector<Section> split_normalized(std::string_view text) const { return split(text, normalized_); }

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* find(int64_t id) const;
  const AddedToken* find(std::string_view content) const;
  bool is_special(int64_t id) const;
  bool is_special(std::string_view content) const;
  // What the decoder gets for the token: its normalized form where it has one.
  std::string_view decoder_text(const AddedToken& token) const;
  // Largest id + 1 among the added tokens.
  int64_t id_limit() const { return id_limit_; }

 private:
  std::vector<Section> split(std::string_view text, const StringMatcher& matcher) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<int64_t, size_t> by_id_;
  std::unordered_map<std::string, size_t> by_content_;
  std::unordered_map<int64_t, std::string> normalized_texts_;
  StringMatcher raw_;
  StringMatcher normalized_;
  int64_t id_limit_ = 0;
};

}  // namespace quern::tokenizer
