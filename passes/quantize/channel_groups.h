// Where the channels of an activation can be scaled at no cost when the model runs.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::passes {

// Products that read one value, and what makes it: dividing each channel there and multiplying the products'
// columns by the same changes nothing but how well weights and activations can be rounded.
struct ChannelGroup {
  enum class Source {
    Norm,  // RMSNormalization, LayerNormalization, Skip...: their scale (and bias)
    Rows,  // the rows (and bias) of a Linear: the one of values before attention, of `up` before a gate's
           // product
  };
  Source kind = Source::Norm;
  Node* source = nullptr;
  std::vector<Node*> consumers;  // Linear with a QuantizeWeight whom nobody else uses
  Value* input = nullptr;        // what they read
  // For each channel of `input` the one of the source's: several heads of attention share a head of values.
  std::vector<int64_t> source_channel;
  int64_t source_channels = 0;
};

// Of a canonical decoder whose weights' formats are decided (quantize-weights), in the order of the graph.
// `why_not`: what else is read by products, and why its channels stay as they are.
std::vector<ChannelGroup> find_channel_groups(const Graph& graph,
                                              std::vector<std::pair<const Node*, std::string>>* why_not);

}  // namespace quern::passes
