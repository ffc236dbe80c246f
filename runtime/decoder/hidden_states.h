// Where a decoder's hidden states are in its graph: what heads that are added to a model read.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace quern::runtime {

// Values [tokens, C], or [selected, C] where only the rows whose logits are wanted go on. Read them as an
// entry's outputs (ProgramOptions::entries) or taps, by name; go on from them by ProgramOptions::starts.
struct HiddenStates {
  // after_block[i]: the residual stream behind layer i, which layer i + 1 reads. Of the last layer:
  // before_final_norm.
  std::vector<Value*> after_block;
  // What the final norm normalizes. Null where it is computed within a norm that does not give it out: an
  // output 3 of a Skip...Normalization that is omitted because nobody uses it.
  Value* before_final_norm = nullptr;
  // The last hidden state as published models speak of it: the head's input.
  Value* after_final_norm = nullptr;
  // The product that computes the logits, before softcap, scaling and the like.
  Node* head = nullptr;
  Node* final_norm = nullptr;  // null: the head reads the residual stream as it is
};

// Of a canonical decoder (docs/canonical-graph.md), `output` of which is logits. Throws
// Error{InvalidArgument} for a graph that is none: no such output, no product behind it, no attention.
HiddenStates find_hidden_states(const Graph& graph, const std::string& output = "logits");

}  // namespace quern::runtime
