// A calibration table: what a model's activations were like on samples. A file (JSON) that outlives the run.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "calibrate/observer.h"
#include "calibrate/samples.h"
#include "ir/graph.h"

namespace quern::calibrate {

struct CalibrationTable {
  static constexpr int kVersion = 1;

  std::string model_digest;  // SHA-256 of the model's files
  std::string data_digest;   // of the data
  SampleOptions samples;
  int64_t windows = 0;  // of all shards
  // Ranges of windows [first, last) that were seen, ascending, not touching one another.
  std::vector<std::pair<int64_t, int64_t>> seen;
  std::map<std::string, Observer> tensors;  // inputs of products, by the value's name

  bool is_complete() const;
  // Of tensors that no sample reached.
  std::vector<std::string> unreached() const;

  // Documented in docs/quantization.md. The same table gives the same text.
  std::string to_text() const;
  // Throws Error{BadData} saying where for what is no table, Error{Unsupported} for a newer version.
  static CalibrationTable parse(const std::string& text, const std::string& source);

  // Joins shards of one calibration. Throws Error{InvalidArgument} where they are of different models, data
  // or samples, or have seen the same windows.
  void merge(const CalibrationTable& other);
  // Throws Error{InvalidArgument} naming both digests.
  void check_model(const std::string& digest, const std::string& source) const;
};

struct TableRun {
  std::pair<int64_t, int64_t> range;  // of windows
  int threads = 0;
  // Called after each window; may throw to stop. The table then holds what was seen, and a later run goes on.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// The values that products (ai.quern Linear) take as inputs, in the order of the graph.
std::vector<std::string> product_inputs(const Graph& graph);

// Observes the inputs of all products over the windows of `run.range` that `table` has not seen, and adds
// them.
void observe(const Graph& graph, const Samples& samples, const TableRun& run, CalibrationTable& table);

}  // namespace quern::calibrate
