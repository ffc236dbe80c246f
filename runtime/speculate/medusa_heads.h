// How a graph with Medusa heads tells of them, and how its program is compiled.
#pragma once

#include <cstdint>
#include <string>

#include "ir/graph.h"
#include "runtime/decoder/program.h"

namespace quern::runtime {

// The graph's output with the logits of head k, from 0: what follows the token k + 1 places behind the one
// that `logits` names.
std::string medusa_output(size_t head);
int64_t count_medusa_heads(const Graph& graph);

// Entries of a program that decodes with them.
inline constexpr int kMedusaModelEntry = 0;  // outputs: logits; the last hidden states
inline constexpr int kMedusaHiddenOutput = 1;
// Goes on from a last hidden state. For each head an output: its logits; or, of a head that shares the
// model's projection, what is to be projected, under another name than medusa_output().
inline constexpr int kMedusaHeadsEntry = 1;
// The model's own head: what heads that share it project. Rows of all heads go through it together, so that
// its weight is read once.
inline constexpr int kMedusaProjectionEntry = 2;

// Throws Error{InvalidArgument} where the graph has none.
ProgramOptions medusa_program(const Graph& graph);

}  // namespace quern::runtime
