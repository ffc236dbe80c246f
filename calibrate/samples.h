// What a model is shown to learn the ranges and moments of its activations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "calibrate/dataset.h"

namespace quern::calibrate {

struct SampleOptions {
  int64_t samples = 128;  // windows; fewer where the data has fewer
  int64_t context = 256;  // tokens of a window; a shorter document is a shorter window
  int64_t seed = 0;       // of the choice, where the data has more windows than wanted
};

struct Samples {
  std::string source;  // the data's path
  std::string digest;  // SHA-256 of it
  SampleOptions options;
  std::vector<std::vector<int64_t>> windows;  // of token ids; empty where there are arrays
  std::shared_ptr<const TensorData> arrays;   // named inputs of a graph that takes no token ids
  std::vector<int64_t> rows;                  // of `arrays`, the samples drawn

  int64_t count() const { return static_cast<int64_t>(arrays ? rows.size() : windows.size()); }
  int64_t tokens() const;  // each row of arrays is one
  int64_t longest_window() const;
};

// Cuts documents into windows, each begun with what the tokenizer puts before a text, and draws `samples` of
// them without replacement, in the order of the data. The same data and options give the same windows. Throws
// Error{BadData} where no document has a whole token to show, Error{InvalidArgument} for options below 1.
Samples draw_samples(const TokenData& data, const SampleOptions& options);
// Rows of arrays in the same way; `options.context` counts for nothing.
Samples draw_samples(std::shared_ptr<const TensorData> data, const SampleOptions& options);

}  // namespace quern::calibrate
