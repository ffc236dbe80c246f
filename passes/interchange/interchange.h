// Canonical and quantized graphs in the operators that other runtimes have.
#pragma once

#include <memory>

#include "ir/graph.h"

namespace quern::passes {

// How a quantized weight is written.
enum class WeightStyle {
  Plain,      // as the floats that it stands for
  NBits,      // com.microsoft MatMulNBits and GatherBlockQuantized, of 2, 4 or 8 bits in blocks
  Qdq,        // codes behind a DequantizeLinear, by tensor, axis or block
  QOperator,  // MatMulInteger on 8-bit activations that are quantized on the way
};

struct InterchangeOptions {
  WeightStyle style = WeightStyle::Plain;
  // Attention, rotary embeddings and norms as com.microsoft's fused operators where those can do it; else all
  // of it is ai.onnx alone (NBits is com.microsoft's by its nature).
  bool fused = true;
  // MatMulNBits' own: 0 (as the runtime likes), 1 (f32), 4 (8-bit activations).
  int accuracy_level = 0;
};

// The first of Plain, NBits and Qdq that keeps all weights of `graph`, and the scales that calibration gave
// to activations, as they are.
WeightStyle faithful_style(const Graph& graph);

// A graph that computes what `graph` does, without operators of ai.quern, in the version of ai.onnx that the
// source's nodes are written in, or a newer one where the style or quern's own nodes need it. `graph` is one
// that was made ready to run, such as an artifact's; constants share its bytes where the style leaves them
// alone.
//
// A decoder takes input_ids [batch_size, sequence_length], attention_mask [batch_size, past_sequence_length +
// sequence_length] of ones (zeros where the text is padded: on the left with plain operators, on the right
// with GroupQueryAttention, which is what fused attention becomes), position_ids where positions matter, and
// past_key_values.N.key and .value [batch_size, kv_heads, past_sequence_length, head_size]; it gives logits
// of all tokens and present.N.key and .value, the layout that other exporters use.
//
// Throws Error{Unsupported}, naming the node or weight and what to do, where the style has no form for it.
std::unique_ptr<Graph> to_interchange(const Graph& graph, const InterchangeOptions& options);

}  // namespace quern::passes
