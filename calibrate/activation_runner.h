// Shows what flows through a model while it reads samples.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibrate/samples.h"
#include "ir/graph.h"

namespace quern::calibrate {

// Rows of one value: those of one window's tokens, or all vectors along the last axis, of what a
// convolution reads along axis 1. Valid during the call.
struct ActivationRows {
  size_t tap = 0;  // index into the names given
  int64_t rows = 0;
  int64_t width = 0;
  const float* data = nullptr;
  int64_t stride = 0;  // floats from one row to the next

  std::span<const float> row(int64_t r) const { return {data + r * stride, static_cast<size_t>(width)}; }
};

struct RunnerOptions {
  int threads = 0;             // 0: one for each physical core
  int64_t longest_window = 0;  // tokens of the longest window: computed in one piece
};

// A model with constant weights: a canonical decoder (docs/canonical-graph.md), compiled up to the values
// that are looked at and no further, or any other graph, run whole. Holds its own copy; the graph may go.
class ActivationRunner {
 public:
  using Show = std::function<void(const ActivationRows&)>;

  // `taps`: names of values of the graph, row-wise ones of a decoder. Throws as runtime::Program::compile or
  // runtime::Interpreter does.
  ActivationRunner(const Graph& graph, const std::vector<std::string>& taps, const RunnerOptions& options);
  ~ActivationRunner();

  // Computes one window from its beginning and shows every tap that is computed, once. Values after
  // SelectRows are shown for all tokens. Throws Error{BadData} for ids outside the vocabulary, and naming the
  // tap where a value is NaN or infinite; Error{Unsupported} where ids alone are not what the graph takes.
  void run(std::span<const int64_t> window, const Show& show);
  // The same for sample `i`. Throws Error{BadData} where arrays are given to a decoder, or do not fit the
  // inputs.
  void run(const Samples& samples, int64_t i, const Show& show);

  class Engine;  // what computes: one for decoders, one for all else

 private:
  std::unique_ptr<Engine> engine_;
};

// For all windows of `samples`.
RunnerOptions runner_options(const Samples& samples, int threads);

}  // namespace quern::calibrate
