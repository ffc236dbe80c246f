// The weights of an exit head: from a file into a graph.
#pragma once

#include <optional>
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "ir/rewriter.h"

namespace quern::passes {

// What one exit has of its own; what is not there is shared with the model's head.
struct ExitWeights {
  std::optional<Tensor> norm, norm_bias;  // [C]
  std::optional<Tensor> down, up;         // [R, C], [C, R]
  struct Linear {
    std::optional<Tensor> weight, bias;
  };
  std::vector<Linear> linears;  // of encoders: of the head's linear layers, from the stream on
};

// After how many layers a file has heads, ascending: its tensors exits.K.*.
std::vector<int64_t> layers_of(const safetensors::File& file);

// What `head` ("shared", "norm", "adapter") takes of the file; `linears`: how many linear layers there are to
// look for. Throws Error{InvalidArgument} naming a tensor that does not fit a stream of this width.
ExitWeights read_exit_weights(const safetensors::File& file, int64_t layer, const std::string& head,
                              int64_t width, size_t linears = 0);

// x + up(silu(down(x)))
Value* add_adapter(Rewriter& rewriter, int64_t layer, const ExitWeights& own, Value* x);

bool is_norm(const Node& node);
// The first norm on the way back from `end` to `begin`; null where there is none.
Node* norm_between(const Value* end, const Value* begin);
// Weights of its own for a norm that was copied; without any they begin as those it shared.
void give_own_norm(Rewriter& rewriter, int64_t layer, const ExitWeights& own, Node* norm);

}  // namespace quern::passes
