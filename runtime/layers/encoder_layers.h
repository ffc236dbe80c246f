// Where the layers of an encoder that classifies begin and end, in a plain graph.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "ir/rewriter.h"
#include "runtime/layers/blocks.h"

namespace quern::runtime {

// Of a graph that looks tokens up, mixes them by attention and ends in logits [batch, classes].
struct EncoderLayers {
  // boundaries[i] stands before layer i, the last one behind the last layer: dominators of the logits, found
  // as those of decoders are. Streams are [batch, tokens, C].
  std::vector<LayerBoundary> boundaries;
  // Of each layer, what mixes its tokens: an Attention, or the Softmax of one that is spelled out.
  std::vector<Node*> attentions;
  // What depends on looked up tokens.
  std::set<const Value*> flowing;
  // What depends on the shapes of those alone, as masks may that exporters expand. All else (other masks,
  // positions) is computed of the graph's inputs.
  std::set<const Value*> shaped;
  const GraphOutput* logits = nullptr;
  Value* ids = nullptr;  // the graph input that the tokens are

  int64_t layers() const { return static_cast<int64_t>(attentions.size()); }
  const LayerBoundary& at(int64_t boundary) const { return boundaries.at(static_cast<size_t>(boundary)); }
  // What the head reads of the last layer: its stream, or where nobody but the final norm reads that, the
  // normed one.
  Value* final_stream() const;
};

// Throws Error{Unsupported} saying what is missing: logits of this shape, tokens that are looked up,
// attention, or one stream between the layers (then naming the layer).
EncoderLayers find_encoder_layers(const Graph& graph);

// The width of the streams. Throws Error{Unsupported} where the graph does not state it.
int64_t stream_width(const EncoderLayers& layers);

// Copies of what computes a value of the flow, with other values in place of some. What does not depend on
// those is not copied: weights, masks.
class FlowCopy {
 public:
  // Both must outlive it.
  FlowCopy(Rewriter& rewriter, const EncoderLayers& layers) : rewriter_(rewriter), layers_(layers) {}

  void put(Value* by, const Value* instead_of);
  // `stream` in place of that at a boundary, and its norm where the boundary's node computes one with the
  // sum.
  void put_at(const LayerBoundary& boundary, Value* stream);
  // Throws Error{Internal} where a value of the flow is read that does not depend on what was replaced.
  Value* of(Value* value);
  // What was made in place of a value that was copied on the way; else null.
  Value* made(const Value* value) const;

 private:
  void follow(const Value* value);
  Value* copy(Value* value);

  Rewriter& rewriter_;
  const EncoderLayers& layers_;
  std::map<const Value*, Value*> copies_;
  std::set<const Value*> depending_;  // on what was replaced
};

}  // namespace quern::runtime
