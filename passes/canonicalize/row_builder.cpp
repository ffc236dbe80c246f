#include "passes/canonicalize/row_builder.h"

#include <set>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {

const std::unordered_map<std::string, RowBuilder::Handler>& RowBuilder::handlers() {
  static const auto table = [] {
    std::unordered_map<std::string, Handler> made = {
        {"ai.quern.Embedding", &RowBuilder::embedding},
        {"ai.quern.Linear", &RowBuilder::linear},
        {"RMSNormalization", &RowBuilder::norm},
        {"LayerNormalization", &RowBuilder::norm},
        {"com.microsoft.SkipLayerNormalization", &RowBuilder::skip_norm},
        {"com.microsoft.SkipSimplifiedLayerNormalization", &RowBuilder::skip_norm},
        {"Gather", &RowBuilder::gather},
        {"Concat", &RowBuilder::join},
        {"Softmax", &RowBuilder::along_features},
        {"Attention", &RowBuilder::attention},
        {"ai.quern.Attention", &RowBuilder::attention},
        {"ai.quern.RouteExperts", &RowBuilder::route_experts},
        {"ai.quern.ExpertRows", &RowBuilder::expert_rows},
        {"ai.quern.CombineExperts", &RowBuilder::combine_experts},
        {"RotaryEmbedding", &RowBuilder::rotary_operator},
        {"com.microsoft.RotaryEmbedding", &RowBuilder::rotary_operator},
        {"com.microsoft.GroupQueryAttention", &RowBuilder::group_query_attention},
        {"com.microsoft.MultiHeadAttention", &RowBuilder::multi_head_attention},
    };
    for (const char* op :
         {"Relu", "Sigmoid", "Tanh", "Neg", "Sqrt", "Exp", "Log", "Erf", "Gelu", "Swish", "Abs", "Reciprocal",
          "Softplus", "Elu", "LeakyRelu", "HardSwish", "Clip", "Cast"}) {
      made[op] = &RowBuilder::unary;
    }
    for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}) made[op] = &RowBuilder::binary;
    for (const char* op : {"Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Expand",
                           "Slice", "Split", "Dropout"}) {
      made[op] = &RowBuilder::move;
    }
    return made;
  }();
  return table;
}

RowBuilder::RowBuilder(Graph& graph, const TransformerInputs& inputs, Rewriter& rewriter)
    : graph_(graph),
      inputs_(inputs),
      rewriter_(rewriter),
      control_(graph),
      prober_(graph, inputs.symbols),
      masks_(prober_, !inputs.symbols.past.empty()),
      rotaries_(prober_, inputs) {
  ids_ = rewriter_.add_input("input_ids", {DType::I64, SymShape{Dim::symbol("tokens")}});
  positions_ = rewriter_.add_input("positions", {DType::I64, SymShape{Dim::symbol("tokens")}});
  SymShape root = inputs.ids->shape();
  root.push_back(1);
  const auto view = View(root).squeeze({2});
  state_[inputs.ids] = {.rows = ids_, .view = *view};
}

Value* RowBuilder::build(const Value* logits) {
  std::set<const Node*> needed;
  std::vector<const Value*> open = {logits};
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    const Node* node = value ? value->producer() : nullptr;
    if (node == nullptr || control_.is_control(value) || !needed.insert(node).second) continue;
    for (const Value* input : node->inputs()) open.push_back(input);
  }
  const std::vector<Node*> nodes = graph_.nodes();
  for (size_t i = 0; i < nodes.size(); ++i) order_[nodes[i]] = i;
  for (const Node* node : nodes) {
    if (needed.contains(node)) visit(*node);
  }
  const Rows result = joined_last(rows_of(logits), "the logits");
  if (result.view.rank() != 3) throw NotRowWise{"the logits are not [batch, sequence, vocabulary]"};
  return result.rows;
}

void RowBuilder::visit(const Node& node) {
  try {
    const std::string key = node.domain().empty() ? node.op() : node.domain() + "." + node.op();
    const auto handler = handlers().find(key);
    if (handler == handlers().end())
      throw NotRowWise{describe(node) + " is no operator that works row by row"};
    (this->*handler->second)(node);
  } catch (const NotRowWise& failure) {
    for (const Value* output : node.outputs()) {
      if (output != nullptr && !state_.contains(output)) state_[output] = {.failure = failure.reason};
    }
  }
}

const Rows& RowBuilder::rows_of(const Value* value) {
  const auto found = state_.find(value);
  if (found == state_.end()) {
    throw NotRowWise{quern::concat("'", value->name(), "' does not come from the token ids row by row")};
  }
  if (!found->second.ok()) throw NotRowWise{found->second.failure};
  return found->second;
}

void RowBuilder::set(const Value* old, Rows rows) {
  if (old == nullptr) return;
  if (rows.rows && rows.rows->producer()) counterparts_.emplace_back(old, rows.rows);
  state_[old] = std::move(rows);
}

Value* RowBuilder::emit(std::string op, std::vector<Value*> inputs, Attributes attributes, std::string domain,
                        const Node* origin) {
  return rewriter_
      .add_node({.op = std::move(op),
                 .domain = std::move(domain),
                 .name = origin ? origin->name() : std::string(),
                 .inputs = std::move(inputs),
                 .attributes = std::move(attributes)})
      ->output();
}

Value* RowBuilder::emit_like(const Value* like, std::string op, std::vector<Value*> inputs,
                             Attributes attributes, const Node* origin) {
  return rewriter_
      .add_node({.op = std::move(op),
                 .name = origin ? origin->name() : std::string(),
                 .inputs = std::move(inputs),
                 .attributes = std::move(attributes),
                 .outputs = {{.type = like->type()}}})
      ->output();
}

Value* RowBuilder::ints(std::vector<int64_t> values) {
  return rewriter_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

Value* RowBuilder::as_f32(Value* constant) {
  if (constant == nullptr || constant->dtype() == DType::F32) return constant;
  return emit("Cast", {constant}, {{"to", int64_t{1}}});
}

void RowBuilder::note_context(int64_t limit) {
  if (limit > 0) context_ = context_ == 0 ? limit : std::min(context_, limit);
}

}  // namespace quern::passes
