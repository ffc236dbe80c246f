// What an encoder gives for whole texts, several at a time.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::calibrate {

using Texts = std::vector<std::span<const int64_t>>;  // token ids

// How many texts from `first` on may be computed together: those of one length, at most 32 and 4096 tokens.
size_t batch_at(const Texts& texts, size_t first);

// One output for each text.
struct TextRows {
  int64_t width = 0;
  std::vector<float> values;  // [texts, width]

  int64_t count() const { return width > 0 ? static_cast<int64_t>(values.size()) / width : 0; }
  std::span<const float> row(int64_t text) const {
    return std::span(values).subspan(static_cast<size_t>(text * width), static_cast<size_t>(width));
  }
};

// The outputs of these names, [batch, width] each, of a graph that token ids alone fill (TokenInputs).
// `progress`: how many texts are done; may throw to cancel. Throws Error{Unsupported} for outputs of other
// shapes, and as Interpreter does.
std::vector<TextRows> rows_of_texts(const Graph& graph, const Texts& texts,
                                    const std::vector<std::string>& outputs,
                                    const std::function<void(int64_t done)>& progress = {});

}  // namespace quern::calibrate
