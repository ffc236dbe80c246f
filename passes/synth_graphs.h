// The graphs of random models, their weights still to be made.
#pragma once

#include <memory>

#include "ir/graph.h"
#include "passes/synth.h"

namespace quern::passes {

// Both name weights as Hugging Face does ("model.layers.0.self_attn.q_proj.weight"). Matrices are
// placeholders without memory (passes/weights/placeholders.h); vectors are there.

// The decoder of docs/canonical-graph.md, its matrices [N, K].
std::unique_ptr<Graph> canonical_decoder(const DecoderShape& shape);

// The same model as an exporter would write it with operator set 23: batch and sequence, matrices [K, N], no
// cache. A tied head is a matrix of its own, as exporters store it, and is to be filled with the transpose of
// the embedding.
std::unique_ptr<Graph> exported_decoder(const DecoderShape& shape);
// The tables of cosines and sines of exported_decoder(): matrices that are there.
bool is_rotary_table(const Value& value);

}  // namespace quern::passes
