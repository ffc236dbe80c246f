// Between exit heads of encoders in training and their file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "calibrate/train/heads.h"
#include "ir/graph.h"
#include "passes/exits/trained_exits.h"

namespace quern::passes {

// Heads that begin as the model's own pooler and classifier, and what they read.
struct EncoderExitHeads {
  std::vector<calibrate::train::Head> heads;
  // The model with what its pooler would read behind each layer as outputs [batch, C], and its logits, which
  // are the teacher's.
  std::unique_ptr<Graph> graph;
  std::vector<std::string>
      sources;  // the names of those outputs, as Head::source and Head::teacher number them
};

// On the pooled streams of an encoder that classifies. Throws Error{InvalidArgument} for layers that the
// model lacks, Error{Unsupported} where its head is not linear layers with activations, or reads more than
// one state of a text.
EncoderExitHeads encoder_exits_to_train(const Graph& graph, const ExitTraining& options);

// As insert-exit-heads reads them.
void write_encoder_exit_heads(const std::string& path, std::span<calibrate::train::Head> heads);

}  // namespace quern::passes
