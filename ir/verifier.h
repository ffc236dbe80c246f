// Checks that a graph keeps the rules that passes and the runtime rely on.
#pragma once

#include "ir/graph.h"

namespace quern {

// SSA: every use is recorded and points back, every input is defined in the graph or one around it, names are
// unique; operators have the arity and attributes of their schema; constants are whole; types agree with what
// inference gives; no cycles. Throws Error{InvalidModel} naming the first offender.
void verify(const Graph& graph);

}  // namespace quern
