// Models with random weights: right in shape and size, for measuring speed and memory. They speak nonsense.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/quantize/weight_settings.h"

namespace quern::passes {

// A decoder of Llama's architecture: RMSNorm, rotary positions by halves, grouped-head attention, SiLU-gated
// MLP, no biases.
struct DecoderShape {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t mlp_width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t vocabulary = 0;
  bool tied = false;  // the head is the embedding
  float rope_base = 10000.0F;
  float epsilon = 1e-5F;
  int64_t context = 2048;

  int64_t parameters() const;
  // Throws Error{InvalidArgument} for what is not positive, heads that are no multiple of the KV heads, odd
  // head sizes, and sizes beyond 2^40 parameters.
  void check() const;
};

// "llama-1.1b" (TinyLlama), "llama-135m" (SmolLM). Throws Error{InvalidArgument} with near names.
DecoderShape named_shape(const std::string& name);
std::vector<std::string> shape_names();

struct SynthOptions {
  DecoderShape shape;
  // Of all matrices; "keep" is fp32.
  WeightSettings weights;
  uint64_t seed = 0;
  std::function<void(const std::string& what, double fraction)> progress;
};

// Writes the canonical decoder (docs/canonical-graph.md) with packed weights, one at a time. Weights are
// uniform, with a variance of 1/K, so that activations stay of the order of one through any number of layers.
// The same options give the same bytes. Throws as DecoderShape::check, WeightSettings::quantize_options and
// artifact::Writer do.
void synthesize_artifact(const SynthOptions& options, const std::filesystem::path& target);

// Writes the same kind of model as an ONNX file of operator set 23 without a cache: input_ids [batch,
// sequence] to logits; its weights, in fp32, in an external data file beside it ("<name>.data"), written
// front to back. For tests of conversion.
void synthesize_onnx(const SynthOptions& options, const std::filesystem::path& target);

}  // namespace quern::passes
