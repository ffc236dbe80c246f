// com.microsoft: the attentions.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

const std::string kDomain(kMicrosoftDomain);

Dim divided(const Dim& a, int64_t by) {
  const std::optional<Dim> quotient = a.divided_by(Dim(by));
  return quotient ? *quotient : Dim::fresh();
}

// Queries [B, S, H*D] and separate keys and values, or all of them packed into the queries. The cache that
// comes out is as long as what is in use, or as the buffer that came in, whichever is longer.
void infer_group_query_attention(InferContext& context) {
  const Node& node = context.node();
  const int64_t heads = node.int_attribute("num_heads", 0);
  const int64_t kv_heads = node.int_attribute("kv_num_heads", 0);
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) context.fail("num_heads or kv_num_heads");
  check_rotary(context, "rotary_interleaved", 7);
  const DType cache = context.has_input(3) ? context.dtype(3) : context.dtype(0);
  if (!context.shape(0) || context.shape(0)->size() != 3) {
    context.set_output(0, context.dtype(0), std::nullopt);
    context.set_output(1, cache, std::nullopt);
    context.set_output(2, cache, std::nullopt);
    return;
  }
  const SymShape& q = *context.shape(0);
  const bool packed = !context.has_input(1);
  const Dim size = divided(q[2], packed ? heads + 2 * kv_heads : heads);
  context.set_output(0, context.dtype(0), SymShape{q[0], q[1], size * Dim(heads)});
  Dim length = Dim::fresh();
  const auto total = context.elements(6);
  const std::optional<SymShape>& past = context.shape(3);
  if (total && total->size() == 1) {
    if (!context.has_input(3)) {
      length = total->front();
    } else if (past && past->size() == 4) {
      if (const auto longest = known_max(total->front(), (*past)[2])) length = *longest;
    }
  }
  const Dim width = past && past->size() == 4 ? past->back() : size;
  for (size_t i = 1; i <= 2; ++i) context.set_output(i, cache, SymShape{q[0], Dim(kv_heads), length, width});
  context.set_output(3, context.dtype(0), SymShape{q[0], Dim(heads), q[1], length});
}

// (query, key?, value?, bias?, padding mask?, attention bias?, past key?, past value?, ...)
void infer_multi_head_attention(InferContext& context) {
  const Node& node = context.node();
  const int64_t heads = node.int_attribute("num_heads", 0);
  if (heads < 1) context.fail("num_heads");
  const DType dtype = context.dtype(0);
  const auto unknown = [&] {
    for (size_t i = 0; i < node.outputs().size(); ++i) context.set_output(i, dtype, std::nullopt);
  };
  if (!context.shape(0)) return unknown();
  const SymShape& q = *context.shape(0);
  Dim size = Dim::fresh(), value_size = Dim::fresh(), length = Dim::fresh();
  if (q.size() == 5) {
    size = value_size = q[4];
    length = q[1];
  } else if (q.size() == 3 && context.shape(1)) {
    const SymShape& k = *context.shape(1);
    size = divided(q[2], heads);
    if (k.size() == 5) {
      value_size = size;
      length = k[1];
    } else if (k.size() == 3 && context.shape(2) && context.shape(2)->size() == 3) {
      value_size = divided((*context.shape(2))[2], heads);
      length = k[1];
    } else if (k.size() == 4 && context.shape(2) && context.shape(2)->size() == 4) {
      value_size = (*context.shape(2))[3];
      length = k[2];
    } else {
      return unknown();
    }
  } else {
    return unknown();
  }
  if (context.has_input(6)) {
    length =
        context.shape(6) && context.shape(6)->size() == 4 ? (*context.shape(6))[2] + length : Dim::fresh();
  }
  context.set_output(0, dtype, SymShape{q[0], q[1], value_size * Dim(heads)});
  context.set_output(1, dtype, SymShape{q[0], Dim(heads), length, size});
  context.set_output(2, dtype, SymShape{q[0], Dim(heads), length, value_size});
  context.set_output(3, dtype, SymShape{q[0], Dim(heads), q[1], length});
}

// Attention and QAttention: (input [B, S, C], weights [C, Q+K+V], bias [Q+K+V], ...) -> [B, S, V], present
// [2, B, H, T, D].
void infer_packed_attention(InferContext& context, size_t past, DType dtype) {
  const Node& node = context.node();
  const int64_t heads = node.int_attribute("num_heads", 0);
  if (heads < 1) context.fail("num_heads");
  if (!context.shape(0) || context.shape(0)->size() != 3 || !context.shape(1) ||
      context.shape(1)->size() != 2) {
    context.set_output(0, dtype, std::nullopt);
    context.set_output(1, dtype, std::nullopt);
    return;
  }
  const SymShape& x = *context.shape(0);
  const std::vector<int64_t> sizes = node.ints_attribute("qkv_hidden_sizes", {});
  const Dim hidden = sizes.size() == 3 ? Dim(sizes[2]) : divided((*context.shape(1))[1], 3);
  Dim length = x[1];
  if (context.has_input(past)) {
    length = context.shape(past) && context.shape(past)->size() == 5 ? (*context.shape(past))[3] + x[1]
                                                                     : Dim::fresh();
  }
  context.set_output(0, dtype, SymShape{x[0], x[1], hidden});
  context.set_output(1, dtype, SymShape{Dim(2), x[0], Dim(heads), length, divided(hidden, heads)});
}

void infer_attention(InferContext& context) {
  infer_packed_attention(context, 4, context.dtype(0));
}
void infer_quantized_attention(InferContext& context) {
  infer_packed_attention(context, 8, context.dtype(3));
}

}  // namespace

void register_microsoft_attention_schemas(SchemaTable& table) {
  table.add({.domain = kDomain,
             .op = "GroupQueryAttention",
             .min_inputs = 7,
             .max_inputs = 16,
             .max_outputs = 4,
             .required_attributes = {"num_heads", "kv_num_heads"},
             .infer = infer_group_query_attention});
  table.add({.domain = kDomain,
             .op = "MultiHeadAttention",
             .min_inputs = 1,
             .max_inputs = 10,
             .max_outputs = 4,
             .required_attributes = {"num_heads"},
             .infer = infer_multi_head_attention});
  table.add({.domain = kDomain,
             .op = "Attention",
             .min_inputs = 2,
             .max_inputs = 7,
             .max_outputs = 2,
             .required_attributes = {"num_heads"},
             .infer = infer_attention});
  table.add({.domain = kDomain,
             .op = "QAttention",
             .min_inputs = 5,
             .max_inputs = 9,
             .max_outputs = 2,
             .required_attributes = {"num_heads"},
             .infer = infer_quantized_attention});
}

}  // namespace quern
