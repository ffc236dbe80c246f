#include "ir/rewriter.h"
#include "runtime/decoder/compiler.h"
#include "runtime/decoder/fallback_step.h"

namespace quern::runtime {
namespace {

// A graph of the node alone, whose inputs and outputs are typed as they are here.
std::unique_ptr<Graph> isolate(const Node& node) {
  auto graph = std::make_unique<Graph>("fallback");
  Rewriter rewriter(*graph);
  NodeSpec spec;
  spec.op = node.op();
  spec.domain = node.domain();
  spec.opset = node.opset();
  spec.name = node.name();
  spec.attributes = node.attributes();
  std::map<const Value*, Value*> copies;
  for (const Value* input : node.inputs()) {
    if (input != nullptr && !copies.contains(input)) {
      copies[input] = input->is_constant() ? rewriter.add_constant(*input->constant(), input->name())
                                           : rewriter.add_input(input->name(), input->type());
    }
    spec.inputs.push_back(input != nullptr ? copies[input] : nullptr);
  }
  spec.outputs.clear();
  for (const Value* output : node.outputs()) {
    spec.outputs.push_back(output != nullptr ? OutputSpec{.name = output->name(), .type = output->type()}
                                             : OutputSpec::omitted());
  }
  Node* copy = rewriter.add_node(std::move(spec));
  for (Value* output : copy->outputs()) {
    if (output != nullptr) rewriter.add_output(output, output->name());
  }
  rewriter.commit();
  return graph;
}

}  // namespace

void EntryCompiler::fallback(const Node& node) {
  const std::string why = not_row_wise(node);
  if (!why.empty()) unsupported(node, why);
  std::vector<FallbackStep::Input> inputs;
  const RowValue* first = nullptr;
  for (const Value* value : node.inputs()) {
    FallbackStep::Input input;
    if (const RowValue* row = find_row(value)) {
      if (first != nullptr && row->space != first->space) unsupported(node, "its inputs differ in rows");
      if (first == nullptr) first = row;
      input.rows = row->at;
      input.features = row->features;
    } else if (value != nullptr && value->is_constant()) {
      input.constant = RuntimeValue(*value->constant());
    } else if (value != nullptr) {
      unsupported(node, concat("'", value->name(), "' is neither a value of tokens nor a constant"));
    }
    inputs.push_back(std::move(input));
  }
  if (first == nullptr) unsupported(node, "none of its inputs is a value of tokens");
  const Space space = first->space;
  auto step = std::make_unique<FallbackStep>(isolate(node), std::move(inputs));
  const std::vector<Shape> features = with_context("compiling", [&] { return step->probe(); });
  std::vector<FallbackStep::Output> outputs;
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    FallbackStep::Output output;
    if (is_needed(node.output(i))) {
      output.features = features.at(i);
      output.rows = define(node.output(i), space, output.features);
    }
    outputs.push_back(std::move(output));
  }
  step->set_outputs(std::move(outputs));
  add_step(std::move(step), node, space);
}

}  // namespace quern::runtime
