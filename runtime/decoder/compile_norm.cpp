// Norms, with and without a residual sum.
#include "runtime/decoder/compiler.h"

namespace quern::runtime {
namespace {

// The features from the normalized axis on, and where in the features they begin.
int64_t normalized_size(const Node& node, const RowValue& x) {
  const auto rank = static_cast<int64_t>(x.features.size()) + 1;
  int64_t axis = node.int_attribute("axis", -1);
  if (axis < 0) axis += rank;
  if (axis < 1 || axis >= rank) return 0;
  int64_t size = 1;
  for (size_t i = static_cast<size_t>(axis) - 1; i < x.features.size(); ++i) size *= x.features[i];
  return size;
}

}  // namespace

const float* EntryCompiler::features_constant(const Node& node, const Value* value, int64_t width) {
  if (value == nullptr) return nullptr;
  if (!value->is_constant()) unsupported(node, concat("'", value->name(), "' is not a constant"));
  const std::vector<float>& elements = context_.constant(node, *value);
  if (static_cast<int64_t>(elements.size()) != width) {
    invalid(node,
            concat("'", value->name(), "' has ", elements.size(), " elements, ", width, " were expected"));
  }
  return elements.data();
}

void EntryCompiler::norm(const Node& node, bool layer, const Value* weight, const Value* shift) {
  const RowValue x = row_input(node, 0);
  NormStep::Options options;
  options.layer = layer;
  options.epsilon = node.float_attribute("epsilon", 1e-5f);
  options.size = normalized_size(node, x);
  if (options.size <= 0) unsupported(node, "it normalizes across tokens");
  options.weight = features_constant(node, weight, options.size);
  options.shift = features_constant(node, shift, options.size);
  NormStep::Operands at;
  at.x = x.at;
  at.out = define(node.output(), x.space, x.features);
  Shape reduced = {x.at.width / options.size};
  if (is_needed(node.output(1))) {
    (layer ? at.mean : at.inverse_std) = define(node.output(1), x.space, reduced);
  }
  if (is_needed(node.output(2))) at.inverse_std = define(node.output(2), x.space, reduced);
  add_step(std::make_unique<NormStep>(*plan_.kernels.rows, options, at), node, x.space);
}

void EntryCompiler::rms_norm(const Node& node) {
  norm(node, false, node.input(1), nullptr);
}

void EntryCompiler::layer_norm(const Node& node) {
  norm(node, true, node.input(1), node.input(2));
}

void EntryCompiler::skip_norm(const Node& node, bool layer, const Value* weight, const Value* shift,
                              const Value* bias) {
  const RowValue x = row_input(node, 0), skip = row_input(node, 1);
  if (x.space != skip.space || x.features != skip.features) {
    unsupported(node, "what it adds differs in rows or features");
  }
  NormStep::Options options;
  options.layer = layer;
  options.epsilon = node.float_attribute("epsilon", 1e-12f);
  options.size = x.features.back();
  options.weight = features_constant(node, weight, options.size);
  options.shift = features_constant(node, shift, options.size);
  options.bias = features_constant(node, bias, options.size);
  NormStep::Operands at;
  at.x = x.at;
  at.skip = skip.at;
  at.out = is_needed(node.output(0)) ? define(node.output(0), x.space, x.features)
                                     : new_buffer(x.at.width, x.space);
  const Shape reduced = {x.at.width / options.size};
  if (is_needed(node.output(1))) at.mean = define(node.output(1), x.space, reduced);
  if (is_needed(node.output(2))) at.inverse_std = define(node.output(2), x.space, reduced);
  if (is_needed(node.output(3))) at.sum = define(node.output(3), x.space, x.features);
  add_step(std::make_unique<NormStep>(*plan_.kernels.rows, options, at), node, x.space);
}

void EntryCompiler::skip_rms_norm(const Node& node) {
  skip_norm(node, false, node.input(2), nullptr, node.input(3));
}

void EntryCompiler::skip_layer_norm(const Node& node) {
  skip_norm(node, true, node.input(2), node.input(3), node.input(4));
}

}  // namespace quern::runtime
