#include "passes/interchange/batches.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ir/decoder_mark.h"
#include "passes/interchange/batch_attention.h"

namespace quern::passes {
namespace {

// Operators that do the same to a tensor with one more axis in front, as broadcasting aligns shapes at their
// ends.
const std::set<std::string> kElementwise = {
    "Abs",         "Add",       "And",      "Cast",      "Ceil",  "Clip",        "Cos",      "Div",
    "Elu",         "Equal",     "Erf",      "Exp",       "Floor", "Gelu",        "Greater",  "GreaterOrEqual",
    "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less",  "LessOrEqual", "Log",      "Max",
    "Min",         "Mish",      "Mul",      "Neg",       "Not",   "Or",          "Pow",      "Reciprocal",
    "Relu",        "Round",     "Sigmoid",  "Sign",      "Sin",   "Softplus",    "Softsign", "Sqrt",
    "Sub",         "Swish",     "Tanh",     "Where"};
// Those with an attribute `axis` that may as well count from the end.
const std::set<std::string> kAlongAxis = {"Concat",  "Gather", "LayerNormalization", "LogSoftmax",
                                          "Softmax", "Split",  "RMSNormalization",   "TopK"};
const std::set<std::string> kMicrosoftRowWise = {"SkipLayerNormalization",
                                                 "SkipSimplifiedLayerNormalization",
                                                 "FastGelu",
                                                 "BiasGelu",
                                                 "QuickGelu",
                                                 "Gelu"};

std::string cache_name(const char* prefix, int64_t layer, const char* which) {
  return concat(prefix, ".", layer, ".", which);
}

class Batches {
 public:
  Batches(const Graph& rows, const InterchangeOptions& options, int opset)
      : rows_(rows), graph_(std::make_unique<Graph>(rows.name())), batch_(*graph_), emit_(batch_, opset) {
    add_inputs();
    const auto limit = rows.metadata().find("context_length");
    const int64_t context = limit != rows.metadata().end() ? std::atoll(limit->second.c_str()) : 0;
    attention_.emplace(emit_, inputs_, options.fused, context);
  }

  std::unique_ptr<Graph> build() {
    for (const Node* node : rows_.nodes()) with_context(describe(*node), [&] { visit(*node); });
    Rewriter& rewriter = batch_.rewriter();
    for (const GraphOutput& output : rows_.outputs()) rewriter.add_output(value(output.value), output.name);
    for (const auto& [layer, cache] : caches_) {
      rewriter.add_output(cache.present_key, cache_name("present", layer, "key"));
      rewriter.add_output(cache.present_value, cache_name("present", layer, "value"));
    }
    for (const auto& [key, text] : rows_.metadata()) {
      if (key != kDecoderMark) rewriter.set_metadata(key, text);
    }
    batch_.commit();
    return std::move(graph_);
  }

 private:
  struct Cache {
    Value* past_key = nullptr;
    Value* past_value = nullptr;
    Value* present_key = nullptr;
    Value* present_value = nullptr;
  };

  static bool is_rows(const Value* value) {
    if (value == nullptr || !value->has_shape() || value->shape().empty()) return false;
    const auto symbol = value->shape().front().as_symbol();
    return symbol == "tokens" || symbol == "selected";
  }
  // The dimensions behind the token's.
  static std::vector<int64_t> features_of(const Value* value) {
    std::vector<int64_t> features;
    for (size_t i = 1; i < value->shape().size(); ++i) features.push_back(value->shape()[i].constant());
    return features;
  }

  void add_inputs() {
    Rewriter& rewriter = batch_.rewriter();
    const Dim size = Dim::symbol("batch_size"), length = Dim::symbol("sequence_length");
    const Dim past = Dim::symbol("past_sequence_length");
    for (const Value* input : rows_.inputs()) {
      if (input->name() == "input_ids") {
        values_[input] = inputs_.ids = rewriter.add_input("input_ids", {DType::I64, SymShape{size, length}});
      }
    }
    if (inputs_.ids == nullptr) throw_error(ErrorCode::Unsupported, "the decoder has no input 'input_ids'");
    inputs_.attention_mask =
        rewriter.add_input("attention_mask", {DType::I64, SymShape{size, past + length}});
    for (const Value* input : rows_.inputs()) {
      if (input->name() != "positions" || input->uses().empty()) continue;
      values_[input] = inputs_.position_ids =
          rewriter.add_input("position_ids", {DType::I64, SymShape{size, length}});
    }
    for (const Node* node : rows_.nodes()) {
      if (node->is("CachedAttention", kQuernDomain)) caches_[node->int_attribute("layer", 0)];
    }
    for (const Node* node : rows_.nodes()) {
      if (!node->is("CachedAttention", kQuernDomain)) continue;
      const AttentionForm form = AttentionForm::of(*node);
      const int64_t layer = node->int_attribute("layer", 0);
      const auto add = [&](const char* which, int64_t width) {
        return rewriter.add_input(cache_name("past_key_values", layer, which),
                                  {DType::F32, SymShape{size, Dim(form.kv_heads), past, Dim(width)}});
      };
      caches_[layer].past_key = add("key", form.head_size);
      caches_[layer].past_value = add("value", form.value_head_size);
    }
  }

  Value* value(const Value* old) {
    if (old == nullptr) return nullptr;
    Value*& made = values_[old];
    if (made == nullptr && old->is_constant()) made = emit_.constant(*old->constant(), old->name());
    if (made == nullptr) throw_error(ErrorCode::Internal, "value '", old->name(), "' has not been visited");
    return made;
  }
  std::vector<Value*> values(const Node& node) {
    std::vector<Value*> made;
    for (const Value* input : node.inputs()) made.push_back(value(input));
    return made;
  }

  void visit(const Node& node) {
    if (!node.subgraphs().empty()) {
      throw_error(ErrorCode::Unsupported, "it holds graphs of its own, which have no form over batches");
    }
    const bool quern = node.domain() == kQuernDomain;
    const bool any = std::any_of(node.inputs().begin(), node.inputs().end(), is_rows);
    if (quern && node.op() == "SelectRows") {
      values_[node.output()] = value(node.input(0));
    } else if (quern && node.op() == "CachedAttention") {
      attention(node);
    } else if (quern && node.op() == "Rotary") {
      values_[node.output()] = attention_->rotary(node, value(node.input(0)));
    } else if (!any || quern || (node.domain().empty() && kElementwise.contains(node.op())) ||
               (node.domain() == kMicrosoftDomain && kMicrosoftRowWise.contains(node.op()))) {
      copy(node, values(node), node.attributes());
    } else if (node.domain().empty() && kAlongAxis.contains(node.op())) {
      along_axis(node);
    } else if (node.is("Reshape")) {
      reshape(node);
    } else if (node.is("Slice") && node.input(3) && node.input(3)->tensor()) {
      slice(node);
    } else {
      on_rows(node);
    }
  }

  void attention(const Node& node) {
    Cache& cache = caches_.at(node.int_attribute("layer", 0));
    if (cache.present_key) throw_error(ErrorCode::Unsupported, "it shares the cache of another attention");
    const auto result =
        attention_->attention(node, value(node.input(0)), value(node.input(1)), value(node.input(2)),
                              value(node.input(3)), value(node.input(4)), cache.past_key, cache.past_value);
    values_[node.output()] = result.output;
    cache.present_key = result.present_key;
    cache.present_value = result.present_value;
  }

  Node* copy(const Node& node, std::vector<Value*> inputs, Attributes attributes) {
    std::vector<OutputSpec> outputs;
    for (const Value* output : node.outputs())
      outputs.push_back(output ? OutputSpec{} : OutputSpec::omitted());
    Node* made = batch_.add_node({.op = node.op(),
                                  .domain = node.domain(),
                                  .opset = node.opset(),
                                  .name = node.name(),
                                  .inputs = std::move(inputs),
                                  .attributes = std::move(attributes),
                                  .outputs = std::move(outputs)});
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      if (node.output(i)) values_[node.output(i)] = made->output(i);
    }
    return made;
  }

  void along_axis(const Node& node) {
    // A Gather by rows of indices has its axis in the other operand.
    const Value* counted = node.input(0);
    if (node.is("Concat")) counted = *std::find_if(node.inputs().begin(), node.inputs().end(), is_rows);
    if (!is_rows(counted)) {
      copy(node, values(node), node.attributes());
      return;
    }
    const auto rank = static_cast<int64_t>(counted->shape().size());
    const int64_t fallback = node.is("Gather") || node.is("Split") ? 0 : -1;
    int64_t axis = node.int_attribute("axis", fallback);
    if (axis >= 0) axis -= rank;
    if (axis == -rank)
      throw_error(ErrorCode::Unsupported, "it works across tokens, which a batch of sequences cannot say");
    Attributes attributes = node.attributes();
    attributes["axis"] = axis;
    copy(node, values(node), attributes);
  }

  void reshape(const Node& node) {
    if (!is_rows(node.input(0)) || !is_rows(node.output())) {
      throw_error(ErrorCode::Unsupported,
                  "it joins tokens with what they hold, which a batch of sequences cannot say");
    }
    std::vector<int64_t> shape = {0, 0};
    for (const int64_t dim : features_of(node.output())) shape.push_back(dim);
    values_[node.output()] = emit_.reshape(value(node.input(0)), shape);
  }

  void slice(const Node& node) {
    std::vector<int64_t> axes = node.input(3)->tensor()->to_ints();
    const auto rank = static_cast<int64_t>(node.input(0)->shape().size());
    for (int64_t& axis : axes) {
      if (axis >= 0) axis -= rank;
      if (axis == -rank)
        throw_error(ErrorCode::Unsupported, "it works across tokens, which a batch of sequences cannot say");
    }
    std::vector<Value*> inputs = values(node);
    inputs[3] = emit_.ints(axes);
    copy(node, inputs, node.attributes());
  }

  // Batch and sequence are one axis while the operator works.
  void on_rows(const Node& node) {
    std::vector<Value*> inputs;
    for (const Value* input : node.inputs()) {
      Value* made = value(input);
      if (is_rows(input)) {
        std::vector<int64_t> shape = features_of(input);
        shape.insert(shape.begin(), -1);
        made = emit_.reshape(made, shape);
      }
      inputs.push_back(made);
    }
    const Node* made = copy(node, inputs, node.attributes());
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      const Value* output = node.output(i);
      if (!is_rows(output)) continue;
      if (batch_shape_ == nullptr) batch_shape_ = emit_.add("Shape", {inputs_.ids});
      const std::vector<int64_t> features = features_of(output);
      Value* shape = features.empty()
                         ? batch_shape_
                         : emit_.add("Concat", {batch_shape_, emit_.ints(features)}, {{"axis", int64_t{0}}});
      values_[output] = emit_.add("Reshape", {made->output(i), shape});
    }
  }

  const Graph& rows_;
  std::unique_ptr<Graph> graph_;
  BatchRewriter batch_;
  Emitter emit_;
  BatchAttention::Inputs inputs_;
  std::optional<BatchAttention> attention_;
  std::map<int64_t, Cache> caches_;
  std::unordered_map<const Value*, Value*> values_;
  Value* batch_shape_ = nullptr;
};

}  // namespace

std::unique_ptr<Graph> rows_to_batches(const Graph& rows, const InterchangeOptions& options, int opset) {
  return Batches(rows, options, opset).build();
}

}  // namespace quern::passes
