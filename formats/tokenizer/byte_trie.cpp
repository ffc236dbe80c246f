#include "formats/tokenizer/byte_trie.h"

#include <algorithm>

namespace quern::tokenizer {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, uint32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // Breadth first: a node is a range of entries that share their first `depth` bytes.
  struct Open {
    uint32_t node;
    size_t begin;
    size_t end;
    size_t depth;
  };
  std::vector<Open> open = {{0, 0, entries.size(), 0}};
  for (size_t next = 0; next < open.size(); ++next) {
    const Open at = open[next];
    size_t begin = at.begin;
    while (begin < at.end && entries[begin].first.size() == at.depth) {
      if (at.depth > 0) nodes_[at.node].value = entries[begin].second;
      ++begin;
    }
    nodes_[at.node].first_child = static_cast<uint32_t>(labels_.size());
    while (begin < at.end) {
      const char label = entries[begin].first[at.depth];
      size_t end = begin;
      while (end < at.end && entries[end].first[at.depth] == label) ++end;
      const auto target = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      labels_.push_back(static_cast<uint8_t>(label));
      targets_.push_back(target);
      if (at.node == 0) root_children_[static_cast<uint8_t>(label)] = target;
      ++nodes_[at.node].children;
      open.push_back({target, begin, end, at.depth + 1});
      begin = end;
    }
  }
}

uint32_t ByteTrie::child(uint32_t node, uint8_t label) const {
  if (node == 0) return root_children_[label];
  const Node& from = nodes_[node];
  const auto begin = labels_.begin() + from.first_child;
  const auto end = begin + from.children;
  const auto found = from.children <= 8 ? std::find(begin, end, label) : std::lower_bound(begin, end, label);
  return found != end && *found == label ? targets_[static_cast<size_t>(found - labels_.begin())] : 0;
}

}  // namespace quern::tokenizer
