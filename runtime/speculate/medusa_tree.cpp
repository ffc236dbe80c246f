#include "runtime/speculate/medusa_tree.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <queue>

#include "ir/error.h"

namespace quern::runtime {
namespace {

std::string to_text(const std::vector<int32_t>& path) {
  std::string text;
  for (const int32_t rank : path) text += concat(text.empty() ? "" : ", ", rank);
  return "[" + text + "]";
}

double product(const std::vector<int32_t>& path, const std::vector<std::vector<double>>& accuracies) {
  double probability = 1;
  for (size_t h = 0; h < path.size(); ++h) {
    const auto rank = static_cast<size_t>(path[h]);
    probability *= h < accuracies.size() && rank < accuracies[h].size() ? accuracies[h][rank] : 0;
  }
  return probability;
}

}  // namespace

MedusaTree::MedusaTree(std::vector<std::vector<int32_t>> paths) : paths_(std::move(paths)) {
  if (paths_.size() > kMostNodes) {
    throw_error(ErrorCode::InvalidArgument, "a tree of ", paths_.size(), " nodes; at most ", kMostNodes,
                " are verified together");
  }
  std::sort(paths_.begin(), paths_.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  std::map<std::vector<int32_t>, int32_t> places;
  for (const std::vector<int32_t>& path : paths_) {
    if (path.empty()) throw_error(ErrorCode::InvalidArgument, "a tree's node has an empty path");
    for (const int32_t rank : path) {
      if (rank < 0 || rank >= kMostRanks)
        throw_error(ErrorCode::InvalidArgument, "the path ", to_text(path), " has a rank outside of 0 to ",
                    kMostRanks - 1);
    }
    int32_t parent = -1;
    if (path.size() > 1) {
      const auto found = places.find({path.begin(), path.end() - 1});
      if (found == places.end())
        throw_error(ErrorCode::InvalidArgument, "the tree has ", to_text(path),
                    ", but not the node before it");
      parent = found->second;
    }
    if (!places.emplace(path, static_cast<int32_t>(nodes_.size())).second)
      throw_error(ErrorCode::InvalidArgument, "the tree has ", to_text(path), " twice");
    nodes_.push_back({parent, static_cast<int32_t>(path.size()) - 1, path.back()});
  }
}

MedusaTree MedusaTree::parse(const std::string& text) {
  const auto refuse = [] {
    throw_error(ErrorCode::BadData,
                "no tree: a JSON list of paths such as [[0], [1], [0, 0]], or an object with such a list as "
                "\"paths\", was expected");
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json list = json.is_object() ? json.value("paths", nlohmann::json()) : json;
  if (!list.is_array()) refuse();
  std::vector<std::vector<int32_t>> paths;
  for (const nlohmann::json& path : list) {
    if (!path.is_array()) refuse();
    std::vector<int32_t>& ranks = paths.emplace_back();
    for (const nlohmann::json& rank : path) {
      // A conversion would cut fractions off, and take numbers modulo 2^32.
      if (!rank.is_number_integer() || rank < std::numeric_limits<int32_t>::min() ||
          rank > std::numeric_limits<int32_t>::max()) {
        refuse();
      }
      ranks.push_back(rank.get<int32_t>());
    }
  }
  return MedusaTree(paths);
}

int32_t MedusaTree::ranks(int32_t head) const {
  int32_t most = 0;
  for (const Node& node : nodes_) {
    if (node.head == head) most = std::max(most, node.rank + 1);
  }
  return most;
}

MedusaTree best_medusa_tree(const std::vector<std::vector<double>>& accuracies, size_t nodes) {
  struct Candidate {
    double probability;
    std::vector<int32_t> path;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability < b.probability : a.path > b.path;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> open(later);
  const auto add_children = [&](const std::vector<int32_t>& path, double probability) {
    if (path.size() >= accuracies.size()) return;
    const std::vector<double>& next = accuracies[path.size()];
    for (size_t rank = 0; rank < std::min<size_t>(next.size(), MedusaTree::kMostRanks); ++rank) {
      if (!(probability * next[rank] > 0)) continue;
      std::vector<int32_t> child = path;
      child.push_back(static_cast<int32_t>(rank));
      open.push({probability * next[rank], std::move(child)});
    }
  };
  std::vector<std::vector<int32_t>> paths;
  add_children({}, 1);
  while (!open.empty() && paths.size() < std::min(nodes, MedusaTree::kMostNodes)) {
    const Candidate best = open.top();
    open.pop();
    paths.push_back(best.path);
    add_children(best.path, best.probability);
  }
  return MedusaTree(std::move(paths));
}

double expected_tokens(const MedusaTree& tree, const std::vector<std::vector<double>>& accuracies) {
  double tokens = 1;
  for (const std::vector<int32_t>& path : tree.paths()) tokens += product(path, accuracies);
  return tokens;
}

}  // namespace quern::runtime
