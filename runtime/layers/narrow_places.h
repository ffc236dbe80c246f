// Places that everything on the way through a graph comes by.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "runtime/layers/blocks.h"

namespace quern::runtime {

// com.microsoft's norms that add before they normalize.
bool is_skip_norm(const Node& node);

// The way to one value, of what flows there, cut where it is narrowest.
class NarrowPlaces {
 public:
  // `flowing`: the values to look at; what else there is (masks, positions) may be read anywhere. It must
  // outlive this.
  NarrowPlaces(const Graph& graph, const Value* target, const std::set<const Value*>& flowing);

  // Nodes on the way, in topological order.
  const std::vector<Node*>& order() const { return order_; }
  bool flows(const Value* value) const { return value != nullptr && flowing_.contains(value); }
  // What is used later, of all that is computed up to this node, if the node alone computes it; else nothing
  // (the node is null). To be called once for each node of order(), in turn.
  LayerBoundary at(Node& node);

 private:
  const std::set<const Value*>& flowing_;
  const Value* target_;
  std::vector<Node*> order_;
  std::set<const Node*> on_the_way_;
  std::map<const Value*, int64_t> open_;  // values that are used later, and how often
};

// Where the final norm is computed with the last sum, the norm alone goes on, unless layers end with norms
// (post-norm): then it is the stream.
void part_final_norm(std::vector<LayerBoundary>& boundaries);

}  // namespace quern::runtime
