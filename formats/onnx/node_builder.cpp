// Nodes of an ONNX graph: operators, constants, calls of functions.
#include <algorithm>

#include "formats/onnx/graph_builder.h"
#include "ir/error.h"

namespace quern::onnx_format {
namespace {

// Functions that call functions can make a small file grow without bound.
constexpr int kMaxCallDepth = 64;
constexpr int64_t kMaxInlinedNodes = 100'000;

using Type = onnx::AttributeProto;

// Files of the first years have no `type`.
int attribute_type(const onnx::AttributeProto& attribute) {
  if (attribute.type() != Type::UNDEFINED) return attribute.type();
  if (attribute.has_f()) return Type::FLOAT;
  if (attribute.has_i()) return Type::INT;
  if (attribute.has_s()) return Type::STRING;
  if (attribute.has_t()) return Type::TENSOR;
  if (attribute.has_g()) return Type::GRAPH;
  if (attribute.floats_size() > 0) return Type::FLOATS;
  if (attribute.ints_size() > 0) return Type::INTS;
  if (attribute.strings_size() > 0) return Type::STRINGS;
  if (attribute.has_tp()) return Type::TYPE_PROTO;
  return Type::UNDEFINED;
}

template <class T, class Field>
std::vector<T> to_vector(const Field& field) {
  return {field.begin(), field.end()};
}

void check_call(const onnx::NodeProto& node, const Function& function, const Frame& frame) {
  int depth = 0;
  for (const Frame* outer = &frame; outer != nullptr; outer = outer->caller, ++depth) {
    if (outer->function == &function) {
      throw_error(ErrorCode::InvalidModel, describe(node), ": function ", quoted(node.op_type()),
                  " calls itself");
    }
  }
  if (depth > kMaxCallDepth) {
    throw_error(ErrorCode::Unsupported, describe(node), ": functions call one another more than ",
                kMaxCallDepth, " deep");
  }
  if (node.input_size() > function.proto->input_size() ||
      node.output_size() > function.proto->output_size()) {
    throw_error(ErrorCode::InvalidModel, describe(node), ": has ", node.input_size(), " inputs and ",
                node.output_size(), " outputs, but the function takes ", function.proto->input_size(),
                " and gives ", function.proto->output_size());
  }
}

}  // namespace

void GraphBuilder::build_nodes(const NodeProtos& nodes, Frame& frame) {
  for (const int i : build_order(nodes)) {
    const onnx::NodeProto& node = nodes[i];
    with_context("importing " + describe(node), [&] { build_node(node, frame); });
  }
}

void GraphBuilder::build_node(const onnx::NodeProto& node, Frame& frame) {
  const BoundAttributes attributes = resolve_attributes(node, frame);
  if (const Function* function = state_.functions.find(node)) {
    inline_function(node, *function, attributes, frame);
  } else if (node.op_type() == "Constant" && normal_domain(node.domain()).empty()) {
    build_constant(node, attributes, frame);
  } else {
    build_operator(node, attributes, frame);
  }
}

std::vector<Value*> GraphBuilder::find_inputs(const onnx::NodeProto& node, const Frame& frame) const {
  std::vector<Value*> inputs;
  for (const std::string& name : node.input()) {
    const std::optional<Value*> value =
        name.empty() ? std::optional<Value*>(nullptr) : frame.scope->find(name);
    if (!value) throw_error(ErrorCode::InvalidModel, "input ", quoted(name), " is defined nowhere");
    inputs.push_back(*value);
  }
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  return inputs;
}

BoundAttributes GraphBuilder::resolve_attributes(const onnx::NodeProto& node, const Frame& frame) const {
  BoundAttributes attributes;
  for (const auto& attribute : node.attribute()) {
    const onnx::AttributeProto* content = &attribute;
    if (!attribute.ref_attr_name().empty()) {
      if (frame.bound == nullptr) {
        throw_error(ErrorCode::InvalidModel, "attribute ", quoted(attribute.name()), " refers to ",
                    quoted(attribute.ref_attr_name()), ", which only the nodes of a function may do");
      }
      const auto found = frame.bound->find(attribute.ref_attr_name());
      if (found == frame.bound->end())
        continue;  // not given, and without default: the operator's own default
      content = found->second;
    }
    if (!attributes.emplace(attribute.name(), content).second) {
      throw_error(ErrorCode::InvalidModel, "attribute ", quoted(attribute.name()), " is given twice");
    }
  }
  return attributes;
}

int GraphBuilder::opset_of(const onnx::NodeProto& node, const Frame& frame) const {
  const std::string domain = normal_domain(node.domain());
  for (const Opsets* opsets : {frame.opsets, &std::as_const(state_.opsets)}) {
    const auto found = opsets->find(domain);
    if (found != opsets->end()) return found->second;
  }
  // Exporters forget to import com.microsoft; ONNX's own set has too many versions for a guess.
  if (domain.empty())
    throw_error(ErrorCode::InvalidModel, "the model imports no version of the operators of ai.onnx");
  return 1;
}

void GraphBuilder::build_operator(const onnx::NodeProto& node, const BoundAttributes& attributes,
                                  Frame& frame) {
  if (node.op_type().empty()) throw_error(ErrorCode::InvalidModel, "the node names no operator");
  NodeSpec spec{.op = node.op_type(),
                .domain = normal_domain(node.domain()),
                .opset = opset_of(node, frame),
                .name = frame.prefix + node.name(),
                .inputs = find_inputs(node, frame),
                .outputs = {}};
  for (const auto& attribute : attributes) {
    const auto& name = attribute.first;
    const auto& content = attribute.second;
    state_.problems.collect([&] {
      with_context("reading attribute " + quoted(name) + " of " + describe(node),
                   [&] { spec.attributes[name] = convert_attribute(*content, frame); });
    });
  }
  std::vector<std::string> names;
  for (const std::string& output : node.output()) {
    names.push_back(output.empty() ? "" : graph_name(output, frame));
    spec.outputs.push_back(output.empty() ? OutputSpec::omitted() : OutputSpec{names.back(), {}});
  }
  const Node* built = rewriter_.add_node(std::move(spec));
  for (int i = 0; i < node.output_size(); ++i) {
    Value* value = built->outputs()[static_cast<size_t>(i)];
    if (value == nullptr) continue;
    frame.scope->define(node.output(i), value);
    apply_declared_type(value, names[static_cast<size_t>(i)]);
  }
}

Attribute GraphBuilder::convert_attribute(const onnx::AttributeProto& attribute, const Frame& frame) {
  switch (attribute_type(attribute)) {
    case Type::FLOAT:
      return attribute.f();
    case Type::INT:
      return attribute.i();
    case Type::STRING:
      return attribute.s();
    case Type::FLOATS:
      return to_vector<float>(attribute.floats());
    case Type::INTS:
      return to_vector<int64_t>(attribute.ints());
    case Type::STRINGS:
      return to_vector<std::string>(attribute.strings());
    case Type::TENSOR:
      return state_.tensors.read(attribute.t());
    case Type::TYPE_PROTO:
      return type_from_onnx(attribute.tp(), state_.fresh_dims);
    case Type::GRAPH: {
      auto graph = std::make_shared<Graph>(attribute.g().name());
      GraphBuilder(state_, *graph).build(attribute.g(), &frame);
      return graph;
    }
    case Type::UNDEFINED:
      throw_error(ErrorCode::InvalidModel, "it has neither a type nor a value");
    default:
      throw_error(ErrorCode::Unsupported,
                  "attributes that are lists of tensors, graphs or types, or sparse tensors, "
                  "are not supported");
  }
}

Tensor GraphBuilder::constant_tensor(const onnx::NodeProto& node, const BoundAttributes& attributes) {
  if (attributes.size() != 1) {
    throw_error(ErrorCode::InvalidModel, describe(node),
                ": needs one of the attributes value, sparse_value, "
                "value_int, value_ints, value_float, value_floats, value_string and value_strings");
  }
  const auto& [name, content] = *attributes.begin();
  const int type = attribute_type(*content);
  const auto list_shape = [](const auto& list) { return Shape{static_cast<int64_t>(list.size())}; };
  if (name == "value" && type == Type::TENSOR) return state_.tensors.read(content->t());
  if (name == "sparse_value" && type == Type::SPARSE_TENSOR)
    return state_.tensors.read(content->sparse_tensor());
  if (name == "value_int" && type == Type::INT) return Tensor::scalar<int64_t>(content->i());
  if (name == "value_float" && type == Type::FLOAT) return Tensor::scalar<float>(content->f());
  if (name == "value_string" && type == Type::STRING) return Tensor::from_strings({}, {content->s()});
  if (name == "value_ints" && (type == Type::INTS)) {
    return Tensor::from<int64_t>(list_shape(content->ints()),
                                 std::span<const int64_t>(to_vector<int64_t>(content->ints())));
  }
  if (name == "value_floats" && type == Type::FLOATS) {
    return Tensor::from<float>(list_shape(content->floats()),
                               std::span<const float>(to_vector<float>(content->floats())));
  }
  if (name == "value_strings" && type == Type::STRINGS) {
    return Tensor::from_strings(list_shape(content->strings()), to_vector<std::string>(content->strings()));
  }
  throw_error(ErrorCode::InvalidModel, describe(node), ": attribute ", quoted(name),
              " is unknown or has the wrong type");
}

void GraphBuilder::build_constant(const onnx::NodeProto& node, const BoundAttributes& attributes,
                                  Frame& frame) {
  if (node.output_size() != 1 || node.output(0).empty() || node.input_size() != 0) {
    throw_error(ErrorCode::InvalidModel, describe(node), ": a Constant has no inputs and one output");
  }
  const std::string name = graph_name(node.output(0), frame);
  Tensor data;
  state_.problems.collect([&] {
    with_context("reading constant " + quoted(name), [&] { data = constant_tensor(node, attributes); });
  });
  frame.scope->define(node.output(0), rewriter_.add_constant(std::move(data), name));
}

void GraphBuilder::inline_function(const onnx::NodeProto& node, const Function& function,
                                   const BoundAttributes& attributes, Frame& frame) {
  check_call(node, function, frame);
  state_.inlined_nodes += function.proto->node_size();
  if (state_.inlined_nodes > kMaxInlinedNodes) {
    throw_error(ErrorCode::Unsupported, describe(node), ": inlining the model's functions gives more than ",
                kMaxInlinedNodes, " nodes");
  }
  BoundAttributes bound;
  for (const auto& attribute : function.defaults) bound[attribute.name()] = &attribute;
  for (const auto& [name, content] : attributes) bound[name] = content;

  Scope scope;
  const std::vector<Value*> inputs = find_inputs(node, frame);
  for (int i = 0; i < function.proto->input_size(); ++i) {
    const auto index = static_cast<size_t>(i);
    scope.define(function.proto->input(i), index < inputs.size() ? inputs[index] : nullptr);
  }
  std::string label = node.name();
  for (int i = 0; label.empty() && i < node.output_size(); ++i) label = node.output(i);
  Frame body{.scope = &scope,
             .opsets = &function.opsets,
             .prefix = frame.prefix + (label.empty() ? node.op_type() : label) + "/",
             .bound = &bound,
             .function = &function,
             .caller = &frame};
  for (int i = 0; i < node.output_size(); ++i) {
    if (!node.output(i).empty()) body.renames[function.proto->output(i)] = graph_name(node.output(i), frame);
  }
  build_nodes(function.proto->node(), body);
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    const std::optional<Value*> value = scope.find(function.proto->output(i));
    if (!value || *value == nullptr) {
      throw_error(ErrorCode::InvalidModel, describe(node), ": output ", quoted(function.proto->output(i)),
                  " of the function is produced by no node");
    }
    frame.scope->define(node.output(i), *value);
  }
}

}  // namespace quern::onnx_format
