// One name for one length: batch, sequence and past are the same symbols in all inputs of a transformer.
#pragma once

#include <optional>
#include <string>

#include "passes/canonicalize/control.h"
#include "passes/pass.h"

namespace quern::passes {

// The inputs of a transformer by role.
struct TransformerInputs {
  Value* ids = nullptr;  // [batch, sequence]
  Value* mask = nullptr;
  Value* positions = nullptr;
  std::vector<Value*> pasts;
  Prober::Symbols symbols;  // the past's is empty where there is none

  // Whether the value is one of the pasts, maybe cast to another floating type.
  bool is_past(const Value* value) const;
  // The Concat of a past and new keys or values that gives `value`, maybe cast; null if something else does.
  const Node* past_concat(const Value* value) const;
};

// Nothing where there is not exactly one input of token ids of rank 2 with a symbolic sequence dimension, or
// two inputs share a role that can be had once only.
std::optional<TransformerInputs> transformer_inputs(const Graph& graph);

// Before: a graph whose inputs name the same lengths differently ("total_sequence_length" in a mask,
//         "past_sequence_length + 1", or each its own "s34"), as exporters do.
// After:  ids and positions are [batch, sequence], masks [batch, past + sequence], pasts [batch, ..., past,
// ...],
//         by the symbols of the ids and of the first past. Constant dimensions stay. Shapes are inferred
//         anew.
// If:     transformer_inputs() knows the graph. This is the contract of such a model, not a guess: other
// sizes
//         would not broadcast.
class NameDimensions : public Pass {
 public:
  NameDimensions();
  PassReport run(Graph& graph, PassContext& context) override;
};

}  // namespace quern::passes
