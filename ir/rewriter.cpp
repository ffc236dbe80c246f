#include "ir/rewriter.h"

#include <algorithm>
#include <set>

#include "ir/schema.h"
#include "ir/shape_inference.h"

namespace quern {

Rewriter::Rewriter(Graph& graph) : graph_(graph) {}
Rewriter::~Rewriter() = default;

Value* Rewriter::add_input(std::string name, ValueType type) {
  auto value = std::make_unique<Value>();
  value->name_ = std::move(name);
  value->type_ = std::move(type);
  value->graph_ = &graph_;
  Value* raw = value.get();
  new_values_.push_back(std::move(value));
  edits_.emplace_back([this, raw] { graph_.inputs_.push_back(raw); });
  return raw;
}

Value* Rewriter::add_constant(Constant constant, std::string name) {
  auto value = std::make_unique<Value>();
  value->name_ = std::move(name);
  value->type_ = type_of(constant);
  value->graph_ = &graph_;
  value->constant_ = std::make_shared<const Constant>(std::move(constant));
  value->elements_ = constant_elements(*value);
  new_values_.push_back(std::move(value));
  return new_values_.back().get();
}

Node* Rewriter::add_node(NodeSpec spec) {
  auto node = std::make_unique<Node>();
  node->op_ = std::move(spec.op);
  node->domain_ = std::move(spec.domain);
  node->opset_ = spec.opset != 0 ? spec.opset : newest_opset(node->domain_);
  node->name_ = std::move(spec.name);
  node->inputs_ = std::move(spec.inputs);
  node->attributes_ = std::move(spec.attributes);
  node->graph_ = &graph_;
  for (const auto& [name, attribute] : node->attributes_) {
    if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute)) (*sub)->parent_ = node.get();
  }
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    if (!spec.outputs[i].present) {
      node->outputs_.push_back(nullptr);
      continue;
    }
    auto value = std::make_unique<Value>();
    value->name_ = std::move(spec.outputs[i].name);
    value->type_ = std::move(spec.outputs[i].type);
    value->producer_ = node.get();
    value->output_index_ = static_cast<int>(i);
    value->graph_ = &graph_;
    node->outputs_.push_back(value.get());
    new_values_.push_back(std::move(value));
  }
  ShapeInference::infer_missing(*node);
  new_nodes_.push_back(std::move(node));
  return new_nodes_.back().get();
}

void Rewriter::add_output(Value* value, std::string name) {
  edits_.emplace_back([this, value, name = std::move(name)] { graph_.outputs_.push_back({value, name}); });
}

void Rewriter::replace(Value* old, Value* by) {
  replacements_.emplace_back(old, by);
}

void Rewriter::set_input(Node* node, size_t index, Value* value) {
  edits_.emplace_back([node, index, value] {
    if (index < node->inputs_.size() && node->inputs_[index]) drop_use(node->inputs_[index], node, index);
    if (index >= node->inputs_.size()) node->inputs_.resize(index + 1, nullptr);
    node->inputs_[index] = value;
    if (value) add_use(value, node, index);
  });
}

void Rewriter::set_attribute(Node* node, const std::string& name, Attribute value) {
  edits_.emplace_back([node, name, value = std::move(value)] {
    if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&value)) (*sub)->parent_ = node;
    node->attributes_[name] = value;
  });
}

void Rewriter::remove_attribute(Node* node, const std::string& name) {
  edits_.emplace_back([node, name] { node->attributes_.erase(name); });
}

void Rewriter::set_constant(Value* value, Constant constant) {
  auto data = std::make_shared<const Constant>(std::move(constant));
  edits_.emplace_back([value, data] {
    value->constant_ = data;
    value->type_ = type_of(*data);
    value->elements_ = constant_elements(*value);
  });
}

void Rewriter::set_type(Value* value, ValueType type) {
  edits_.emplace_back([value, type = std::move(type)] { value->type_ = type; });
}

void Rewriter::rename(Value* value, std::string name) {
  edits_.emplace_back([this, value, name = std::move(name)] {
    if (value->name_ == name) return;
    graph_.by_name_.erase(value->name_);
    value->name_ = graph_.unique_name(name);
    graph_.by_name_[value->name_] = value;
  });
}

void Rewriter::erase(Node* node) {
  edits_.emplace_back([this, node] { apply_erase(node); });
}

void Rewriter::remove_input(Value* value) {
  edits_.emplace_back([this, value] {
    if (!value->uses_.empty() || graph_.is_output(value)) {
      throw_error(ErrorCode::Internal, "graph input '", value->name_, "' is still used");
    }
    std::erase(graph_.inputs_, value);
    erase_value(value);
  });
}

void Rewriter::remove_output(const std::string& name) {
  edits_.emplace_back([this, name] {
    std::erase_if(graph_.outputs_, [&](const GraphOutput& output) { return output.name == name; });
  });
}

void Rewriter::set_opset(const std::string& domain, int version) {
  edits_.emplace_back([this, domain, version] { graph_.opsets_[domain] = version; });
}

void Rewriter::set_metadata(const std::string& key, const std::string& value) {
  edits_.emplace_back([this, key, value] { graph_.metadata_[key] = value; });
}

void Rewriter::check_replacements() const {
  for (const auto& [old, by] : replacements_) {
    const ValueType& a = old->type();
    const ValueType& b = by->type();
    const bool dtypes_differ =
        a.dtype != DType::Undefined && b.dtype != DType::Undefined && a.dtype != b.dtype;
    const bool ranks_differ = a.shape && b.shape && a.shape->size() != b.shape->size();
    if (dtypes_differ || ranks_differ) {
      throw_error(ErrorCode::Internal, "value '", old->name(), "' of type ", to_string(a),
                  " cannot be replaced by one of type ", to_string(b));
    }
  }
  for (const auto& node : new_nodes_) check_arity(*node);
}

bool Rewriter::commit() {
  if (new_nodes_.empty() && new_values_.empty() && replacements_.empty() && edits_.empty()) return false;
  check_replacements();
  // Values that take over a name do so before the rest are given unique ones.
  for (const auto& [old, by] : replacements_) {
    const bool fresh = std::any_of(new_values_.begin(), new_values_.end(),
                                   [by = by](const auto& v) { return v.get() == by; });
    if (fresh && by->name_.empty()) {
      by->name_ = old->name_;
      graph_.by_name_.erase(old->name_);
      old->name_ += ".replaced";
      old->name_ = graph_.unique_name(old->name_);
      graph_.by_name_[old->name_] = old;
    }
  }
  for (auto& value : new_values_) {
    std::string stem = value->name_;
    if (stem.empty() && value->producer_) stem = value->producer_->op_;
    value->name_ = graph_.unique_name(stem);
    graph_.by_name_[value->name_] = value.get();
    graph_.owned_values_.push_back(std::move(value));
  }
  std::set<const Node*> fresh_nodes;
  for (auto& node : new_nodes_) {
    fresh_nodes.insert(node.get());
    attach(node.get());
    graph_.owned_nodes_.push_back(std::move(node));
  }
  std::vector<Node*> suspects;
  for (const auto& [old, by] : replacements_) {
    const std::vector<Use> uses = old->uses_;
    for (const Use& use : uses) {
      if (fresh_nodes.contains(use.node)) continue;
      drop_use(old, use.node, static_cast<size_t>(use.input));
      use.node->inputs_[static_cast<size_t>(use.input)] = by;
      add_use(by, use.node, static_cast<size_t>(use.input));
    }
    replace_in_outputs(graph_, old, by);
    if (old->producer_) suspects.push_back(old->producer_);
    if (old->is_constant() && old->uses_.empty() && !graph_.is_output(old)) erase_value(old);
  }
  for (const auto& edit : edits_) edit();
  graph_.sorted_valid_ = false;
  remove_dead(std::move(suspects));
  new_nodes_.clear();
  new_values_.clear();
  replacements_.clear();
  edits_.clear();
  graph_.nodes();  // a cycle shows here, while the rewrite that made it is still on the stack
  return true;
}

// Sub-graphs too: they may return values of the graphs around them.
void Rewriter::replace_in_outputs(Graph& graph, const Value* old, Value* by) {
  for (GraphOutput& output : graph.outputs_) {
    if (output.value == old) output.value = by;
  }
  for (const auto& node : graph.owned_nodes_) {
    for (Graph* sub : node->subgraphs()) replace_in_outputs(*sub, old, by);
  }
}

void Rewriter::add_use(Value* value, Node* node, size_t index) {
  value->uses_.push_back({node, static_cast<int>(index)});
}

void Rewriter::drop_use(Value* value, Node* node, size_t index) {
  std::erase(value->uses_, Use{node, static_cast<int>(index)});
}

void Rewriter::attach(Node* node) {
  for (size_t i = 0; i < node->inputs_.size(); ++i) {
    if (node->inputs_[i]) add_use(node->inputs_[i], node, i);
  }
}

void Rewriter::apply_erase(Node* node) {
  for (Value* output : node->outputs_) {
    if (output && (!output->uses_.empty() || graph_.is_output(output))) {
      throw_error(ErrorCode::Internal, describe(*node), " is erased, but its output '", output->name_,
                  "' is used");
    }
  }
  remove_dead({node});
}

void Rewriter::erase_value(Value* value) {
  graph_.by_name_.erase(value->name_);
  std::erase_if(graph_.owned_values_, [&](const auto& owned) { return owned.get() == value; });
}

namespace {

// Whether the outputs of `node` reach nobody: no node and no output of its graph, nor of the sub-graphs
// inside it.
bool unused(const Node& node, const std::set<const Value*>& outputs) {
  return std::all_of(node.outputs().begin(), node.outputs().end(), [&](const Value* value) {
    return value == nullptr || (value->uses().empty() && !outputs.contains(value));
  });
}

// Values that graph outputs name: of this graph, and of sub-graphs, which may return captured values.
void collect_outputs(const Graph& graph, std::set<const Value*>& outputs) {
  for (const GraphOutput& output : graph.outputs()) outputs.insert(output.value);
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) collect_outputs(*sub, outputs);
  }
}

}  // namespace

void Rewriter::remove_dead(std::vector<Node*> suspects) {
  if (suspects.empty()) return;
  std::set<const Value*> outputs;
  collect_outputs(graph_, outputs);
  std::set<const Node*> dead;
  std::set<const Value*> dead_values;
  while (!suspects.empty()) {
    Node* node = suspects.back();
    suspects.pop_back();
    if (node->graph_ != &graph_ || dead.contains(node) || !unused(*node, outputs)) continue;
    dead.insert(node);
    for (const Value* output : node->outputs_) dead_values.insert(output);
    const auto release = [&](Value* value) {
      if (value->producer_ && value->graph_ == &graph_) suspects.push_back(value->producer_);
      if (value->is_constant() && value->graph_ == &graph_ && value->uses_.empty() &&
          !outputs.contains(value)) {
        dead_values.insert(value);
      }
    };
    for (size_t i = 0; i < node->inputs_.size(); ++i) {
      Value* value = node->inputs_[i];
      if (value == nullptr) continue;
      drop_use(value, node, i);
      release(value);
    }
    for (const Graph* sub : node->subgraphs()) {
      const std::vector<Value*> captured = captured_values(*sub);
      drop_subgraph_uses(*sub);
      for (Value* value : captured) release(value);
    }
  }
  for (const Value* value : dead_values) {
    if (value) graph_.by_name_.erase(value->name());
  }
  std::erase_if(graph_.owned_nodes_, [&](const auto& node) { return dead.contains(node.get()); });
  std::erase_if(graph_.owned_values_, [&](const auto& value) { return dead_values.contains(value.get()); });
  graph_.sorted_valid_ = false;
}

void Rewriter::drop_subgraph_uses(const Graph& sub) {
  for (Node* node : sub.nodes()) {
    for (size_t i = 0; i < node->inputs_.size(); ++i) {
      Value* value = node->inputs_[i];
      if (value && value->graph_ != &sub) drop_use(value, node, i);
    }
    for (const Graph* inner : node->subgraphs()) drop_subgraph_uses(*inner);
  }
}

int remove_dead_nodes(Graph& graph) {
  const size_t before = graph.nodes().size();
  Rewriter rewriter(graph);
  rewriter.sweep();
  return static_cast<int>(before - graph.nodes().size());
}

void Rewriter::sweep() {
  for (const auto& node : graph_.owned_nodes_) {
    for (const auto& sub : node->subgraphs()) remove_dead_nodes(*sub);
  }
  std::vector<Node*> all = graph_.nodes();
  remove_dead(all);
  std::set<const Value*> outputs;
  collect_outputs(graph_, outputs);
  std::erase_if(graph_.owned_values_, [&](const auto& value) {
    const bool dead = value->is_constant() && value->uses_.empty() && !outputs.contains(value.get());
    if (dead) graph_.by_name_.erase(value->name_);
    return dead;
  });
}

}  // namespace quern
