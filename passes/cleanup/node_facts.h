// What the cleanup passes need to know of nodes and values.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"

namespace quern::passes {

// The same inputs always give the same outputs, and nothing else happens: no random numbers, no caches. Nodes
// of domains that quern does not know are not trusted.
bool is_pure(const Node& node);

// Both shapes are known and are equal as polynomials.
bool same_shape(const Value* a, const Value* b);
bool same_type(const Value* a, const Value* b);

// The integers that an input or, in older operator sets, an attribute of that name holds; nothing where the
// input is not constant. `present` tells whether there was one at all.
struct IntsParameter {
  bool present = false;
  std::optional<std::vector<int64_t>> values;
};
IntsParameter ints_parameter(const Node& node, size_t input, const std::string& attribute);

// Whether all elements of a constant are that number. Exact; false for values that are not constant and for
// empty ones.
bool is_filled_with(const Value* value, double number);

}  // namespace quern::passes
