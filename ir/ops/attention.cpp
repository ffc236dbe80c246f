// Attention, rotary embedding and cache updates of ai.onnx.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

Dim divided(const Dim& a, int64_t by) {
  const std::optional<Dim> quotient = a.divided_by(Dim(by));
  return quotient ? *quotient : Dim::fresh();
}

// (Q, K, V, mask?, past_key?, past_value?, nonpad_kv_seqlen?) -> Y, present_key, present_value, qk
void infer_attention(InferContext& context) {
  const Node& node = context.node();
  const DType dtype = context.dtype(0);
  const size_t outputs = node.outputs().size();
  if (!context.shape(0) || !context.shape(1) || !context.shape(2)) {
    for (size_t i = 0; i < outputs; ++i)
      context.set_output(i, i == 2 ? context.dtype(2) : dtype, std::nullopt);
    return;
  }
  SymShape q = *context.shape(0);
  SymShape k = *context.shape(1);
  SymShape v = *context.shape(2);
  const bool flat = q.size() == 3;
  if ((q.size() != 3 && q.size() != 4) || k.size() != q.size() || v.size() != q.size()) {
    context.fail("Q, K and V must all have rank 3, or all rank 4");
  }
  if (flat) {
    const int64_t heads = node.int_attribute("q_num_heads", 0);
    const int64_t kv_heads = node.int_attribute("kv_num_heads", 0);
    if (heads < 1 || kv_heads < 1) context.fail("inputs of rank 3 need q_num_heads and kv_num_heads");
    q = {q[0], Dim(heads), q[1], divided(q[2], heads)};
    k = {k[0], Dim(kv_heads), k[1], divided(k[2], kv_heads)};
    v = {v[0], Dim(kv_heads), v[1], divided(v[2], kv_heads)};
  }
  Dim total = k[2];
  if (context.has_input(4)) {
    total = context.shape(4) && context.shape(4)->size() == 4 ? (*context.shape(4))[2] + k[2] : Dim::fresh();
  }
  context.set_output(0, dtype, flat ? SymShape{q[0], q[2], q[1] * v[3]} : SymShape{q[0], q[1], q[2], v[3]});
  context.set_output(1, context.dtype(1), SymShape{k[0], k[1], total, k[3]});
  context.set_output(2, context.dtype(2), SymShape{v[0], v[1], total, v[3]});
  context.set_output(3, dtype, SymShape{q[0], q[1], q[2], total});
}

void infer_rotary_embedding(InferContext& context) {
  check_rotary(context, "interleaved", 1);
  infer_same_as_input(context);
}

}  // namespace

void register_attention_schemas(SchemaTable& table) {
  table.add(
      {.op = "Attention", .min_inputs = 3, .max_inputs = 7, .max_outputs = 4, .infer = infer_attention});
  // The same with the logits of attention sinks, one per head, as input 7.
  table.add({.domain = std::string(kQuernDomain),
             .op = "Attention",
             .min_inputs = 3,
             .max_inputs = 8,
             .max_outputs = 4,
             .infer = infer_attention});
  table.add({.op = "RotaryEmbedding", .min_inputs = 3, .max_inputs = 4, .infer = infer_rotary_embedding});
}

}  // namespace quern
