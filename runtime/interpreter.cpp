#include "runtime/interpreter.h"

#include <algorithm>
#include <new>
#include <unordered_map>

#include "runtime/execution_plan.h"
#include "runtime/graph_part.h"

namespace quern::runtime {
namespace {

// The values of one graph in one run; a sub-graph's frame sees those around it.
class Frame {
 public:
  explicit Frame(const Frame* outer = nullptr) : outer_(outer) {}

  void set(const Value* value, RuntimeValue data) { values_[value] = std::move(data); }
  void drop(const Value* value) { values_.erase(value); }

  RuntimeValue get(const Value* value) const {
    if (value->is_constant()) return RuntimeValue(*value->constant());
    for (const Frame* frame = this; frame != nullptr; frame = frame->outer_) {
      const auto found = frame->values_.find(value);
      if (found != frame->values_.end()) return found->second;
    }
    throw_error(ErrorCode::Internal, "value '", value->name(), "' was not computed before its use");
  }

 private:
  std::unordered_map<const Value*, RuntimeValue> values_;
  const Frame* outer_;
};

class Execution : public SubgraphRunner {
 public:
  Execution(const ExecutionPlan& plan, const RunOptions& options, Frame& frame)
      : plan_(plan),
        options_(options),
        frame_(frame),
        forced_(options.implementation.empty() ? forced_kernel() : std::string_view(options.implementation)) {
  }

  void run_steps() {
    for (const ExecutionPlan::Step& step : plan_.steps()) {
      with_context(concat("running ", describe(*step.node)), [&] { run_step(step); });
      for (const Value* value : step.last_uses) frame_.drop(value);
    }
  }

  std::vector<RuntimeValue> run(const Graph& graph, std::vector<RuntimeValue> inputs) override {
    if (inputs.size() != graph.inputs().size()) {
      throw_error(ErrorCode::InvalidModel, "the sub-graph '", graph.name(), "' takes ", graph.inputs().size(),
                  " inputs, but the operator gives ", inputs.size());
    }
    Frame inner(&frame_);
    for (size_t i = 0; i < inputs.size(); ++i) inner.set(graph.inputs()[i], std::move(inputs[i]));
    Execution(plan_.subgraph(&graph), options_, inner).run_steps();
    std::vector<RuntimeValue> outputs;
    for (const GraphOutput& output : graph.outputs()) outputs.push_back(inner.get(output.value));
    return outputs;
  }

 private:
  void run_step(const ExecutionPlan::Step& step) {
    const Node& node = *step.node;
    std::vector<RuntimeValue> inputs;
    inputs.reserve(node.inputs().size());
    for (const Value* input : node.inputs()) {
      const RuntimeValue* prepared = plan_.prepared(node, input);
      inputs.push_back(prepared ? *prepared : input == nullptr ? RuntimeValue() : frame_.get(input));
    }
    KernelContext context(node, std::move(inputs), options_.limits, this, options_.decode_step);
    const Kernel& kernel = select_kernel(step.kernels, forced_, context);
    if (options_.on_kernel) options_.on_kernel(node, kernel.implementation);
    run_kernel(kernel, context);
    std::vector<RuntimeValue> outputs = context.take_outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Value* value = node.outputs()[i];
      if (value == nullptr) continue;
      if (options_.on_value) options_.on_value(*value, outputs[i]);
      frame_.set(value, std::move(outputs[i]));
    }
  }

  static void run_kernel(const Kernel& kernel, KernelContext& context) {
    try {
      kernel.run(context);
    } catch (const std::bad_alloc&) {
      throw_error(ErrorCode::OutOfMemory, "no memory left");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Internal) throw;
      // A tensor was read as what it is not. Types and shapes come from the model, which need not keep to the
      // operator's definition.
      std::string types;
      for (size_t i = 0; i < context.input_count(); ++i) {
        types += (i > 0 ? ", " : "") + to_string(context.value(i));
      }
      context.fail("it does not take the inputs ", types, " (", error.message(), ")");
    }
  }

  const ExecutionPlan& plan_;
  const RunOptions& options_;
  Frame& frame_;
  std::string_view forced_;
};

std::vector<const Value*> graph_outputs(const Graph& graph) {
  std::vector<const Value*> values;
  for (const GraphOutput& output : graph.outputs()) values.push_back(output.value);
  return values;
}

Bindings bind_all_inputs(const Graph& graph) {
  Bindings bindings;
  for (const Value* input : graph.inputs()) bindings[input] = {};
  return bindings;
}

void check_input(const Value& input, const RuntimeValue& given) {
  const ValueType& type = input.type();
  const auto refuse = [&] {
    throw_error(ErrorCode::BadData, "input '", input.name(), "' is ", to_string(given), ", expected ",
                to_string(type));
  };
  if (type.kind == ValueType::Kind::Optional && !given.present()) return;
  if (!given.present()) refuse();
  if (type.kind == ValueType::Kind::Tensor && given.is_sequence()) refuse();
  if (type.kind == ValueType::Kind::Sequence && !given.is_sequence()) refuse();
  const bool empty_sequence = given.is_sequence() && given.sequence().tensors.empty();
  if (type.dtype != DType::Undefined && given.dtype() != type.dtype && !empty_sequence) refuse();
  if (given.is_sequence() || !type.shape) return;
  const Shape shape = given.tensor() != nullptr ? given.tensor()->shape() : given.dense().shape();
  if (shape.size() != type.shape->size()) refuse();
  for (size_t i = 0; i < shape.size(); ++i) {
    const std::optional<int64_t> stated = (*type.shape)[i].as_constant();
    if (stated && *stated != shape[i]) refuse();
  }
}

std::string input_names(const Graph& graph) {
  std::string names;
  for (const Value* input : graph.inputs()) names += (names.empty() ? "'" : ", '") + input->name() + "'";
  return names.empty() ? "none" : names;
}

void refuse_missing(const std::vector<const Value*>& missing, std::span<const Value* const> wanted) {
  if (missing.empty()) return;
  std::string names;
  for (const Value* value : missing) names += (names.empty() ? "'" : ", '") + value->name() + "'";
  throw_error(ErrorCode::InvalidArgument, "evaluating '", wanted.front()->name(), "' needs the inputs ",
              names);
}

}  // namespace

Interpreter::Interpreter(const Graph& graph)
    : graph_(graph),
      plan_(std::make_unique<ExecutionPlan>(graph_outputs(graph), bind_all_inputs(graph), &graph)) {
  throw_unsupported(plan_->unsupported());
}

Interpreter::~Interpreter() = default;

NamedValues Interpreter::run(const NamedValues& inputs, const RunOptions& options) const {
  for (const auto& [name, value] : inputs) {
    const Value* known = graph_.find_value(name);
    const auto& all = graph_.inputs();
    if (known == nullptr || std::find(all.begin(), all.end(), known) == all.end()) {
      throw_error(ErrorCode::BadData, "the graph has no input '", name, "'; its inputs are ",
                  input_names(graph_));
    }
  }
  Frame frame;
  double elements = 1;
  for (const Value* input : graph_.inputs()) {
    const auto given = inputs.find(input->name());
    if (given == inputs.end() && input->type().kind != ValueType::Kind::Optional) {
      throw_error(ErrorCode::BadData, "input '", input->name(), "' is missing; the inputs are ",
                  input_names(graph_));
    }
    RuntimeValue value = given == inputs.end() ? RuntimeValue() : given->second;
    check_input(*input, value);
    if (value.tensor() != nullptr) elements += static_cast<double>(value.tensor()->size());
    frame.set(input, std::move(value));
  }
  plan_->threads().run(elements, [&] { Execution(*plan_, options, frame).run_steps(); });
  NamedValues outputs;
  for (const GraphOutput& output : graph_.outputs()) outputs[output.name] = frame.get(output.value);
  return outputs;
}

GraphPart::GraphPart(const Graph& graph, std::span<const Value* const> given,
                     std::vector<const Value*> wanted)
    : wanted_(std::move(wanted)) {
  Bindings bindings;
  for (const Value* value : given) bindings[value] = {};
  plan_ = std::make_unique<ExecutionPlan>(wanted_, bindings, &graph);
  refuse_missing(plan_->missing(), wanted_);
  throw_unsupported(plan_->unsupported());
}

GraphPart::~GraphPart() = default;
GraphPart::GraphPart(GraphPart&&) noexcept = default;
GraphPart& GraphPart::operator=(GraphPart&&) noexcept = default;

std::vector<RuntimeValue> GraphPart::run(const Bindings& given, const RunOptions& options) const {
  Frame frame;
  double elements = 1;
  for (const auto& [value, data] : given) {
    if (data.tensor() != nullptr) elements += static_cast<double>(data.tensor()->size());
    frame.set(value, data);
  }
  plan_->threads().run(elements, [&] { Execution(*plan_, options, frame).run_steps(); });
  std::vector<RuntimeValue> results;
  for (const Value* value : wanted_) results.push_back(frame.get(value));
  return results;
}

std::vector<const Node*> GraphPart::nodes() const {
  std::vector<const Node*> nodes;
  for (const ExecutionPlan::Step& step : plan_->steps()) nodes.push_back(step.node);
  return nodes;
}

std::vector<RuntimeValue> evaluate(std::span<const Value* const> wanted, const Bindings& bindings,
                                   const RunOptions& options) {
  const ExecutionPlan plan(wanted, bindings, nullptr);
  refuse_missing(plan.missing(), wanted);
  throw_unsupported(plan.unsupported());
  Frame frame;
  for (const auto& [value, data] : bindings) frame.set(value, data);
  // What is computed here goes into files, which must not depend on the machine.
  RunOptions chosen = options;
  if (chosen.implementation.empty()) chosen.implementation = kReferenceImplementation;
  Execution(plan, chosen, frame).run_steps();
  std::vector<RuntimeValue> results;
  for (const Value* value : wanted) results.push_back(frame.get(value));
  return results;
}

std::vector<const Value*> missing_inputs(std::span<const Value* const> wanted, const Bindings& bindings) {
  return ExecutionPlan(wanted, bindings, nullptr).missing();
}

void check_supported(const Graph& graph) {
  throw_unsupported(ExecutionPlan(graph_outputs(graph), bind_all_inputs(graph), &graph).unsupported());
}

}  // namespace quern::runtime
