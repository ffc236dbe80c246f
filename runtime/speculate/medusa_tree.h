// Which guesses of Medusa heads are verified together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quern::runtime {

// The attachment of an artifact (formats/artifact) that holds its tree, as JSON.
inline constexpr const char* kMedusaTreeAttachment = "medusa_tree.json";

// A fixed tree: a node is the path to it, the rank that each head on the way gave its token, from 0, the
// likeliest. [0, 2] is the third choice of the second head behind the first choice of the first one. The form
// of the original's `medusa_choices`.
class MedusaTree {
 public:
  struct Node {
    int32_t parent = -1;  // index; -1: the last token of the text
    int32_t head = 0;     // which guesses it: the length of its path, less 1
    int32_t rank = 0;
  };
  static constexpr size_t kMostNodes = 256;
  static constexpr int32_t kMostRanks = 64;

  // No nodes.
  MedusaTree() = default;
  // Throws Error{InvalidArgument} for a path that is empty or given twice, whose parent is missing, a rank
  // out of range, or too many nodes.
  explicit MedusaTree(std::vector<std::vector<int32_t>> paths);
  // From JSON: a list of paths, or an object with such a list as "paths". Throws Error{BadData} for other
  // text, Error{InvalidArgument} as above.
  static MedusaTree parse(const std::string& text);

  bool empty() const { return nodes_.empty(); }
  size_t size() const { return nodes_.size(); }
  // Shorter paths first, then by rank: a parent comes before its children.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<std::vector<int32_t>>& paths() const { return paths_; }
  int32_t heads() const { return nodes_.empty() ? 0 : nodes_.back().head + 1; }
  // Ranks that are needed of a head.
  int32_t ranks(int32_t head) const;

 private:
  std::vector<std::vector<int32_t>> paths_;
  std::vector<Node> nodes_;
};

// The tree of `nodes` nodes whose expected number of accepted tokens is greatest, where head h's choice of
// rank r is right with probability accuracies[h][r], whatever the others say: of all paths, those with the
// greatest product of accuracies (Cai et al. 2024, section 3.3 and appendix). Paths of probability 0 are left
// out.
MedusaTree best_medusa_tree(const std::vector<std::vector<double>>& accuracies, size_t nodes);

// Tokens that a run with this tree finds on average, the model's own among them: 1 + the sum of all nodes'
// products.
double expected_tokens(const MedusaTree& tree, const std::vector<std::vector<double>>& accuracies);

}  // namespace quern::runtime
