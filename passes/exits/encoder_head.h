// The head of an encoder that classifies, and heads like it behind earlier layers.
#pragma once

#include <vector>

#include "passes/exits/exit_weights.h"
#include "runtime/layers/encoder_layers.h"

namespace quern::passes {

struct EncoderHead {
  std::vector<Node*> linears;  // ai.quern.Linear, from the stream to the logits: a pooler and a classifier
  Value* pooled = nullptr;     // what the first of them reads
};

// Throws Error{Unsupported} where the way from the last stream to the logits branches, or has no linear
// layer.
EncoderHead find_encoder_head(const runtime::EncoderLayers& layers);

// Adds an output exit_logits.k behind each of these layers: what the head makes of the stream there. Of the
// file, if there is one, each takes weights of its own as `head` says (insert-exit-heads). Throws
// Error{InvalidArgument} for a layer that is none in between, and as find_encoder_head().
void add_encoder_exits(Graph& graph, const std::vector<int64_t>& layers, const std::string& head,
                       const safetensors::File* file);

}  // namespace quern::passes
