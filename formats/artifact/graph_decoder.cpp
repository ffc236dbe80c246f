#include "formats/artifact/graph_decoder.h"

#include <set>

#include "formats/file/mapped_tensor.h"
#include "ir/error.h"

namespace quern::artifact {
namespace {

void check_names(const proto::Graph& in) {
  std::set<std::string_view> names;
  for (const proto::Value& value : in.values()) {
    if (value.name().empty() || !names.insert(value.name()).second) {
      throw_error(ErrorCode::Corrupt, "the name '", value.name(), "' of a value is empty or taken");
    }
  }
}

}  // namespace

Value* GraphDecoder::find(uint64_t id) const {
  if (id == 0) return nullptr;
  const auto found = values_.find(id);
  if (found == values_.end()) throw_error(ErrorCode::Corrupt, "value ", id, " is used before it is defined");
  return found->second;
}

void GraphDecoder::define(uint64_t id, Value* value) {
  if (!values_.emplace(id, value).second) throw_error(ErrorCode::Corrupt, "value ", id, " is defined twice");
}

void GraphDecoder::decode(const proto::Graph& in, Graph& graph) {
  check_names(in);
  if (in.first_value() == 0 || in.input_count() > static_cast<uint32_t>(in.values_size())) {
    throw_error(ErrorCode::Corrupt, "graph '", in.name(), "' numbers its values wrongly");
  }
  Rewriter rewriter(graph);
  int outputs_of_nodes = 0;
  for (int i = 0; i < in.values_size(); ++i) {
    const proto::Value& value = in.values(i);
    const uint64_t id = in.first_value() + static_cast<uint64_t>(i);
    with_context("reading value '" + value.name() + "'", [&] {
      if (static_cast<uint32_t>(i) < in.input_count()) {
        define(id, rewriter.add_input(value.name(), symbols_.decode(value.type())));
      } else if (value.has_constant()) {
        define(id, rewriter.add_constant(decode_constant(value.constant()), value.name()));
      } else {
        ++outputs_of_nodes;
      }
    });
  }
  for (const proto::Node& node : in.nodes()) {
    with_context("reading node '" + node.name() + "' (" + node.op() + ")",
                 [&] { decode_node(node, in, rewriter); });
    for (const uint64_t id : node.outputs()) outputs_of_nodes -= id != 0 ? 1 : 0;
  }
  if (outputs_of_nodes != 0)
    throw_error(ErrorCode::Corrupt, "graph '", in.name(), "' has values that nothing gives");
  for (const proto::Output& output : in.outputs()) {
    Value* value = find(output.value());
    if (value == nullptr) throw_error(ErrorCode::Corrupt, "output '", output.name(), "' is no value");
    rewriter.add_output(value, output.name());
  }
  for (const proto::OperatorSet& set : in.operator_sets()) {
    rewriter.set_opset(set.domain(), static_cast<int>(set.version()));
  }
  for (const proto::Entry& entry : in.metadata()) rewriter.set_metadata(entry.key(), entry.value());
  rewriter.commit();
}

void GraphDecoder::decode_node(const proto::Node& in, const proto::Graph& graph, Rewriter& rewriter) {
  NodeSpec spec{.op = in.op(),
                .domain = in.domain(),
                .opset = static_cast<int>(in.version()),
                .name = in.name(),
                .outputs = {}};
  if (in.op().empty() || in.version() == 0)
    throw_error(ErrorCode::Corrupt, "it has no operator or no version");
  for (const uint64_t id : in.inputs()) spec.inputs.push_back(find(id));
  for (const proto::Attribute& attribute : in.attributes()) {
    if (spec.attributes.contains(attribute.name())) {
      throw_error(ErrorCode::Corrupt, "attribute '", attribute.name(), "' is given twice");
    }
    spec.attributes[attribute.name()] = decode_attribute(attribute);
  }
  for (const uint64_t id : in.outputs()) {
    if (id == 0) {
      spec.outputs.push_back(OutputSpec::omitted());
      continue;
    }
    const uint64_t index = id - graph.first_value();
    if (id < graph.first_value() || index < graph.input_count() ||
        index >= static_cast<uint64_t>(graph.values_size()) ||
        graph.values(static_cast<int>(index)).has_constant()) {
      throw_error(ErrorCode::Corrupt, "its output ", id, " is no value that a node can give");
    }
    const proto::Value& value = graph.values(static_cast<int>(index));
    spec.outputs.push_back({value.name(), with_context("reading value '" + value.name() + "'",
                                                       [&] { return symbols_.decode(value.type()); })});
  }
  const Node* node = rewriter.add_node(std::move(spec));
  for (int i = 0; i < in.outputs_size(); ++i) {
    if (in.outputs(i) != 0) define(in.outputs(i), node->outputs()[static_cast<size_t>(i)]);
  }
}

Attribute GraphDecoder::decode_attribute(const proto::Attribute& in) {
  return with_context("reading attribute '" + in.name() + "'", [&]() -> Attribute {
    if (in.has_int_value()) return in.int_value();
    if (in.has_float_value()) return in.float_value();
    if (in.has_string_value()) return in.string_value();
    if (in.has_ints()) return std::vector<int64_t>(in.ints().values().begin(), in.ints().values().end());
    if (in.has_floats()) return std::vector<float>(in.floats().values().begin(), in.floats().values().end());
    if (in.has_strings())
      return std::vector<std::string>(in.strings().values().begin(), in.strings().values().end());
    if (in.has_tensor()) return decode_tensor(in.tensor());
    if (in.has_type()) return symbols_.decode(in.type());
    if (in.has_graph()) {
      auto graph = std::make_shared<Graph>(in.graph().name());
      decode(in.graph(), *graph);
      return graph;
    }
    throw_error(ErrorCode::Corrupt, "it has no value that this version of quern knows");
  });
}

Tensor GraphDecoder::decode_tensor(const proto::Tensor& in) const {
  const DType dtype = decode_dtype(in.element_type());
  Shape shape(in.dims().begin(), in.dims().end());
  if (dtype == DType::String) {
    if (element_count(shape) != in.strings_size()) {
      throw_error(ErrorCode::Corrupt, "shape ", to_string(shape), " with ", in.strings_size(), " strings");
    }
    return Tensor::from_strings(std::move(shape), {in.strings().begin(), in.strings().end()});
  }
  if (in.has_section())
    return tensor_from_file_bytes(dtype, std::move(shape), owner_, section_(in.section()));
  return tensor_from_copied_bytes(dtype, std::move(shape), std::as_bytes(std::span(in.data())));
}

Constant GraphDecoder::decode_constant(const proto::Constant& in) const {
  if (in.has_packed()) {
    const PackedSpec spec = decode_spec(in.packed());
    spec.check();
    const auto bytes = section_(in.packed().section());
    return PackedTensor(
        spec, tensor_from_file_bytes(DType::U8, {static_cast<int64_t>(bytes.size())}, owner_, bytes));
  }
  if (in.has_quantized()) {
    QuantizedTensor quantized{.codes = decode_tensor(in.quantized().codes()),
                              .scales = decode_tensor(in.quantized().scales()),
                              .zero_points = {},
                              .scheme = decode_scheme(in.quantized().scheme())};
    if (in.quantized().has_zero_points()) quantized.zero_points = decode_tensor(in.quantized().zero_points());
    quantized.check();
    return quantized;
  }
  if (in.has_tensor()) return decode_tensor(in.tensor());
  throw_error(ErrorCode::Corrupt, "a constant of a kind that this version of quern does not know");
}

}  // namespace quern::artifact
