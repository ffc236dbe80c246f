// What is computed from constants alone.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"

namespace quern::passes {

// Of one graph, its sub-graphs left out, as it was when this was made.
class ConstantExpressions {
 public:
  explicit ConstantExpressions(const Graph& graph);

  // Constants, and outputs of pure nodes without sub-graphs all of whose inputs are such values.
  bool contains(const Value* value) const { return value->is_constant() || computed_.contains(value); }
  // Those that are computed and are needed by a node that is not, by a sub-graph, or as an output; in the
  // order of the graph.
  const std::vector<Value*>& roots() const { return roots_; }

 private:
  std::unordered_set<const Value*> computed_;
  std::vector<Value*> roots_;
};

// The constants that a value is computed from, the value itself if it is one; each once, in the order met.
std::vector<Value*> source_constants(Value* value);

// What a report calls a weight: the name of the largest constant behind it, as it was in the user's own
// model; where an exporter only numbered that, the name of the module that uses it.
std::string weight_name(const Value& value);

}  // namespace quern::passes
