// What a graph is, told from its structure: the figures of `inspect`, of summaries and of reports.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::cli {

// Constants that play one part in the model.
struct TensorGroup {
  std::string name;  // "embedding", "embedding and head (tied)", "attention", "mlp", "norms", "head", "other"
  int64_t tensors = 0;
  int64_t parameters = 0;                  // elements of floating or quantized tensors
  int64_t parameter_bytes = 0;             // of those
  int64_t bytes = 0;                       // as stored, scales included
  std::map<std::string, int64_t> formats;  // "f32", "int8 symmetric per channel": bytes of each
};

// Of a graph in the canonical form of docs/canonical-graph.md.
struct DecoderFacts {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t mlp_width = 0;
  int64_t experts = 0;            // of each mixture; 0: there are none
  int64_t experts_per_token = 0;  // of them that are computed
  int64_t idle_parameters = 0;    // of the experts that do not serve a token
  int64_t vocabulary = 0;
  int64_t context = 0;  // 0: no limit is known
  std::vector<std::string>
      traits;          // "RMSNorm", "rotary positions, by halves, base 10000", "gated MLP (SiLU)", ...
  std::string family;  // "Llama", "GPT-2", ...: whose traits these are; empty if of none we name
};

struct ModelFacts {
  int64_t nodes = 0;
  std::map<std::string, int64_t> operators;  // count of each, "com.microsoft:Gelu" outside of ai.onnx
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  std::vector<TensorGroup> groups;  // largest first; none is empty
  std::optional<DecoderFacts> decoder;

  // 8 * bytes / parameters over floating and quantized tensors, scales included; 0 without parameters.
  double bits_per_weight() const;
  // "f32", or "int8 symmetric per channel (92%), f32 (8%)".
  std::string formats() const;
};

ModelFacts facts_of(const Graph& graph);

// "f32", "int8 symmetric per channel".
std::string format_of(const Constant& constant);

// Operators that stand beside the canonical ones in a decoder, or make up a plain graph: "Softmax x 4".
std::string operator_list(const std::map<std::string, int64_t>& operators);
bool is_canonical_operator(const std::string& name);

}  // namespace quern::cli
