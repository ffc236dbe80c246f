#include "formats/onnx/graph_writer.h"

#include "formats/onnx/tensor_data.h"
#include "ir/error.h"

namespace quern::onnx_format {
namespace {

// Since when DequantizeLinear is what write_quantized() needs: blocks and 4-bit codes, 8-bit floats, axes.
int dequantize_version(const QuantScheme& scheme) {
  if (scheme.granularity == QuantScheme::Granularity::Group || is_sub_byte(scheme.code)) return 21;
  if (!is_integer(scheme.code)) return 19;
  return scheme.granularity == QuantScheme::Granularity::Channel ? 13 : 10;
}

// A zero point that the scheme leaves out because it is known, but that is not ONNX's default of 0.
Tensor implied_zero_points(const QuantizedTensor& quantized) {
  Tensor zero_points = Tensor::zeros(quantized.scheme.code, quantized.scales.shape());
  const int64_t middle = int64_t{1} << (bit_width(quantized.scheme.code) - 1);
  for (int64_t i = 0; i < zero_points.size(); ++i) zero_points.set_int(i, middle);
  return zero_points;
}

bool is_unsigned(DType dtype) {
  return is_integer(dtype) && !is_signed_integer(dtype);
}

}  // namespace

std::string GraphWriter::unused_name(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 1; !used_.insert(name).second; ++i) name = concat(wanted, ".", i);
  return name;
}

// An inner value must not hide an outer one that the sub-graph uses: names of captured values are taken
// first. Values that are outputs get the names that callers know.
void GraphWriter::name_values(const Graph& graph) {
  for (const Value* value : captured_values(graph)) used_.insert(names_.at(value));
  for (const Value* value : graph.inputs()) names_[value] = unused_name(value->name());
  for (const GraphOutput& output : graph.outputs()) {
    const bool own = output.value->graph() == &graph && !names_.contains(output.value);
    if (own && used_.insert(output.name).second) names_[output.value] = output.name;
  }
  for (const Value* value : graph.values()) {
    if (!names_.contains(value)) names_[value] = unused_name(value->name());
  }
}

void GraphWriter::write_type(const ValueType& type, const std::string& name, onnx::ValueInfoProto& info) {
  info.set_name(name);
  *info.mutable_type() = type_to_onnx(type);
}

void GraphWriter::write(const Graph& graph, onnx::GraphProto& proto) {
  proto.set_name(graph.name());
  name_values(graph);
  for (const Value* input : graph.inputs()) write_type(input->type(), name_of(input), *proto.add_input());
  for (const Value* value : graph.constants()) write_constant(*value, proto);
  for (const Node* node : graph.nodes()) {
    write_node(*node, proto);
    for (const Value* output : node->outputs()) {
      if (output && output->dtype() != DType::Undefined && !graph.is_output(output)) {
        write_type(output->type(), name_of(output), *proto.add_value_info());
      }
    }
  }
  write_outputs(graph, proto);
}

void GraphWriter::add_initializer(const Tensor& tensor, const std::string& name, onnx::GraphProto& proto) {
  auto& initializer = *proto.add_initializer();
  initializer = write_tensor_(tensor);
  initializer.set_name(name);
}

void GraphWriter::write_constant(const Value& value, onnx::GraphProto& proto) {
  const std::string name = name_of(&value);
  with_context("writing constant " + quoted(name), [&] {
    if (const Tensor* tensor = value.tensor()) {
      add_initializer(data_ ? data_(value) : *tensor, name, proto);
    } else if (const QuantizedTensor* quantized = value.quantized()) {
      write_quantized(*quantized, name, proto);
    } else if (value.packed()->spec().is_quantized()) {
      write_quantized(unpack_quantized(*value.packed()), name, proto);
    } else {
      add_initializer(unpack(*value.packed()), name, proto);
    }
  });
}

void GraphWriter::write_quantized(const QuantizedTensor& quantized, const std::string& name,
                                  onnx::GraphProto& proto) {
  const QuantScheme& scheme = quantized.scheme;
  if (opset_ < dequantize_version(scheme)) {
    throw_error(ErrorCode::Unsupported, to_string(scheme), " needs version ", dequantize_version(scheme),
                " of ai.onnx, and other nodes of the model version ", opset_);
  }
  onnx::NodeProto node;
  node.set_op_type("DequantizeLinear");
  node.set_name(name + "/DequantizeLinear");
  const auto add_input = [&](const Tensor& tensor, const char* suffix) {
    const std::string input = unused_name(name + suffix);
    add_initializer(tensor, input, proto);
    node.add_input(input);
  };
  add_input(quantized.codes, ".codes");
  add_input(quantized.scales, ".scales");
  if (quantized.zero_points.defined()) {
    add_input(quantized.zero_points, ".zero_points");
  } else if (is_unsigned(scheme.code)) {
    add_input(implied_zero_points(quantized), ".zero_points");
  }
  if (scheme.granularity != QuantScheme::Granularity::Tensor) {
    write_attribute("axis", int64_t{scheme.axis}, *node.add_attribute());
  }
  if (scheme.granularity == QuantScheme::Granularity::Group) {
    write_attribute("block_size", scheme.group_size, *node.add_attribute());
  }
  const bool narrow = quantized.scales.dtype() != DType::F32;
  node.add_output(narrow ? unused_name(name + ".narrow") : name);
  *proto.add_node() = node;
  if (!narrow) return;
  // The output has the type of the scales, and a quantized constant stands for float32.
  onnx::NodeProto& cast = *proto.add_node();
  cast.set_op_type("Cast");
  cast.set_name(name + "/Cast");
  cast.add_input(node.output(0));
  cast.add_output(name);
  write_attribute("to", int64_t{dtype_to_onnx(DType::F32)}, *cast.add_attribute());
}

void GraphWriter::write_node(const Node& node, onnx::GraphProto& proto) {
  onnx::NodeProto& out = *proto.add_node();
  out.set_op_type(node.op());
  out.set_domain(node.domain());
  out.set_name(node.name());
  for (const Value* input : node.inputs()) out.add_input(name_of(input));
  for (const Value* output : node.outputs()) out.add_output(name_of(output));
  for (const auto& attribute : node.attributes()) {
    with_context("writing " + quern::describe(node),
                 [&] { write_attribute(attribute.first, attribute.second, *out.add_attribute()); });
  }
}

void GraphWriter::write_attribute(const std::string& name, const Attribute& value,
                                  onnx::AttributeProto& proto) {
  using Type = onnx::AttributeProto;
  proto.set_name(name);
  struct Visitor {
    GraphWriter& writer;
    onnx::AttributeProto& out;
    void operator()(int64_t i) const {
      out.set_type(Type::INT);
      out.set_i(i);
    }
    void operator()(float f) const {
      out.set_type(Type::FLOAT);
      out.set_f(f);
    }
    void operator()(const std::string& s) const {
      out.set_type(Type::STRING);
      out.set_s(s);
    }
    void operator()(const std::vector<int64_t>& list) const {
      out.set_type(Type::INTS);
      out.mutable_ints()->Assign(list.begin(), list.end());
    }
    void operator()(const std::vector<float>& list) const {
      out.set_type(Type::FLOATS);
      out.mutable_floats()->Assign(list.begin(), list.end());
    }
    void operator()(const std::vector<std::string>& list) const {
      out.set_type(Type::STRINGS);
      out.mutable_strings()->Assign(list.begin(), list.end());
    }
    void operator()(const Tensor& tensor) const {
      out.set_type(Type::TENSOR);
      *out.mutable_t() = tensor_to_onnx(tensor);
    }
    void operator()(const std::shared_ptr<Graph>& graph) const {
      out.set_type(Type::GRAPH);
      GraphWriter inner(writer.write_tensor_, writer.opset_, writer.data_);
      inner.names_ = writer.names_;
      inner.write(*graph, *out.mutable_g());
    }
    void operator()(const ValueType& type) const {
      out.set_type(Type::TYPE_PROTO);
      *out.mutable_tp() = type_to_onnx(type);
    }
  };
  std::visit(Visitor{*this, proto}, value);
}

void GraphWriter::write_outputs(const Graph& graph, onnx::GraphProto& proto) {
  for (const GraphOutput& output : graph.outputs()) {
    write_type(output.value->type(), output.name, *proto.add_output());
    if (name_of(output.value) == output.name && output.value->graph() == &graph) continue;
    // The value goes by another name: it is an input, an outer value, or two outputs at once.
    onnx::NodeProto& identity = *proto.add_node();
    identity.set_op_type("Identity");
    identity.set_name(output.name + "/Identity");
    identity.add_input(name_of(output.value));
    identity.add_output(unused_name(output.name));
    proto.mutable_output(proto.output_size() - 1)->set_name(identity.output(0));
  }
}

}  // namespace quern::onnx_format
