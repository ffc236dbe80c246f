#include "formats/artifact/graph_encoder.h"

#include "formats/file/mapped_tensor.h"
#include "ir/error.h"

namespace quern::artifact {
namespace {

// Smaller tensors are part of the manifest.
constexpr int64_t kSmallestSection = 1024;

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.bytes(), static_cast<size_t>(tensor.byte_size())};
}

}  // namespace

void GraphEncoder::encode(const Graph& graph, proto::Graph& out) {
  out.set_name(graph.name());
  out.set_first_value(next_id_);
  out.set_input_count(static_cast<uint32_t>(graph.inputs().size()));
  std::vector<const Value*> values(graph.inputs().begin(), graph.inputs().end());
  for (const Value* value : graph.constants()) values.push_back(value);
  for (const Node* node : graph.nodes()) {
    for (const Value* value : node->outputs()) {
      if (value) values.push_back(value);
    }
  }
  for (const Value* value : values) ids_[value] = next_id_++;
  for (const Value* value : values) encode_value(*value, *out.add_values());
  for (const Node* node : graph.nodes()) encode_node(*node, *out.add_nodes());
  for (const GraphOutput& output : graph.outputs()) {
    proto::Output& message = *out.add_outputs();
    message.set_value(ids_.at(output.value));
    message.set_name(output.name);
  }
  for (const auto& [domain, version] : graph.opsets()) {
    proto::OperatorSet& set = *out.add_operator_sets();
    set.set_domain(domain);
    set.set_version(static_cast<uint32_t>(version));
  }
  for (const auto& [key, value] : graph.metadata()) {
    proto::Entry& entry = *out.add_metadata();
    entry.set_key(key);
    entry.set_value(value);
  }
}

void GraphEncoder::encode_value(const Value& value, proto::Value& out) {
  out.set_name(value.name());
  if (value.is_constant()) {
    with_context("writing constant '" + value.name() + "'",
                 [&] { encode_constant(value, *out.mutable_constant()); });
  } else {
    *out.mutable_type() = symbols_.encode(value.type());
  }
}

void GraphEncoder::encode_constant(const Value& value, proto::Constant& out) {
  if (filter_) {
    encode_constant(filter_(value), value.name(), out);
  } else {
    encode_constant(*value.constant(), value.name(), out);
  }
  // What was read for it is not needed again soon.
  if (const Tensor* tensor = value.tensor()) drop_mapped_pages(*tensor);
}

void GraphEncoder::encode_constant(const Constant& constant, const std::string& name, proto::Constant& out) {
  if (const auto* tensor = std::get_if<Tensor>(&constant)) {
    encode_tensor(*tensor, name, *out.mutable_tensor());
  } else if (const auto* quantized = std::get_if<QuantizedTensor>(&constant)) {
    quantized->check();
    proto::Quantized& message = *out.mutable_quantized();
    *message.mutable_scheme() = encode_scheme(quantized->scheme);
    encode_tensor(quantized->codes, name, *message.mutable_codes());
    encode_tensor(quantized->scales, name + " (scales)", *message.mutable_scales());
    if (!quantized->scheme.symmetric) {
      encode_tensor(quantized->zero_points, name + " (zero points)", *message.mutable_zero_points());
    }
  } else {
    const auto& packed = std::get<PackedTensor>(constant);
    if (!packed.defined()) throw_error(ErrorCode::InvalidArgument, "the packed weight is not defined");
    *out.mutable_packed() = encode_spec(packed.spec());
    out.mutable_packed()->set_section(add_section_(bytes_of(packed.bytes()), name));
  }
}

void GraphEncoder::encode_tensor(const Tensor& tensor, const std::string& name, proto::Tensor& out) {
  if (!tensor.defined()) throw_error(ErrorCode::InvalidArgument, "the tensor is not defined");
  out.set_element_type(encode_dtype(tensor.dtype()));
  for (const int64_t dim : tensor.shape()) out.add_dims(dim);
  if (tensor.dtype() == DType::String) {
    for (const std::string& text : tensor.strings()) out.add_strings(text);
  } else if (tensor.byte_size() >= kSmallestSection) {
    out.set_section(add_section_(bytes_of(tensor), name));
  } else {
    out.set_data(tensor.bytes(), static_cast<size_t>(tensor.byte_size()));
  }
}

void GraphEncoder::encode_node(const Node& node, proto::Node& out) {
  out.set_op(node.op());
  out.set_domain(node.domain());
  out.set_version(static_cast<uint32_t>(node.opset()));
  out.set_name(node.name());
  for (const Value* input : node.inputs()) out.add_inputs(input ? ids_.at(input) : 0);
  for (const Value* output : node.outputs()) out.add_outputs(output ? ids_.at(output) : 0);
  for (const auto& [name, value] : node.attributes()) encode_attribute(name, value, *out.add_attributes());
}

void GraphEncoder::encode_attribute(const std::string& name, const Attribute& value, proto::Attribute& out) {
  struct Visitor {
    GraphEncoder& encoder;
    proto::Attribute& out;
    void operator()(int64_t i) const { out.set_int_value(i); }
    void operator()(float f) const { out.set_float_value(f); }
    void operator()(const std::string& s) const { out.set_string_value(s); }
    void operator()(const std::vector<int64_t>& list) const {
      out.mutable_ints()->mutable_values()->Assign(list.begin(), list.end());
    }
    void operator()(const std::vector<float>& list) const {
      out.mutable_floats()->mutable_values()->Assign(list.begin(), list.end());
    }
    void operator()(const std::vector<std::string>& list) const {
      out.mutable_strings()->mutable_values()->Assign(list.begin(), list.end());
    }
    void operator()(const Tensor& tensor) const {
      encoder.encode_tensor(tensor, out.name(), *out.mutable_tensor());
    }
    void operator()(const std::shared_ptr<Graph>& graph) const {
      encoder.encode(*graph, *out.mutable_graph());
    }
    void operator()(const ValueType& type) const { *out.mutable_type() = encoder.symbols_.encode(type); }
  };
  out.set_name(name);
  std::visit(Visitor{*this, out}, value);
}

}  // namespace quern::artifact
