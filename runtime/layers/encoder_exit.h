// Classifying texts by as much of an encoder as each of them needs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/graph_part.h"
#include "runtime/layers/early_exit.h"
#include "runtime/layers/encoder_layers.h"

namespace quern::runtime {

// Runs a batch up to each exit in turn. Sequences whose exit is sure enough leave there; the layers behind it
// are computed for the others alone, and not at all when nobody is left. Lossy: logits are those of the exit.
// The rules are those of decoders that logits can tell: entropy (FastBERT's speed is 1 less the threshold;
// Liu et al. 2020), margin, max-probability, or a fixed layer. Not thread-safe.
class EarlyExitEncoder {
 public:
  // Throws Error{Unsupported} as find_encoder_layers(), and where a layer needs more of those before it than
  // the stream; Error{InvalidArgument} for a rule that is for decoders, or as exits_in_use().
  EarlyExitEncoder(std::shared_ptr<const Graph> graph, const ExitRule& rule);

  struct Result {
    std::vector<float> logits;        // [classes]
    std::vector<double> confidences;  // what each exit that was passed said
    int64_t layers = 0;               // that were computed
  };
  // One result for each sequence of the batch, in order; valid until the next run. `inputs`: of the graph, by
  // name; their first dimension is the batch, where that is how the graph states it. Throws Error{BadData}
  // naming an input that is missing or does not fit.
  std::span<const Result> run(const NamedValues& inputs, const RunOptions& options = {});

  const ExitRule& rule() const { return rule_; }
  // Sequences in place of tokens.
  const ExitStatistics& statistics() const { return statistics_; }
  void reset_statistics() { statistics_.tokens.assign(statistics_.tokens.size(), 0); }
  const Graph& graph() const { return *graph_; }
  // What is computed between two exits (part 0: before the first).
  std::vector<const Node*> nodes_of(size_t part) const { return parts_[part].nodes(); }

 private:
  size_t exits() const { return rule_.layers.size(); }
  std::vector<const Value*> stream_behind(size_t part) const;
  bool can_be_carried(const Value& value) const;
  void find_carried();
  void make_parts();
  // Of each sequence that is on its way: what it goes on from.
  struct Going {
    std::vector<size_t> sequences;
    Bindings values;
  };
  void leave(size_t exit, const Tensor& logits, Going& going);
  void keep(Going& going, const std::vector<int64_t>& rows) const;

  std::shared_ptr<const Graph> graph_;
  ExitRule rule_;
  EncoderLayers layers_;
  std::vector<GraphPart> parts_;
  std::vector<const Value*> inputs_;
  // What later parts need of earlier ones beside the stream: expanded masks and the like, by the part that
  // computes them.
  std::vector<std::vector<const Value*>> carried_;
  std::vector<std::vector<const Value*>> made_;  // by each part, its logits first
  std::vector<Result> results_;
  ExitStatistics statistics_;
};

// Of a tensor whose first dimension are rows, some of them.
Tensor take_rows(const Tensor& tensor, std::span<const int64_t> rows);

// The values of graph inputs by value, checked. Throws Error{BadData} naming an input that is missing, of
// another type or rank, or whose dimensions differ from those stated.
Bindings bind_inputs(const Graph& graph, const NamedValues& inputs);

// Whether an input has one row for each sequence: a first dimension that the graph does not fix.
bool has_batch(const Value& input);

}  // namespace quern::runtime
