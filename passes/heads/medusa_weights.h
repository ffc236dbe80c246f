// Medusa heads as they are published: one safetensors file beside a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ir/tensor.h"

namespace quern::passes {

// Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (2024):
// x <- x + SiLU(W x + b) for each block, then the vocabulary projection U x. Head k, from 0, says what
// follows the token k + 1 places behind the one that the model's own head names.
struct MedusaHead {
  struct Block {
    Tensor weight;               // [C, C]
    std::optional<Tensor> bias;  // [C]
  };
  std::vector<Block> blocks;
  std::optional<Tensor> projection;  // [V, C]; none: the model's own head
};

// Reads the keys of the original and of TGI, "K.J.linear.weight", "K.J.linear.bias" and "K.L.weight" behind L
// blocks, and those of vLLM, "blocks.K.layers.J.weight" (and .bias) and "lm_heads.K.weight"; all of them with
// or without "medusa_head.", "medusa_heads." or "medusa." before. Heads without projection share the model's.
// The tensors are views of the mapped file. Throws Error{BadData} where names or shapes do not fit together,
// as safetensors::read() does otherwise.
std::vector<MedusaHead> read_medusa_heads(const std::filesystem::path& path);

// The original's keys. The same heads give the same bytes. Throws as safetensors::write() does.
void write_medusa_heads(const std::filesystem::path& path, const std::vector<MedusaHead>& heads);

}  // namespace quern::passes
