// The weights of a graph: constants, or expressions of them, where an operator may take them quantized.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::passes {

// One matrix [N, K], however many nodes use it: a tied embedding is one site.
struct WeightSite {
  Value* value = nullptr;
  std::vector<Use> uses;  // the quantizable ones among the value's uses, in the order of the graph
  std::string name;       // weight_name()
  // What the user may call it: the constants behind it, the value, the nodes that use it.
  std::vector<std::string> names;
  int64_t rows = 0;
  int64_t cols = 0;
  bool is_embedding = false;  // a table of some Embedding, perhaps tied to a Linear

  // Already quantized or packed, or decided to be: a constant of that kind, or a QuantizeWeight, PackWeight.
  bool is_quantized() const;
  bool is_packed() const;
};

// In the order of their first use, sub-graphs after the graph around them. Those whose shape is not known to
// be a constant matrix are left out; `why_not` collects the reasons.
std::vector<WeightSite> find_weight_sites(
    Graph& graph, std::vector<std::pair<const Node*, std::string>>* why_not = nullptr);

}  // namespace quern::passes
