#include "ir/graph.h"

#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>

#include "ir/rewriter.h"

namespace quern {

std::string to_string(const ValueType& type) {
  std::string text(to_string(type.dtype));
  text += type.shape ? " " + to_string(*type.shape) : " [...]";
  if (type.kind == ValueType::Kind::Sequence) return "sequence of " + text;
  if (type.kind == ValueType::Kind::Optional) return "optional " + text;
  return text;
}

ValueType type_of(const Constant& constant) {
  const auto* tensor = std::get_if<Tensor>(&constant);
  const Shape shape = std::visit([](const auto& data) -> Shape { return data.shape(); }, constant);
  return {.dtype = tensor ? tensor->dtype() : DType::F32, .shape = SymShape(shape.begin(), shape.end())};
}

int64_t byte_size(const Constant& constant) {
  return std::visit([](const auto& data) { return data.byte_size(); }, constant);
}

const SymShape& Value::shape() const {
  if (!type_.shape) throw_error(ErrorCode::Internal, "the rank of value '", name_, "' is not known");
  return *type_.shape;
}

void Node::wrong_attribute_type(const std::string& name) const {
  throw_error(ErrorCode::InvalidModel, describe(*this), ": attribute '", name, "' has the wrong type");
}

int64_t Node::int_attribute(const std::string& name, int64_t fallback) const {
  const auto* value = attribute<int64_t>(name);
  return value ? *value : fallback;
}

float Node::float_attribute(const std::string& name, float fallback) const {
  const auto* value = attribute<float>(name);
  return value ? *value : fallback;
}

std::string Node::string_attribute(const std::string& name, const std::string& fallback) const {
  const auto* value = attribute<std::string>(name);
  return value ? *value : fallback;
}

std::vector<int64_t> Node::ints_attribute(const std::string& name,
                                          const std::vector<int64_t>& fallback) const {
  const auto* value = attribute<std::vector<int64_t>>(name);
  return value ? *value : fallback;
}

std::vector<float> Node::floats_attribute(const std::string& name, const std::vector<float>& fallback) const {
  const auto* value = attribute<std::vector<float>>(name);
  return value ? *value : fallback;
}

Graph* Node::subgraph(const std::string& name) const {
  const auto* graph = attribute<std::shared_ptr<Graph>>(name);
  return graph ? graph->get() : nullptr;
}

std::vector<Graph*> Node::subgraphs() const {
  std::vector<Graph*> graphs;
  for (const auto& [name, value] : attributes_) {
    if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&value)) graphs.push_back(graph->get());
  }
  return graphs;
}

std::string describe(const Node& node) {
  std::string op = node.domain().empty() ? node.op() : node.domain() + "." + node.op();
  if (!node.name().empty()) return "node '" + node.name() + "' (" + op + ")";
  const Value* output = node.output();
  return op + " node" + (output ? " producing '" + output->name() + "'" : "");
}

Graph::Graph(std::string name) : name_(std::move(name)) {}
Graph::~Graph() = default;

namespace {

void collect_captured(const Graph& graph, std::set<const Graph*>& inside, std::vector<Value*>& captured) {
  inside.insert(&graph);
  const auto note = [&](Value* value) {
    if (value != nullptr && !inside.contains(value->graph()) &&
        std::find(captured.begin(), captured.end(), value) == captured.end()) {
      captured.push_back(value);
    }
  };
  for (const Node* node : graph.nodes()) {
    for (Value* value : node->inputs()) note(value);
    for (const Graph* sub : node->subgraphs()) collect_captured(*sub, inside, captured);
  }
  for (const GraphOutput& output : graph.outputs()) note(output.value);
}

// What `node` needs computed first, sub-graph captures included.
std::vector<Value*> dependencies(const Node& node) {
  std::vector<Value*> values = node.inputs();
  for (const Graph* sub : node.subgraphs()) {
    for (Value* value : captured_values(*sub)) values.push_back(value);
  }
  return values;
}

}  // namespace

std::vector<Value*> captured_values(const Graph& graph) {
  std::set<const Graph*> inside;
  std::vector<Value*> captured;
  collect_captured(graph, inside, captured);
  return captured;
}

void Graph::sort() const {
  std::unordered_map<const Node*, size_t> index;
  for (size_t i = 0; i < owned_nodes_.size(); ++i) index[owned_nodes_[i].get()] = i;
  std::vector<std::vector<size_t>> consumers(owned_nodes_.size());
  std::vector<size_t> waiting(owned_nodes_.size(), 0);
  for (size_t i = 0; i < owned_nodes_.size(); ++i) {
    for (const Value* value : dependencies(*owned_nodes_[i])) {
      if (value == nullptr || value->producer() == nullptr || value->graph() != this) continue;
      consumers[index.at(value->producer())].push_back(i);
      ++waiting[i];
    }
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] == 0) ready.push(i);
  }
  sorted_.clear();
  while (!ready.empty()) {
    const size_t i = ready.top();
    ready.pop();
    sorted_.push_back(owned_nodes_[i].get());
    for (const size_t consumer : consumers[i]) {
      if (--waiting[consumer] == 0) ready.push(consumer);
    }
  }
  if (sorted_.size() != owned_nodes_.size()) {
    const auto stuck = std::find_if(waiting.begin(), waiting.end(), [](size_t count) { return count != 0; });
    throw_error(ErrorCode::InvalidModel,
                describe(*owned_nodes_[static_cast<size_t>(stuck - waiting.begin())]),
                " depends on its own output (a cycle)");
  }
  sorted_valid_ = true;
}

const std::vector<Node*>& Graph::nodes() const {
  if (!sorted_valid_) sort();
  return sorted_;
}

std::vector<Value*> Graph::constants() const {
  std::vector<Value*> result;
  for (const auto& value : owned_values_) {
    if (value->is_constant()) result.push_back(value.get());
  }
  return result;
}

std::vector<Value*> Graph::values() const {
  std::vector<Value*> result;
  for (const auto& value : owned_values_) result.push_back(value.get());
  return result;
}

Value* Graph::find_value(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

bool Graph::is_output(const Value* value) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const GraphOutput& o) { return o.value == value; });
}

std::string Graph::unique_name(const std::string& wanted) const {
  const std::string base = wanted.empty() ? "value" : wanted;
  if (!wanted.empty() && !by_name_.contains(base)) return base;
  for (size_t i = owned_values_.size();; ++i) {
    std::string name = base + "." + std::to_string(i);
    if (!by_name_.contains(name)) return name;
  }
}

Value* Graph::new_value(std::string name) {
  auto value = std::make_unique<Value>();
  value->name_ = std::move(name);
  value->graph_ = this;
  Value* raw = value.get();
  owned_values_.push_back(std::move(value));
  by_name_[raw->name_] = raw;
  return raw;
}

namespace {

void print_graph(const Graph& graph, const std::string& indent, std::string& text) {
  const auto typed = [](const Value* v) { return "%" + v->name() + ": " + to_string(v->type()); };
  text += indent + "graph " + graph.name() + " (";
  for (size_t i = 0; i < graph.inputs().size(); ++i) text += (i ? ", " : "") + typed(graph.inputs()[i]);
  text += ")\n";
  for (const Value* value : graph.constants()) {
    text += indent + "  constant " + typed(value);
    if (const QuantizedTensor* q = value->quantized()) text += " " + to_string(q->scheme);
    text += "\n";
  }
  for (const Node* node : graph.nodes()) {
    text += indent + "  ";
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      text += (i ? ", " : "") + (node->outputs()[i] ? typed(node->outputs()[i]) : std::string("_"));
    }
    text += " = " + (node->domain().empty() ? "" : node->domain() + ".") + node->op() + "(";
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      text += (i ? ", " : "") + (node->inputs()[i] ? "%" + node->inputs()[i]->name() : std::string("_"));
    }
    text += ")";
    for (const auto& [name, value] : node->attributes()) {
      if (const auto* i = std::get_if<int64_t>(&value)) text += concat(" ", name, "=", *i);
      if (const auto* f = std::get_if<float>(&value)) text += concat(" ", name, "=", *f);
      if (const auto* s = std::get_if<std::string>(&value)) text += concat(" ", name, "=\"", *s, "\"");
      if (const auto* v = std::get_if<std::vector<int64_t>>(&value)) text += " " + name + "=" + to_string(*v);
      if (const auto* t = std::get_if<Tensor>(&value)) text += " " + name + "=tensor" + to_string(t->shape());
    }
    text += "\n";
    for (const Graph* sub : node->subgraphs()) print_graph(*sub, indent + "    ", text);
  }
  text += indent + "  return ";
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    text += (i ? ", " : "") + graph.outputs()[i].name + "=%" + graph.outputs()[i].value->name();
  }
  text += "\n";
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string text;
  print_graph(graph, "", text);
  return text;
}

namespace {

using ValueMap = std::unordered_map<const Value*, Value*>;

void clone_into(const Graph& from, Graph& to, ValueMap& map) {
  Rewriter rewriter(to);
  for (const auto& [domain, version] : from.opsets()) rewriter.set_opset(domain, version);
  for (const auto& [key, value] : from.metadata()) rewriter.set_metadata(key, value);
  for (Value* input : from.inputs()) map[input] = rewriter.add_input(input->name(), input->type());
  for (Value* value : from.constants()) map[value] = rewriter.add_constant(*value->constant(), value->name());
  const auto mapped = [&](Value* value) -> Value* {
    if (value == nullptr) return nullptr;
    const auto found = map.find(value);
    return found == map.end() ? value : found->second;
  };
  for (const Node* node : from.nodes()) {
    NodeSpec spec{.op = node->op(),
                  .domain = node->domain(),
                  .opset = node->opset(),
                  .name = node->name(),
                  .outputs = {}};
    for (Value* input : node->inputs()) spec.inputs.push_back(mapped(input));
    for (const auto& [name, attribute] : node->attributes()) {
      if (const auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute)) {
        auto copy = std::make_shared<Graph>((*sub)->name());
        clone_into(**sub, *copy, map);
        spec.attributes[name] = copy;
      } else {
        spec.attributes[name] = attribute;
      }
    }
    for (const Value* output : node->outputs()) {
      spec.outputs.push_back(output ? OutputSpec{output->name(), output->type()} : OutputSpec::omitted());
    }
    Node* copy = rewriter.add_node(std::move(spec));
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      if (node->outputs()[i]) map[node->outputs()[i]] = copy->outputs()[i];
    }
  }
  for (const GraphOutput& output : from.outputs()) rewriter.add_output(mapped(output.value), output.name);
  rewriter.commit();
}

}  // namespace

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>(name_);
  ValueMap map;
  clone_into(*this, *copy, map);
  return copy;
}

}  // namespace quern
