#include "passes/interchange/interchange.h"

#include "ir/rewriter.h"
#include "ir/verifier.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/interchange/batches.h"
#include "passes/interchange/operators.h"

namespace quern::passes {

std::unique_ptr<Graph> to_interchange(const Graph& graph, const InterchangeOptions& options) {
  const int opset = lowest_opset(graph, options);
  std::unique_ptr<Graph> result = is_decoder(graph) ? rows_to_batches(graph, options, opset) : graph.clone();
  lower_operators(*result, options, opset);
  remove_dead_nodes(*result);
  verify(*result);
  return result;
}

}  // namespace quern::passes
