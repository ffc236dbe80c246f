// The only way to change a graph, and the way to build one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern {

// One output of a node to be: its name (empty: one is made up, or taken over from the value it replaces) and
// its type (undefined: inferred at commit from the operator's schema).
struct OutputSpec {
  std::string name;
  ValueType type;
  bool present = true;
  static OutputSpec omitted() { return {.present = false}; }
};

struct NodeSpec {
  std::string op;
  std::string domain = {};
  int opset = 0;  // 0: the newest version that the schema table knows
  std::string name = {};
  std::vector<Value*> inputs = {};  // null: omitted
  Attributes attributes = {};
  std::vector<OutputSpec> outputs = {OutputSpec{}};
};

// A transaction. Everything asked for takes effect at commit(), all together; a Rewriter that is destroyed
// without it leaves the graph as it was. New nodes and values can be read and connected before the commit.
//
//   Rewriter rewriter(graph);
//   Node* norm = rewriter.add_node({.op = "RMSNormalization", .inputs = {x, scale}, .attributes =
//   {{"epsilon", 1e-5f}}}); rewriter.replace(old_output, norm->output()); rewriter.commit();
//
// Not thread-safe. Sub-graphs are graphs: build them with a Rewriter of their own, then give them as an
// attribute.
class Rewriter {
 public:
  explicit Rewriter(Graph& graph);
  ~Rewriter();
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  Graph& graph() { return graph_; }

  Value* add_input(std::string name, ValueType type);
  // A name that is taken gets a number appended.
  Value* add_constant(Constant constant, std::string name = {});
  Node* add_node(NodeSpec spec);
  void add_output(Value* value, std::string name);

  // Every use of `old`, graph outputs included, becomes a use of `by`; `by` takes over the name of `old` if
  // it is new and was given none. Their dtypes must agree where both are known, and so must the ranks:
  // Error{Internal} at commit.
  void replace(Value* old, Value* by);
  void set_input(Node* node, size_t index, Value* value);
  void set_attribute(Node* node, const std::string& name, Attribute value);
  void remove_attribute(Node* node, const std::string& name);
  // New data for a constant, under its name. The type follows the data.
  void set_constant(Value* value, Constant constant);
  void set_type(Value* value, ValueType type);
  void rename(Value* value, std::string name);
  // Removes node or graph input; at commit nothing may use it any more: Error{Internal}.
  void erase(Node* node);
  void remove_input(Value* value);
  void remove_output(const std::string& name);
  void set_opset(const std::string& domain, int version);
  void set_metadata(const std::string& key, const std::string& value);

  // Applies all of the above, infers missing types of new nodes, then removes what nobody uses any more of
  // the nodes that produced replaced values, and unused constants they leave behind. Returns whether anything
  // was changed. Throws Error{InvalidModel|Internal} and changes nothing if the new nodes do not fit their
  // schemas or would make a cycle.
  bool commit();

 private:
  static void attach(Node* node);
  static void add_use(Value* value, Node* node, size_t index);
  static void drop_use(Value* value, Node* node, size_t index);
  static void replace_in_outputs(Graph& graph, const Value* old, Value* by);
  void apply_erase(Node* node);
  void remove_dead(std::vector<Node*> suspects);
  void erase_value(Value* value);
  void check_replacements() const;
  void sweep();
  static void drop_subgraph_uses(const Graph& sub);
  friend int remove_dead_nodes(Graph& graph);

  Graph& graph_;
  std::vector<std::unique_ptr<Node>> new_nodes_;
  std::vector<std::unique_ptr<Value>> new_values_;
  std::vector<std::pair<Value*, Value*>> replacements_;
  std::vector<std::function<void()>> edits_;
};

// Removes every node whose outputs nobody uses, and unused constants; keeps graph inputs. Returns how many
// nodes went.
int remove_dead_nodes(Graph& graph);

}  // namespace quern
