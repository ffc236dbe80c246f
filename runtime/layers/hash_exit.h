// Encoders whose tokens leave after as many layers as a table says (HashEE).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/graph_part.h"
#include "runtime/layers/early_exit.h"
#include "runtime/layers/encoder_layers.h"

namespace quern::runtime {

// Sun et al., A Simple Hash-Based Early Exiting Approach For Language Understanding and Generation, 2022: a
// token's exit does not depend on the text, so that nothing needs to be computed to find it. A token that has
// left keeps its state; later layers see its keys and values, made of that state, but compute no query,
// attention, projection or feed-forward for it. The first token, which heads read, passes every layer. Lossy.
// Not thread-safe.
class HashExitEncoder {
 public:
  // layer_of_token[id]: after how many layers a token leaves, 1 to all of them; ids beyond it pass all.
  // Throws Error{Unsupported} as find_encoder_layers(), and naming the node where attention is no operator
  // with queries, keys and values of their own, or its bias differs by query.
  HashExitEncoder(std::shared_ptr<const Graph> graph, std::vector<int64_t> layer_of_token);

  // The logits [batch, classes] of a batch; `inputs` as of EarlyExitEncoder::run().
  Tensor run(const NamedValues& inputs, const RunOptions& options = {});

  const Graph& original() const { return *original_; }
  // Tokens by how many layers they passed.
  const ExitStatistics& statistics() const { return statistics_; }
  // Rows that layers computed, padding to the longest of a batch included, and those that all layers of all
  // tokens would have been.
  int64_t rows_computed() const { return rows_computed_; }
  int64_t rows_of_all() const { return rows_of_all_; }

 private:
  // A layer that computes some of its tokens: of two graph inputs that were added for it.
  struct Layer {
    const Value* all = nullptr;     // the streams of all tokens, for keys and values
    const Value* active = nullptr;  // of those that go on
    const Value* behind = nullptr;  // theirs, behind the layer
  };
  void build();
  void make_parts(std::vector<const Value*> given);
  void check_attention(const Node& attention) const;
  std::vector<std::vector<int64_t>> going_on(std::span<const int64_t> depths, int64_t length,
                                             int64_t layer) const;
  std::vector<int64_t> depths_of(const Tensor& ids) const;

  std::shared_ptr<const Graph> original_;
  std::unique_ptr<Graph> graph_;  // with a copy of every layer that computes some of its tokens
  EncoderLayers layers_;
  std::vector<int64_t> layer_of_token_;
  std::vector<Layer> made_;
  const Value* head_stream_ = nullptr;  // a graph input that the head reads
  const Value* logits_ = nullptr;
  std::vector<GraphPart> parts_;  // the embedding, each layer, the head
  ExitStatistics statistics_;
  int64_t rows_computed_ = 0, rows_of_all_ = 0;
};

// Tokens by how often they were counted, in as many buckets of equally many kinds of token as there are
// exits: the most frequent leave behind the first. Those that were never counted pass all `layers`.
// counts[id]; result [id].
std::vector<int64_t> layers_by_frequency(std::span<const int64_t> counts, std::span<const int64_t> exits,
                                         int64_t layers);

}  // namespace quern::runtime
