// How a canonical decoder (docs/canonical-graph.md) is told from other graphs.
#pragma once

#include "ir/graph.h"

namespace quern {

// Metadata "1" of a canonical decoder; absent elsewhere.
inline constexpr const char* kDecoderMark = "quern.decoder";

inline bool has_decoder_mark(const Graph& graph) {
  const auto found = graph.metadata().find(kDecoderMark);
  return found != graph.metadata().end() && found->second == "1";
}

}  // namespace quern
