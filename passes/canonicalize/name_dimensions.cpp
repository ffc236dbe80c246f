#include "passes/canonicalize/name_dimensions.h"

#include <algorithm>

#include "ir/rewriter.h"
#include "ir/shape_inference.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

// The axis of a past along which it grows: the symbolic one that is not the batch, which comes first (or is
// joined with the heads). Nothing if there is none or several.
std::optional<size_t> past_axis(const Value& past) {
  std::optional<size_t> axis;
  const SymShape& shape = past.shape();
  for (size_t i = 1; i < shape.size(); ++i) {
    if (shape[i].is_constant()) continue;
    if (axis) return std::nullopt;
    axis = i;
  }
  return axis;
}

// `wanted`, unless the dimension is a constant.
Dim renamed(const Dim& dim, const Dim& wanted) {
  return dim.is_constant() ? dim : wanted;
}

bool is_input_ids(const Value& input) {
  return input.name().find("input_ids") != std::string::npos;
}

class Renaming {
 public:
  Renaming(Graph& graph, const TransformerInputs& inputs) : rewriter_(graph), inputs_(inputs) {}

  int64_t run() {
    const Dim batch = inputs_.ids->shape()[0];
    const Dim sequence = inputs_.ids->shape()[1];
    Dim total = sequence;
    if (!inputs_.symbols.past.empty()) total = total + Dim::symbol(inputs_.symbols.past);
    if (inputs_.positions && inputs_.positions->shape().size() == 2)
      set(inputs_.positions, {batch, sequence});
    if (inputs_.mask && inputs_.mask->shape().size() == 2) set(inputs_.mask, {batch, total});
    for (Value* past : inputs_.pasts) {
      SymShape shape = past->shape();
      if (const auto axis = past_axis(*past)) shape[*axis] = Dim::symbol(inputs_.symbols.past);
      if (!shape[0].is_constant() && shape[0].as_symbol()) shape[0] = batch;
      set(past, shape);
    }
    if (changes_ > 0) rewriter_.commit();
    return changes_;
  }

 private:
  void set(Value* value, const SymShape& wanted) {
    SymShape shape = value->shape();
    for (size_t i = 0; i < shape.size(); ++i) shape[i] = renamed(shape[i], wanted[i]);
    if (shape == value->shape()) return;
    rewriter_.set_type(value, {value->dtype(), shape});
    ++changes_;
  }

  Rewriter rewriter_;
  const TransformerInputs& inputs_;
  int64_t changes_ = 0;
};

}  // namespace

std::optional<TransformerInputs> transformer_inputs(const Graph& graph) {
  TransformerInputs inputs;
  for (Value* input : graph.inputs()) {
    if (!input->has_shape()) continue;
    const InputRole role = role_of(*input);
    if (role == InputRole::Past) inputs.pasts.push_back(input);
    Value** slot = role == InputRole::Ids         ? &inputs.ids
                   : role == InputRole::Mask      ? &inputs.mask
                   : role == InputRole::Positions ? &inputs.positions
                                                  : nullptr;
    if (slot == nullptr) continue;
    if (*slot == nullptr) {
      *slot = input;
    } else if (role != InputRole::Ids || is_input_ids(**slot)) {
      // Two masks or two texts: an encoder-decoder.
      if (role != InputRole::Ids || is_input_ids(*input)) return std::nullopt;
    } else if (is_input_ids(*input)) {
      *slot = input;  // beside token types and the like
    }
  }
  if (inputs.ids == nullptr || inputs.ids->shape().size() != 2) return std::nullopt;
  const auto sequence = inputs.ids->shape()[1].as_symbol();
  if (!sequence) return std::nullopt;
  inputs.symbols.sequence = *sequence;
  inputs.symbols.batch = inputs.ids->shape()[0].as_symbol().value_or("");
  for (const Value* past : inputs.pasts) {
    const auto axis = past_axis(*past);
    if (!axis) continue;
    const auto symbol = past->shape()[*axis].as_symbol();
    inputs.symbols.past = symbol && *symbol != *sequence ? *symbol : "past_sequence_length";
    break;
  }
  return inputs;
}

bool TransformerInputs::is_past(const Value* value) const {
  return std::find(pasts.begin(), pasts.end(), skip_casts(const_cast<Value*>(value))) != pasts.end();
}

const Node* TransformerInputs::past_concat(const Value* value) const {
  const Node* node = produced_by(skip_casts(const_cast<Value*>(value)), "Concat");
  return node && node->inputs().size() == 2 && is_past(node->input(0)) ? node : nullptr;
}

NameDimensions::NameDimensions()
    : Pass("name-dimensions", "batch, sequence and past get one name each in all inputs") {}

PassReport NameDimensions::run(Graph& graph, PassContext&) {
  PassReport report;
  const auto inputs = transformer_inputs(graph);
  if (!inputs) return report;
  report.changes = Renaming(graph, *inputs).run();
  if (report.changes > 0) infer_shapes(graph);
  return report;
}

}  // namespace quern::passes
