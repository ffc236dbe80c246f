#include "passes/cleanup/dead_code.h"

#include "ir/rewriter.h"

namespace quern::passes {
namespace {

int64_t count_all(Graph& graph) {
  int64_t total = 0;
  for (const Graph* each : all_graphs(graph)) {
    total += static_cast<int64_t>(each->nodes().size() + each->constants().size());
  }
  return total;
}

}  // namespace

DeadCode::DeadCode() : Pass("dead-code", "remove nodes and constants that no output depends on") {}

PassReport DeadCode::run(Graph& graph, PassContext&) {
  const int64_t before = count_all(graph);
  remove_dead_nodes(graph);
  return {.changes = before - count_all(graph)};
}

}  // namespace quern::passes
