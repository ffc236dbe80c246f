// ONNX graphs into quern's.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "formats/onnx/import_state.h"
#include "formats/onnx/node_order.h"
#include "ir/rewriter.h"

namespace quern::onnx_format {

// Names in sight, inner ones first. A name may stand for an omitted optional value: null.
class Scope {
 public:
  explicit Scope(const Scope* outer = nullptr) : outer_(outer) {}
  // Throws Error{InvalidModel} where the scope itself has the name already.
  void define(const std::string& name, Value* value);
  std::optional<Value*> find(const std::string& name) const;

 private:
  const Scope* outer_;
  std::map<std::string, Value*> values_;
};

using BoundAttributes = std::map<std::string, const onnx::AttributeProto*>;

// Where nodes are being built: a graph, or the body of a function on its way into one.
struct Frame {
  Scope* scope;
  const Opsets* opsets;
  // Of a function body: what is put in front of names, names of outputs as the caller has them, the caller's
  // attributes.
  std::string prefix = {};
  std::map<std::string, std::string> renames = {};
  const BoundAttributes* bound = nullptr;
  const Function* function = nullptr;
  const Frame* caller = nullptr;
};

// Builds one graph; sub-graphs get builders of their own.
class GraphBuilder {
 public:
  GraphBuilder(ImportState& state, Graph& graph) : state_(state), graph_(graph), rewriter_(graph) {}

  // `outer` is the frame of the node that a sub-graph belongs to, else null.
  void build(const onnx::GraphProto& proto, const Frame* outer);

 private:
  void add_inputs(const onnx::GraphProto& proto, bool is_root, Scope& scope);
  void add_initializers(const onnx::GraphProto& proto, Scope& scope);
  void add_outputs(const onnx::GraphProto& proto, const Scope& scope);
  void note_types(const onnx::GraphProto& proto);

  void build_nodes(const NodeProtos& nodes, Frame& frame);
  void build_node(const onnx::NodeProto& node, Frame& frame);
  void build_operator(const onnx::NodeProto& node, const BoundAttributes& attributes, Frame& frame);
  void build_constant(const onnx::NodeProto& node, const BoundAttributes& attributes, Frame& frame);
  void inline_function(const onnx::NodeProto& node, const Function& function,
                       const BoundAttributes& attributes, Frame& frame);
  Tensor constant_tensor(const onnx::NodeProto& node, const BoundAttributes& attributes);

  std::vector<Value*> find_inputs(const onnx::NodeProto& node, const Frame& frame) const;
  BoundAttributes resolve_attributes(const onnx::NodeProto& node, const Frame& frame) const;
  Attribute convert_attribute(const onnx::AttributeProto& attribute, const Frame& frame);
  int opset_of(const onnx::NodeProto& node, const Frame& frame) const;
  // The name that a value of `frame` gets in the graph.
  std::string graph_name(const std::string& name, const Frame& frame);
  ValueType type_of_info(const onnx::ValueInfoProto& info);
  // Completes what inference found of an output with what the file declares.
  void apply_declared_type(Value* value, const std::string& name);

  ImportState& state_;
  Graph& graph_;
  Rewriter rewriter_;
  std::map<std::string, ValueType> declared_;
  std::set<std::string> taken_names_;  // of the graph's own values, so that inlined ones stay clear of them
};

}  // namespace quern::onnx_format
