// The operators of ai.quern: the canonical decoder's vocabulary where neither ai.onnx nor com.microsoft has
// the thing. Their semantics are written down in docs/canonical-graph.md.
#include <algorithm>
#include <cctype>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// Linear(x [..., K], weight [N, K], bias? [N]) -> [..., N]
void infer_linear(InferContext& context) {
  if (!context.shape(0) || !context.shape(1)) {
    context.set_output(0, context.dtype(0), std::nullopt);
    return;
  }
  SymShape shape = *context.shape(0);
  const SymShape& weight = *context.shape(1);
  if (weight.size() != 2 || shape.empty())
    context.fail("the weight must have rank 2 and the input rank 1 or more");
  const Dim& k = shape.back();
  if (k.is_constant() && weight[1].is_constant() && !(k == weight[1])) {
    context.fail(
        concat("the input has ", k.to_string(), " features, the weight takes ", weight[1].to_string()));
  }
  shape.back() = weight[0];
  context.set_output(0, context.dtype(0), shape);
}

// Embedding(table [V, C], ids [...]) -> f32 [..., C], whatever the table is stored as
void infer_embedding(InferContext& context) {
  if (!context.shape(0) || !context.shape(1)) {
    context.set_output(0, DType::F32, std::nullopt);
    return;
  }
  if (context.shape(0)->size() != 2) context.fail("the table must have rank 2");
  SymShape shape = *context.shape(1);
  shape.push_back(context.shape(0)->back());
  context.set_output(0, DType::F32, shape);
}

// CachedAttention(q [tokens, heads*head_size], k, v, sinks?, slopes?, key_scales?) -> [tokens,
// heads*value_head_size]
void infer_cached_attention(InferContext& context) {
  const Node& node = context.node();
  const int64_t heads = node.int_attribute("heads", 0);
  const int64_t kv_heads = node.int_attribute("kv_heads", heads);
  const int64_t head_size = node.int_attribute("head_size", 0);
  const int64_t value_head_size = node.int_attribute("value_head_size", head_size);
  if (heads <= 0 || head_size <= 0 || value_head_size <= 0 || kv_heads <= 0 || heads % kv_heads != 0) {
    context.fail("heads, kv_heads and head_size must be positive, and heads a multiple of kv_heads");
  }
  std::optional<SymShape> shape;
  if (context.shape(0)) shape = SymShape{context.shape(0)->front(), Dim(heads * value_head_size)};
  context.set_output(0, context.dtype(0), shape);
}

// AppendCache(k, v, key_scales?) -> v: what CachedAttention appends, without its attention
void infer_append_cache(InferContext& context) {
  context.set_output(0, context.dtype(1), context.shape(1));
}

// SelectRows(x [tokens, C]) -> [selected, C]
void infer_select_rows(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (shape && !shape->empty()) shape->front() = Dim::symbol("selected");
  context.set_output(0, context.dtype(0), shape);
}

// RouteExperts(logits [..., E], selection_bias? [E]) -> weights of the experts [..., E], zero where a row is
// not routed
void infer_route_experts(InferContext& context) {
  const int64_t k = context.node().int_attribute("experts_per_token", 0);
  const auto& shape = context.shape(0);
  if (shape && shape->empty()) context.fail("the logits are a scalar");
  if (k < 1 || (shape && shape->back().is_constant() && shape->back().constant() < k))
    context.fail(concat("experts_per_token is ", k));
  context.set_output(0, DType::F32, shape);
}

// ExpertRows(x [..., C], routing [..., E]) -> [rows of the expert, C]
void infer_expert_rows(InferContext& context) {
  const Node& node = context.node();
  const int64_t expert = node.int_attribute("expert", -1);
  if (expert < 0) context.fail(concat("expert is ", expert));
  std::optional<SymShape> shape;
  if (context.shape(0) && !context.shape(0)->empty()) {
    std::string rows = concat("rows_of_", node.input(1)->name(), "_", expert);
    // A name that a file can hold as a dimension's.
    std::replace_if(
        rows.begin(), rows.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    shape = SymShape{Dim::symbol(std::move(rows)), context.shape(0)->back()};
  }
  context.set_output(0, context.dtype(0), shape);
}

// CombineExperts(routing [..., E], y [rows of the expert, C] for each expert) -> [..., C]
void infer_combine_experts(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (shape && !shape->empty() && shape->back().is_constant() &&
      shape->back().constant() + 1 != static_cast<int64_t>(context.input_count())) {
    context.fail(concat(context.input_count() - 1, " results for ", shape->back().constant(), " experts"));
  }
  if (shape && !shape->empty() && context.shape(1) && context.shape(1)->size() == 2) {
    shape->back() = context.shape(1)->back();
  } else {
    shape.reset();
  }
  context.set_output(0, context.dtype(1), shape);
}

// QuantizeWeight(weight [N, K], importance? [K]) and PackWeight(weight [N, K]) -> the same matrix as a
// quantized or packed constant, which is f32 to everyone who uses it.
void infer_weight(InferContext& context) {
  if (context.shape(0) && context.shape(0)->size() != 2) context.fail("the weight must have rank 2");
  context.set_output(0, DType::F32, context.shape(0));
}

}  // namespace

void register_quern_schemas(SchemaTable& table) {
  const std::string domain(kQuernDomain);
  table.add({.domain = domain,
             .op = "Linear",
             .min_inputs = 2,
             .max_inputs = 3,
             .infer = infer_linear,
             .quantizable = {{.input = 1, .channel_axis = 0, .reduction_axis = 1}}});
  table.add({.domain = domain,
             .op = "Embedding",
             .min_inputs = 2,
             .max_inputs = 2,
             .infer = infer_embedding,
             .quantizable = {{.input = 0, .channel_axis = 0, .reduction_axis = 1}}});
  table.add({.domain = domain,
             .op = "Rotary",
             .min_inputs = 3,
             .max_inputs = 4,
             .required_attributes = {"head_size"},
             .infer = infer_same_as_input});
  table.add({.domain = domain,
             .op = "CachedAttention",
             .min_inputs = 3,
             .max_inputs = 6,
             .required_attributes = {"layer", "heads", "head_size"},
             .infer = infer_cached_attention});
  table.add({.domain = domain,
             .op = "AppendCache",
             .min_inputs = 2,
             .max_inputs = 3,
             .required_attributes = {"layer", "heads", "head_size"},
             .infer = infer_append_cache});
  table.add(
      {.domain = domain, .op = "QuantizeWeight", .min_inputs = 1, .max_inputs = 2, .infer = infer_weight});
  table.add({.domain = domain, .op = "PackWeight", .min_inputs = 1, .max_inputs = 1, .infer = infer_weight});
  table.add({.domain = domain,
             .op = "RouteExperts",
             .min_inputs = 1,
             .max_inputs = 2,
             .required_attributes = {"experts_per_token"},
             .infer = infer_route_experts});
  table.add({.domain = domain,
             .op = "ExpertRows",
             .min_inputs = 2,
             .max_inputs = 2,
             .required_attributes = {"expert"},
             .infer = infer_expert_rows});
  table.add({.domain = domain,
             .op = "CombineExperts",
             .min_inputs = 2,
             .max_inputs = kVariadic,
             .infer = infer_combine_experts});
  table.add(
      {.domain = domain, .op = "SelectRows", .min_inputs = 1, .max_inputs = 1, .infer = infer_select_rows});
}

}  // namespace quern
