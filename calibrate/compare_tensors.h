// Two plain graphs on the same inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/compare.h"
#include "calibrate/dataset.h"
#include "ir/graph.h"
#include "runtime/interpreter.h"

namespace quern::calibrate {

// How close an output of the candidate is to the reference's, over all samples.
struct OutputCloseness {
  std::string name;
  double max_abs_error = 0;
  double sqnr_db = 0;  // 10 log10(sum reference^2 / sum error^2); infinite where they are equal
  double cosine = 0;   // of the two as vectors; 1 where both are 0 throughout
  // Of the means over a text's tokens, as sentence embeddings are made: over all texts.
  struct Pooled {
    double mean = 0;
    double least = 0;
  };
  std::optional<Pooled> pooled_cosine = {};
};

// Samples of named inputs, made when they are asked for.
struct TensorSamples {
  int64_t count = 0;
  int64_t batch = 1;  // that the graph takes at once
  std::function<runtime::NamedValues(int64_t first, int64_t count)>
      inputs;                                         // of samples first, first + 1, ...
  std::function<int64_t(int64_t sample)> label = {};  // empty: there are no labels
  bool are_texts = false;                             // [1, tokens, features] are pooled, too
};

struct TensorComparison {
  int64_t samples = 0;
  std::vector<OutputCloseness> outputs;  // the reference's outputs of numeric types, in its order
  bool labelled = false;  // with labels, the first output of shape [samples, classes] is a classifier's
  Figure reference_accuracy;
  Figure candidate_accuracy;
  Figure agreement;  // share of samples that both put into the same class
  double reference_seconds = 0;
  double candidate_seconds = 0;
};

struct TensorCompareOptions {
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// One sample at a time, or as many as the graph's first input states. Memory: one sample's values. Throws
// Error{InvalidArgument} where the candidate lacks an output or an output has another shape; Error{BadData}
// where the arrays don't fit the inputs; Error{InvalidModel} where an output is NaN with one of the two
// alone.
TensorComparison compare_tensors(const Graph& reference, const Graph& candidate, const TensorSamples& samples,
                                 const TensorCompareOptions& options = {});
TensorComparison compare_tensors(const Graph& reference, const Graph& candidate, const TensorData& data,
                                 const TensorCompareOptions& options = {});

}  // namespace quern::calibrate
