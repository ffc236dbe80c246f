// Attention with keys and values as inputs and outputs, and rotary embeddings, as other runtimes have them.
#pragma once

#include <map>
#include <vector>

#include "passes/interchange/emitter.h"

namespace quern::passes {

// What CachedAttention says of itself.
struct AttentionForm {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t value_head_size = 0;
  float scale = 0;  // never 0 once read
  float softcap = 0;
  int64_t window = 0;
  static AttentionForm of(const Node& node);
};

// softmax(scale * q kᵀ, soft-capped, + bias) v in operators of ai.onnx 13.
// q [batch, heads, S, head_size], k [batch, kv_heads, T, head_size], v likewise; bias broadcasts to [batch,
// heads, S, T] and may be null; sinks [heads], logits in the denominator alone, may be null.
// [batch, heads, S, value_head_size].
Value* emit_softmax_attention(Emitter& emit, const AttentionForm& form, Value* q, Value* k, Value* v,
                              Value* bias, Value* sinks);

// x [batch, S, heads * size] as [batch, heads, S, size], and back.
Value* emit_heads(Emitter& emit, Value* x, int64_t heads, int64_t size);
Value* emit_joined_heads(Emitter& emit, Value* x, int64_t width);

// The attentions of one decoder. What they share, masks and lengths, is made once.
class BatchAttention {
 public:
  struct Inputs {
    Value* ids = nullptr;             // [batch, S]
    Value* attention_mask = nullptr;  // [batch, T]
    Value* position_ids = nullptr;    // [batch, S]; null where no node needs them
  };
  BatchAttention(Emitter& emit, const Inputs& inputs, bool fused, int64_t context_length)
      : emit_(emit), inputs_(inputs), fused_(fused), context_length_(context_length) {}

  struct Result {
    Value* output = nullptr;
    Value* present_key = nullptr;
    Value* present_value = nullptr;
  };
  // `node`: a CachedAttention; q, k and v [batch, S, features]; sinks and slopes may be null.
  Result attention(const Node& node, Value* q, Value* k, Value* v, Value* sinks, Value* slopes,
                   Value* past_key, Value* past_value);
  // `node`: a Rotary; x [batch, S, heads * head_size].
  Value* rotary(const Node& node, Value* x);

 private:
  struct CosSin {
    Value* cos = nullptr;
    Value* sin = nullptr;
  };
  Result fused_attention(const AttentionForm& form, std::vector<Value*> qkv, Value* sinks, Value* slopes);
  Value* total_length();                                        // [1]
  Value* distances(Value* past_key);                            // key index - query index, i64 [S, T]
  Value* alibi(Value* slopes, int64_t heads, Value* past_key);  // [1, heads, S, T]
  Value* mask_bias(int64_t window, Value* past_key);            // [batch, 1, S, T]
  CosSin tables(const Node& node);                              // [context, R/2]
  CosSin angles(const Node& node, bool interleaved);            // [batch, S, 1, R]
  bool has_tables(const Node& node) const;

  Emitter& emit_;
  Inputs inputs_;
  bool fused_;
  int64_t context_length_;
  Value* lengths_ = nullptr;
  Value* total_ = nullptr;
  Value* distances_ = nullptr;
  std::map<int64_t, Value*> biases_;
  std::map<std::vector<float>, CosSin> tables_;
  std::map<std::vector<float>, CosSin> angles_;
};

}  // namespace quern::passes
