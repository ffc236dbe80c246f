// Heads that give a model's logits after some of its layers.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace quern::safetensors {
struct File;
}

namespace quern::passes {

// Before: the residual stream x behind layer k of a decoder
// After:  the same, and an output exit_logits.k of the rows whose logits are asked for:
//         head(norm(x)), with the final norm and head, or a norm of its own, or also an adapter before it,
//         x + up(silu(down(x)))
// If:     the graph is a decoder in canonical form, k is less than its layers, and there is no such output
//         yet. The head's weight is the final one's, so that it is stored and quantized once.
//
//
// Before: the residual stream x behind layer k of an encoder that classifies, [batch, tokens, C]
// After:  the same, and an output exit_logits.k [batch, classes]: what the final pooler and classifier make
// of
//         x, or those of its own, or also an adapter before the pooler, of what the pooler reads
// If:     the layers hand on one value (runtime::find_encoder_layers), the head does not branch, and there is
//         no such output yet
//
// Weights, in a safetensors file: exits.k.norm.weight [C], exits.k.norm.bias [C], exits.k.adapter.down.weight
// [R, C], exits.k.adapter.up.weight [C, R]; of encoders exits.k.linear.i.weight and exits.k.linear.i.bias,
// the head's linear layers from the stream on (0: the pooler, 1: the classifier).
class InsertExitHeads : public Pass {
 public:
  InsertExitHeads();
  PassReport run(Graph& graph, PassContext& context) override;

 private:
  // Whether it is such a graph; else the report says why not.
  bool add_to_decoder(Graph& graph, const std::vector<int64_t>& layers, const safetensors::File* file,
                      PassContext& context, PassReport& report) const;
  bool add_to_encoder(Graph& graph, const std::vector<int64_t>& layers, const safetensors::File* file,
                      PassContext& context, PassReport& report) const;

  std::string layers_;
  std::string head_ = "shared";
  std::string weights_;
};

}  // namespace quern::passes
