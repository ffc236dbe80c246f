// What every pass is: a rewrite of a graph with a name, documented options and a report.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/options.h"

namespace quern::calibrate {
struct Samples;
struct CalibrationTable;
}  // namespace quern::calibrate

namespace quern::passes {

// Why something that looked like a match was left as it is.
struct MatchFailure {
  std::string where;   // "node 'layers.0/Pow' (Pow)": describe(node)
  std::string reason;  // "the exponent is 3, not 2"
};

struct PassReport {
  // How many rewrites took effect. Must be 0 exactly if the graph is as it was: fixed-point groups and the
  // idempotence check of tests rely on it.
  int64_t changes = 0;
  std::vector<std::string> notes;      // one line each, for people: "tied the head to the embedding"
  std::vector<MatchFailure> failures;  // filled only where PassContext::explain asks for it
};

// What a pass may use besides the graph. One per pipeline; not thread-safe.
struct PassContext {
  int threads = 0;       // 0: as many as there are processors
  bool explain = false;  // collect MatchFailures
  // Called now and then with what is being done and how far it is, 0 to 1. May throw to cancel.
  std::function<void(const std::string& what, double fraction)> progress;
  // What passes that need to see activations show the model; null: there is nothing. Borrowed.
  const calibrate::Samples* samples = nullptr;
  // What was observed of the model before; null: nothing. Borrowed.
  const calibrate::CalibrationTable* table = nullptr;

  // Records why a match was given up, if someone asked. `reason` pieces are joined as concat() does.
  template <class... Args>
  void explain_failure(PassReport& report, const Node& node, const Args&... reason) const {
    if (explain) report.failures.push_back({describe(node), concat(reason...)});
  }
  void report_progress(const std::string& what, double fraction) const {
    if (progress) progress(what, fraction);
  }
};

// A pass object is made by the registry with its options set, and may run on any number of graphs.
//
// Rules:
// - Change the graph through ir/rewriter.h alone, one commit per rewrite (a rewrite that throws half-way must
//   leave the graph whole).
// - Idempotent: run() on its own result reports no changes.
// - A graph where nothing matches is not an error.
// - Large weights are not touched: a pass that needs a weight transposed, sliced, joined, cast or scaled adds
//   the plain node (Transpose, Slice, Concat, Cast, Mul) on the constant. Constant folding evaluates small
//   ones; the large ones, such as Linear(x, Transpose(W)), stay as expressions until the artifact is written,
//   and are evaluated one at a time then (passes/weights/). That bounds the memory of a conversion.
class Pass {
 public:
  Pass(std::string name, std::string summary) : name_(std::move(name)), summary_(std::move(summary)) {}
  virtual ~Pass() = default;
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  const std::string& name() const { return name_; }        // "constant-folding"
  const std::string& summary() const { return summary_; }  // one line
  OptionTable& options() { return options_; }
  const OptionTable& options() const { return options_; }

  // Rewrites `graph` and its sub-graphs. Throws Error: InvalidArgument for options that do not fit the graph,
  // InvalidModel, OutOfMemory.
  virtual PassReport run(Graph& graph, PassContext& context) = 0;

 protected:
  // For constructors: OptionTable::add.
  void option(std::string name, OptionTable::Field field, std::string documentation,
              std::vector<std::string> choices = {}) {
    options_.add(std::move(name), field, std::move(documentation), std::move(choices));
  }

 private:
  std::string name_;
  std::string summary_;
  OptionTable options_;
};

// `graph` and every sub-graph inside it, innermost first.
std::vector<Graph*> all_graphs(Graph& graph);

}  // namespace quern::passes
