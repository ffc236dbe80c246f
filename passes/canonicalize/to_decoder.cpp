#include "passes/canonicalize/to_decoder.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "ir/decoder_mark.h"
#include "ir/schema.h"
#include "passes/canonicalize/row_builder.h"

namespace quern::passes {
namespace {

// The output with one row of vocabulary scores per token: the one named for logits, or else the only one that
// is no present key or value.
const GraphOutput* logits_output(const Graph& graph) {
  const GraphOutput* found = nullptr;
  for (const GraphOutput& output : graph.outputs()) {
    if (output.name == "logits") return &output;
    const bool floats = is_floating(output.value->dtype()) && output.value->has_shape();
    if (!floats || output.value->shape().size() != 3) continue;
    if (found != nullptr) return nullptr;
    found = &output;
  }
  return found;
}

// Nodes above `value`, itself left out.
std::unordered_set<const Node*> ancestors(const std::vector<const Value*>& values) {
  std::unordered_set<const Node*> found;
  std::vector<const Value*> open = values;
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    const Node* node = value ? value->producer() : nullptr;
    if (node == nullptr || !found.insert(node).second) continue;
    open.insert(open.end(), node->inputs().begin(), node->inputs().end());
  }
  return found;
}

// Whether the value has one row per token.
bool is_per_token(const Value* value) {
  return value->has_shape() && !value->shape().empty() && value->shape()[0] == Dim::symbol("tokens");
}

// Puts SelectRows where the last attention has taken all keys and values: behind it nothing but the rows
// asked for is computed.
void select_rows(Graph& graph) {
  const Value* logits = graph.outputs().front().value;
  std::vector<const Value*> attention_inputs;
  for (const Node* node : graph.nodes()) {
    if (node->is("CachedAttention", kQuernDomain)) {
      attention_inputs.insert(attention_inputs.end(), node->inputs().begin(), node->inputs().end());
    }
  }
  const auto early = ancestors(attention_inputs);
  std::set<Value*> boundary;
  std::vector<Node*> tail;
  for (Node* node : graph.nodes()) {
    const bool late = !early.contains(node) && !node->is("CachedAttention", kQuernDomain);
    // An expert's rows are some of the tokens, under a symbol of their own.
    const bool takes_tokens = is_per_token(node->output()) || node->is("ExpertRows", kQuernDomain);
    if (!late || node->outputs().empty() || !takes_tokens) continue;
    tail.push_back(node);
  }
  const std::set<const Node*> in_tail(tail.begin(), tail.end());
  Rewriter rewriter(graph);
  std::map<Value*, Value*> selected;
  for (Node* node : tail) {
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      Value* input = node->inputs()[i];
      if (input == nullptr || !is_per_token(input) ||
          (input->producer() && in_tail.contains(input->producer())))
        continue;
      Value*& rows = selected[input];
      if (rows == nullptr) {
        rows =
            rewriter.add_node({.op = "SelectRows", .domain = std::string(kQuernDomain), .inputs = {input}})
                ->output();
      }
      rewriter.set_input(node, i, rows);
    }
    for (Value* output : node->outputs()) {
      if (output == nullptr || !is_per_token(output)) continue;
      ValueType type = output->type();
      type.shape->front() = Dim::symbol("selected");
      rewriter.set_type(output, type);
    }
  }
  if (tail.empty()) {
    Value* rows = rewriter
                      .add_node({.op = "SelectRows",
                                 .domain = std::string(kQuernDomain),
                                 .inputs = {const_cast<Value*>(logits)}})
                      ->output();
    rewriter.remove_output("logits");
    rewriter.add_output(rows, "logits");
  }
  rewriter.commit();
}

// Removes the old graph and gives its names to what took its place.
void retire(Graph& graph, const std::vector<Value*>& old_inputs, const std::map<Value*, std::string>& names) {
  remove_dead_nodes(graph);
  Rewriter rewriter(graph);
  for (Value* input : old_inputs) rewriter.remove_input(input);
  rewriter.commit();
  const std::vector<Value*> left = graph.values();
  const std::set<Value*> alive(left.begin(), left.end());
  Rewriter renamer(graph);
  for (const auto& [value, name] : names) {
    if (alive.contains(value)) renamer.rename(value, name);
  }
  renamer.commit();
}

std::string convert(Graph& graph, const GraphOutput& output, const TransformerInputs& inputs) {
  Rewriter rewriter(graph);
  RowBuilder builder(graph, inputs, rewriter);
  Value* logits = nullptr;
  try {
    logits = builder.build(output.value);
  } catch (const NotRowWise& failure) {
    return failure.reason;
  }
  if (builder.layers() == 0) return "it has no attention";
  std::map<Value*, std::string> names = {{builder.ids(), "input_ids"}, {builder.positions(), "positions"}};
  for (const auto& [old, value] : builder.counterparts()) {
    if (value->producer()) names.emplace(value, old->name());
  }
  const std::vector<Value*> old_inputs = graph.inputs();
  for (const GraphOutput& each : graph.outputs()) rewriter.remove_output(each.name);
  rewriter.add_output(logits, "logits");
  rewriter.set_metadata(kDecoderMark, "1");
  if (builder.context_length() > 0) {
    rewriter.set_metadata("context_length", std::to_string(builder.context_length()));
  }
  rewriter.set_opset(std::string(kQuernDomain), newest_opset(kQuernDomain));
  rewriter.commit();
  retire(graph, old_inputs, names);
  select_rows(graph);
  return {};
}

}  // namespace

bool is_decoder(const Graph& graph) {
  return has_decoder_mark(graph);
}

ToDecoder::ToDecoder()
    : Pass("to-decoder",
           "a transformer decoder becomes the canonical one, over rows and with the runtime's cache") {}

PassReport ToDecoder::run(Graph& graph, PassContext&) {
  PassReport report;
  if (is_decoder(graph)) return report;
  const auto inputs = transformer_inputs(graph);
  const GraphOutput* logits = logits_output(graph);
  std::string reason;
  if (!inputs) {
    reason = "there is not one input of token ids [batch, sequence] with a symbolic sequence";
  } else if (logits == nullptr) {
    reason = "there is not one output of logits";
  } else {
    reason = convert(graph, *logits, *inputs);
  }
  if (reason.empty()) {
    report.changes = 1;
  } else {
    report.notes.push_back("not a decoder: " + reason);
    report.failures.push_back({"graph '" + graph.name() + "'", reason});
  }
  return report;
}

}  // namespace quern::passes
