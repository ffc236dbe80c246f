// Encoders whose outputs are features of texts, such as sentence embeddings: they predict nothing.
#pragma once

#include "calibrate/compare_tensors.h"
#include "calibrate/dataset.h"
#include "calibrate/windows.h"
#include "ir/graph.h"

namespace quern::calibrate {

// Whether `graph` takes token ids and gives, as its first output of a floating type, fewer features for each
// token than it knows tokens; an output called "logits" is none.
bool gives_features(const Graph& graph);

// The windows of `data`, of each document by itself, as inputs of `graph`, whose ids they are; at most so
// many if `most` is not 0. A document of one token is a window, too. Throws Error{BadData} where there is
// none, or an id lies outside the table; Error{Unsupported} as TokenInputs does.
TensorSamples feature_samples(const Graph& graph, const TokenData& data, const WindowProtocol& protocol,
                              int64_t most = 0);

}  // namespace quern::calibrate
