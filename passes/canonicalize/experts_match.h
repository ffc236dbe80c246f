// The parts of a mixture of experts, read off the graph around its TopK.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "passes/canonicalize/name_dimensions.h"

namespace quern::passes {

// How logits become weights: RouteExperts's attributes.
struct RoutingKind {
  int64_t experts = 0, per_token = 0;
  std::string score = "softmax";
  bool normalize = false;
  double scale = 1;
  Value* bias = nullptr;  // [experts], of the choice alone
};

// The layers of one expert, or of all of them side by side: from rows to rows.
struct ExpertLayers {
  Value* input = nullptr;
  Value* output = nullptr;
  std::vector<Node*> nodes = {};  // in topological order
};

struct ExpertsMatch {
  RoutingKind routing;
  Value* logits = nullptr;       // [..., experts]
  Value* x = nullptr;            // [..., hidden], its rows those of the logits
  Value* output = nullptr;       // a row for each of x
  Value* output_like = nullptr;  // has the shape of the output
  // One for each expert in the routing's order, or a single one that computes all: batched [experts, rows,
  // ...].
  std::vector<ExpertLayers> layers;
  bool batched = false;
};

// Finds mixtures by what they compute. Anchored on the TopK of a router's logits: the experts are found from
// their products with constant weights. What becomes of the logits, and how rows get to the experts and back,
// is not looked at but evaluated, with layers that tell by their results which expert served whom: one-hot
// rows show the weights, rows times a number for each expert show that each row went to where it belongs. So
// the loop over experts with NonZero and index_add, the dense product of all experts with a matrix of
// weights, and what else exporters write, are one thing.
class ExpertsMatcher {
 public:
  ExpertsMatcher(const Graph& graph, const TransformerInputs& inputs);
  // Why there is no match, where the result is empty.
  std::optional<ExpertsMatch> match(const Node& top_k, std::string& reason) const;

 private:
  std::optional<ExpertsMatch> analyse(ExpertsMatch match, const std::vector<Value*>& aliases,
                                      std::string& reason) const;
  std::string find_layers(ExpertsMatch& match, const std::vector<Value*>& aliases) const;
  std::string find_routing(ExpertsMatch& match, const std::vector<Value*>& aliases) const;
  std::string check_rows(ExpertsMatch& match, const std::vector<Value*>& aliases) const;
  size_t last_use(const Value* value) const;
  bool is_weighted(const Node& node, int64_t experts) const;
  bool is_constant(const Value* value) const { return !varying_.contains(value); }

  const Graph& graph_;
  Prober prober_;
  bool has_past_;
  std::unordered_map<const Node*, size_t> order_;
  std::unordered_set<const Value*> varying_;  // not computed from constants alone
};

}  // namespace quern::passes
