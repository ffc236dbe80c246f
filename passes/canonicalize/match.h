// Small questions that all matchers ask of a graph, and many rewrites in one commit.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/rewriter.h"

namespace quern::passes {

// The one element of a constant of any numeric type and one element; nothing for anything else.
std::optional<double> constant_scalar(const Value* value);
// The scalar among the two inputs of a node, and the other input; {nullopt, nullptr} if there is not exactly
// one.
std::pair<std::optional<double>, Value*> scalar_operand(const Node& node);

// Whether the value is computed from constants alone, and a constant itself or a cheap expression of one
// (Transpose, Slice, Cast, ... of a weight).
bool is_constant_expression(const Value* value);

// The only node that uses the value; null if there are several uses, or it is a graph output.
Node* sole_user(const Value* value);
// The input of a two-input node that is not `value`; null if neither or both are.
Value* other_input(const Node& node, const Value* value);
// The producer of `value` if it is that operator; else null.
Node* produced_by(const Value* value, std::string_view op, std::string_view domain = "");

// The last dimension as a constant.
std::optional<int64_t> last_dim(const Value* value);

// How ONNX numbers F32, F16 and BF16, for Cast's attribute `to`.
int64_t onnx_code(DType floating);

// Skips Casts between floating types and Identities, backwards.
Value* skip_casts(Value* value);

// Many disjoint rewrites that are committed together. Values that an earlier one of them replaced may be
// named by their old selves: inputs of new nodes are resolved. Rewrites must come in topological order.
class BatchRewriter {
 public:
  explicit BatchRewriter(Graph& graph) : rewriter_(graph) {}

  Value* resolve(Value* value) const;
  Node* add_node(NodeSpec spec);
  // One output, its name and type made up.
  Value* add(std::string op, std::vector<Value*> inputs, Attributes attributes = {}, std::string domain = {},
             std::string name = {});
  Value* add_constant(Constant constant, std::string name = {}) {
    return rewriter_.add_constant(std::move(constant), std::move(name));
  }
  void replace(Value* old, Value* by);
  // A node with one output of the type of `old`, which it replaces.
  Value* substitute(Value* old, std::string op, std::vector<Value*> inputs, Attributes attributes = {},
                    std::string domain = {}, std::string name = {});
  Rewriter& rewriter() { return rewriter_; }
  bool commit();

 private:
  Rewriter rewriter_;
  std::unordered_map<Value*, Value*> replaced_;
};

}  // namespace quern::passes
