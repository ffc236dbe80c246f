// quern's graphs into ONNX messages.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "formats/onnx/proto.h"
#include "ir/graph.h"

namespace quern::onnx_format {

// Gives a tensor its data: inline, or in a file beside.
using TensorWriter = std::function<onnx::TensorProto(const Tensor&)>;

class GraphWriter {
 public:
  // What to write in place of a plain constant; empty: its own data.
  using DataSource = std::function<Tensor(const Value&)>;

  // `opset` is the version of ai.onnx that the file will import.
  GraphWriter(TensorWriter write_tensor, int opset, DataSource data = {})
      : write_tensor_(std::move(write_tensor)), data_(std::move(data)), opset_(opset) {}

  void write(const Graph& graph, onnx::GraphProto& proto);

 private:
  void name_values(const Graph& graph);
  void write_constant(const Value& value, onnx::GraphProto& proto);
  void write_quantized(const QuantizedTensor& quantized, const std::string& name, onnx::GraphProto& proto);
  void write_node(const Node& node, onnx::GraphProto& proto);
  void write_attribute(const std::string& name, const Attribute& value, onnx::AttributeProto& proto);
  void write_outputs(const Graph& graph, onnx::GraphProto& proto);
  void add_initializer(const Tensor& tensor, const std::string& name, onnx::GraphProto& proto);
  // A value's type, where the reader of the file could not know it.
  static void write_type(const ValueType& type, const std::string& name, onnx::ValueInfoProto& info);
  std::string name_of(const Value* value) const { return value ? names_.at(value) : std::string(); }
  std::string unused_name(const std::string& wanted);

  TensorWriter write_tensor_;
  DataSource data_;
  int opset_;
  std::unordered_map<const Value*, std::string> names_;  // of all graphs around, too
  std::set<std::string> used_;                           // in the graph at hand
};

}  // namespace quern::onnx_format
