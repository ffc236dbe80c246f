// Shows what flows through a decoder while it reads samples.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::calibrate {

// Rows of one value: those of one window's tokens. Valid during the call.
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

// A canonical decoder (docs/canonical-graph.md) with constant weights, compiled up to the values that are
// looked at and no further. Holds its own copy of the weights; the graph may go.
class ActivationRunner {
 public:
  // `taps`: names of row-wise values of the graph. Throws as runtime::Program::compile does.
  ActivationRunner(const Graph& decoder, const std::vector<std::string>& taps, const RunnerOptions& options);
  ~ActivationRunner();

  // Computes one window from its beginning and shows every tap once. Values after SelectRows are shown for
  // all tokens. Throws Error{BadData} for ids outside the vocabulary, and naming the tap where a value is NaN
  // or infinite.
  void run(std::span<const int64_t> window, const std::function<void(const ActivationRows&)>& show);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quern::calibrate
