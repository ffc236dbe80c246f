// Where a decoder's layers begin and end, and other ways through them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/rewriter.h"

namespace quern::runtime {

// A place that everything on the way from the tokens to the logits comes by: the residual stream between two
// layers.
struct LayerBoundary {
  Node* node = nullptr;  // that computes it
  // [tokens, C], or [selected, C] behind the last layer; null where the final norm is computed with the last
  // sum, and that sum is left out because nobody else reads it.
  Value* stream = nullptr;
  // The stream normed for the next layer, where the same node computes that: output 0 of a
  // Skip...Normalization. Else null.
  Value* normed = nullptr;
};

// The norm that the boundary's node computes with its sum, of another stream and without a sum.
Value* lone_norm(Rewriter& rewriter, const LayerBoundary& boundary, Value* stream);

// Of a canonical decoder (docs/canonical-graph.md): boundaries[i] stands before layer i, the last one behind
// the last layer. Found as dominators of the logits, so that no spelling of a layer needs to be known.
struct LayerBoundaries {
  std::vector<LayerBoundary> boundaries;
  std::set<const Value*> of_tokens;  // values that depend on the tokens

  int64_t layers() const { return static_cast<int64_t>(boundaries.size()) - 1; }
};

// Throws Error{Unsupported} naming the layer for a decoder whose layers hand on more than one value, or
// Error{InvalidArgument} for a graph that is no decoder.
LayerBoundaries find_layers(const Graph& graph);

// The name of the output that an exit head behind so many layers has: "exit_logits.4".
std::string exit_output(int64_t layers);
// After how many layers the graph has exit heads, ascending.
std::vector<int64_t> exits_of(const Graph& graph);

// Adds ways through the layers to a graph: what they share with the graph, its weights for one, is not
// copied. Several nodes then keep one layer, for different entries of a program; the graph says so in its
// metadata (kLayersRepeat). Everything takes effect at commit().
class LayerBuilder {
 public:
  // The graph must outlive the builder. Throws as find_layers().
  explicit LayerBuilder(Graph& graph);

  int64_t layers() const { return layers_.layers(); }
  // The graph's own stream before a layer, or behind the last one.
  Value* stream(int64_t boundary) const { return at(boundary).stream; }
  // A graph input of that name whose rows the caller gives, as they are before a layer.
  Value* given(const std::string& name);
  // The stream behind a layer that gets `stream`; behind the last one only logits() may follow.
  Value* layer(int64_t layer, Value* stream);
  // Nothing but a layer's keys and values of `stream`, as an output of this name: ai.quern.AppendCache.
  void append(int64_t layer, Value* stream, const std::string& output);
  // The logits that the final norm and head make of `stream`.
  Value* logits(Value* stream);
  // The logits that the exit head behind so many layers makes of it.
  Value* exit_logits(int64_t layers, Value* stream);
  // `stream` as the final norm gets it: where that is the last layer's business, the rows alone whose logits
  // are asked for.
  Value* at_head(Value* stream);
  // Tells the builder that a value made by others has the rows of one that it knows; returns it.
  Value* same_rows(Value* value, const Value* known);
  void output(Value* value, const std::string& name) { rewriter_.add_output(value, name); }
  // For nodes that stand between those made here.
  Rewriter& rewriter() { return rewriter_; }
  void commit();

 private:
  const LayerBoundary& at(int64_t boundary) const;
  // Computes `target` from another stream at a boundary.
  Value* instead(int64_t boundary, Value* stream, Value* target);
  Value* copy(Value* value, std::map<const Value*, Value*>& copies);
  Value* normed(int64_t boundary, Value* stream);
  bool is_selected(const Value* value) const;
  Node* attention(int64_t layer) const;

  Graph& graph_;
  Rewriter rewriter_;
  LayerBoundaries layers_;
  std::vector<Node*> attentions_;
  bool layers_repeat_ = false;
  std::set<const Value*> selected_;
  std::set<const Value*> finished_;  // streams behind the last layer that are normed already
  // Streams that were made here, normed by what made them for the layer behind that boundary.
  std::map<const Value*, std::pair<int64_t, Value*>> normed_;
};

}  // namespace quern::runtime
