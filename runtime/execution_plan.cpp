#include "runtime/execution_plan.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "ir/products.h"

namespace quern::runtime {
namespace {

// What a node reads: its inputs and what its sub-graphs capture.
std::vector<const Value*> values_read(const Node& node) {
  std::vector<const Value*> values;
  for (const Value* input : node.inputs()) {
    if (input != nullptr) values.push_back(input);
  }
  for (const Graph* sub : node.subgraphs()) {
    for (const Value* captured : captured_values(*sub)) values.push_back(captured);
  }
  return values;
}

// Names are optional in ONNX, those of values are not.
std::string place(const Node& node) {
  if (!node.name().empty()) return concat("'", node.name(), "'");
  for (const Value* output : node.outputs()) {
    if (output != nullptr) return concat("the node producing '", output->name(), "'");
  }
  return "a node without a name";
}

std::string advice(const Node& node) {
  const KernelTable& table = KernelTable::instance();
  if (!table.knows_domain(node.domain())) {
    return concat("the domain '", node.domain(), "' is not known; export without custom operators");
  }
  const int lowest = table.lowest_version(node.domain(), node.op());
  if (lowest > 0) {
    return concat("known from version ", lowest, " on; convert the model to a newer operator set");
  }
  if (node.domain() == kQuernDomain) {
    return "only quern's decoder runs it; `quern export --style plain`, nbits or qdq writes standard "
           "operators";
  }
  return "no such operator is known; export with another operator set, or replace it by standard operators";
}

}  // namespace

ExecutionPlan::ExecutionPlan(std::span<const Value* const> wanted, const Bindings& bindings,
                             const Graph* scope) {
  order(wanted, bindings, scope);
  for (Step& step : steps_) {
    step.kernels = KernelTable::instance().find(*step.node);
    prepare(*step.node);
    for (const Graph* sub : step.node->subgraphs()) {
      std::vector<const Value*> outputs;
      for (const GraphOutput& output : sub->outputs()) outputs.push_back(output.value);
      Bindings inputs;
      for (const Value* input : sub->inputs()) inputs[input] = {};
      subgraphs_[sub] = std::make_unique<ExecutionPlan>(outputs, inputs, sub);
    }
  }
  find_last_uses(wanted, scope);
}

namespace {

// Whether the operator takes quantized and packed constants as they are.
bool takes_packed(const Node& node, const Value* input) {
  if (is_convolution(node)) return input->packed() != nullptr && node.int_attribute("group", 1) == 1;
  return node.domain() == kQuernDomain;
}

bool is_narrow(const Node& node, const Value* input) {
  return is_convolution(node) && input->tensor() != nullptr && is_floating(input->dtype()) &&
         input->dtype() != DType::F32;
}

}  // namespace

// Once, not in every run.
void ExecutionPlan::prepare(const Node& node) {
  for (const Value* input : node.inputs()) {
    if (input != nullptr && is_narrow(node, input) && !dense_.contains(input))
      dense_[input] = input->tensor()->cast(DType::F32);
    if (input == nullptr || (!input->quantized() && !input->packed())) continue;
    if (takes_packed(node, input)) {
      const PackedTensor* packed = input->packed();
      if (packed && !packed->spec().has_kernels() && !widened_.contains(input))
        widened_[input] = widen(*packed);
    } else if (!dense_.contains(input)) {
      dense_[input] = RuntimeValue(*input->constant()).dense();
    }
  }
}

const RuntimeValue* ExecutionPlan::prepared(const Node& node, const Value* input) const {
  if (input == nullptr || !input->is_constant()) return nullptr;
  const bool floats =
      is_narrow(node, input) || ((input->quantized() || input->packed()) && !takes_packed(node, input));
  const bool packed = input->packed() && takes_packed(node, input);
  if (!floats && !packed) return nullptr;
  const Prepared& values = packed ? widened_ : dense_;
  const auto found = values.find(input);
  return found != values.end() ? &found->second : nullptr;
}

void ExecutionPlan::order(std::span<const Value* const> wanted, const Bindings& bindings,
                          const Graph* scope) {
  // Depth first without recursion: a decoder is thousands of nodes deep.
  struct Entry {
    const Node* node;
    std::vector<const Value*> reads;
    size_t next = 0;
  };
  std::vector<Entry> stack;
  std::set<const Node*> seen;
  std::set<const Value*> seen_missing;
  const auto enter = [&](const Value* value) {
    if (value->is_constant() || bindings.contains(value)) return;
    if (scope != nullptr && value->graph() != scope) return;
    const Node* producer = value->producer();
    if (producer == nullptr) {
      if (seen_missing.insert(value).second) missing_.push_back(value);
    } else if (seen.insert(producer).second) {
      stack.push_back({producer, values_read(*producer)});
    }
  };
  for (const Value* value : wanted) {
    enter(value);
    while (!stack.empty()) {
      Entry& top = stack.back();
      if (top.next < top.reads.size()) {
        enter(top.reads[top.next++]);
      } else {
        steps_.push_back({top.node, {}, {}});
        stack.pop_back();
      }
    }
  }
}

void ExecutionPlan::find_last_uses(std::span<const Value* const> wanted, const Graph* scope) {
  std::set<const Value*> later(wanted.begin(), wanted.end());
  for (size_t i = steps_.size(); i-- > 0;) {
    std::vector<const Value*> touched = values_read(*steps_[i].node);
    for (const Value* output : steps_[i].node->outputs()) {
      if (output != nullptr) touched.push_back(output);
    }
    for (const Value* value : touched) {
      if (value->is_constant() || (scope != nullptr && value->graph() != scope)) continue;
      if (later.insert(value).second) steps_[i].last_uses.push_back(value);
    }
  }
}

std::vector<const Node*> ExecutionPlan::unsupported() const {
  std::vector<const Node*> nodes;
  for (const Step& step : steps_) {
    if (step.kernels.empty()) nodes.push_back(step.node);
    for (const Graph* sub : step.node->subgraphs()) {
      const std::vector<const Node*> inner = subgraph(sub).unsupported();
      nodes.insert(nodes.end(), inner.begin(), inner.end());
    }
  }
  return nodes;
}

void throw_unsupported(const std::vector<const Node*>& nodes) {
  if (nodes.empty()) return;
  std::map<std::tuple<std::string, std::string, int>, std::vector<const Node*>> groups;
  for (const Node* node : nodes) groups[{node->domain(), node->op(), node->opset()}].push_back(node);
  std::string text;
  for (const auto& [key, members] : groups) {
    const auto& [domain, op, version] = key;
    text += concat(text.empty() ? "" : "; ", op, " (domain '", domain.empty() ? "ai.onnx" : domain,
                   "', version ", version, ") at ");
    for (size_t i = 0; i < members.size(); ++i) text += concat(i ? ", " : "", place(*members[i]));
    text += ": " + advice(*members.front());
  }
  throw_error(ErrorCode::Unsupported, "no kernel for ", nodes.size(),
              nodes.size() == 1 ? " node: " : " nodes: ", text);
}

}  // namespace quern::runtime
