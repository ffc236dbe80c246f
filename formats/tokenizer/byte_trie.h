// A read-only trie over byte strings.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tokenizer/vocabulary.h"

namespace quern::tokenizer {

class ByteTrie {
 public:
  ByteTrie() = default;
  // `entries`: strings and their values; sorted here. Of equal strings the last one's value counts.
  explicit ByteTrie(std::vector<std::pair<std::string_view, uint32_t>> entries);

  // visit(length, value) for every entry that `text` begins with, shortest first.
  template <class Visit>
  void for_each_prefix(std::string_view text, Visit&& visit) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) return;
      if (nodes_[node].value != kNoId) visit(i + 1, nodes_[node].value);
    }
  }

 private:
  // Children stand side by side in labels_ and targets_, by rising label.
  struct Node {
    uint32_t first_child = 0;
    uint32_t children = 0;
    uint32_t value = kNoId;
  };
  uint32_t child(uint32_t node, uint8_t label) const;

  std::vector<Node> nodes_{1};
  std::vector<uint8_t> labels_;
  std::vector<uint32_t> targets_;
  std::array<uint32_t, 256> root_children_{};
};

}  // namespace quern::tokenizer
