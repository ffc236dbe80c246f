#include "passes/interchange/upgrade.h"

#include <map>
#include <string>

#include "ir/error.h"

namespace quern::passes {
namespace {

bool is_any(const Node& node, std::initializer_list<std::string_view> ops) {
  for (std::string_view op : ops) {
    if (node.is(op)) return true;
  }
  return false;
}

// The attribute `name` becomes the second input.
void attribute_to_input(Emitter& emit, const Node& node, const std::string& name) {
  Attributes attributes = node.attributes();
  attributes.erase(name);
  const std::vector<int64_t> values = node.ints_attribute(name, {});
  Node* made =
      emit.node(node.op(), {node.input(0), emit.ints(values)}, std::move(attributes), node.outputs().size());
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    if (node.output(i)) emit.batch().replace(node.output(i), made->output(i));
  }
}

// Before version 13 the distribution went over all axes from `axis` on.
Value* over_last_axes(Emitter& emit, const Node& node) {
  const int64_t axis = node.int_attribute("axis", 1);
  const Value* x = node.input(0);
  if (axis == -1 || (x->has_shape() && axis + 1 == static_cast<int64_t>(x->shape().size())))
    return emit.add(node.op(), {node.input(0)}, {{"axis", int64_t{-1}}});
  Value* flat = emit.add("Flatten", {node.input(0)}, {{"axis", axis}});
  Value* made = emit.add(node.op(), {flat}, {{"axis", int64_t{-1}}});
  return emit.add("Reshape", {made, emit.add("Shape", {node.input(0)})});
}

Value* clip(Emitter& emit, const Node& node) {
  const auto bound = [&](const std::string& name) -> Value* {
    if (!node.has_attribute(name)) return nullptr;
    return emit.constant(Tensor::scalar(node.float_attribute(name, 0)).cast(node.input(0)->dtype()), name);
  };
  return emit.add("Clip", {node.input(0), bound("min"), bound("max")});
}

// The version in which an operator took the form that it has in version 13, where upgrade() does not know the
// way there.
int formed_in(const Node& node) {
  static const std::map<std::string, int, std::less<>> kFormed = {
      {"Pad", 11},      {"Slice", 10},  {"TopK", 10}, {"Dropout", 12},
      {"Upsample", 14}, {"Resize", 11}, {"Scan", 9},  {"BatchNormalization", 9}};
  const auto found = kFormed.find(node.op());
  return found != kFormed.end() ? found->second : 7;
}

}  // namespace

bool upgrade(Emitter& emit, const Node& node) {
  if (!node.domain().empty() || node.opset() >= kLowestEmittedVersion ||
      emit.opset() < kLowestEmittedVersion) {
    return false;
  }
  if (node.opset() < formed_in(node)) {
    throw_error(ErrorCode::Unsupported, describe(node), " is written in version ", node.opset(),
                " of ai.onnx, whose form of the operator the exported file's version ", emit.opset(),
                " lacks");
  }
  if (is_any(node, {"Squeeze", "Unsqueeze", "ReduceSum"}) && node.has_attribute("axes")) {
    attribute_to_input(emit, node, "axes");
    return true;
  }
  if (node.is("Split") && node.has_attribute("split")) {
    attribute_to_input(emit, node, "split");
    return true;
  }
  if (is_any(node, {"Softmax", "LogSoftmax", "Hardmax"})) {
    emit.batch().replace(node.output(), over_last_axes(emit, node));
    return true;
  }
  if (node.is("Clip") && node.opset() < 11) {
    emit.batch().replace(node.output(), clip(emit, node));
    return true;
  }
  return false;
}

}  // namespace quern::passes
