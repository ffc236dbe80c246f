#include "passes/pass.h"

namespace quern::passes {

std::vector<Graph*> all_graphs(Graph& graph) {
  std::vector<Graph*> result;
  for (const Node* node : graph.nodes()) {
    for (Graph* sub : node->subgraphs()) {
      for (Graph* inner : all_graphs(*sub)) result.push_back(inner);
    }
  }
  result.push_back(&graph);
  return result;
}

}  // namespace quern::passes
