// If, Loop, Scan and SequenceMap: operators that run sub-graphs.
#include <algorithm>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

const Graph& body_of(const KernelContext& context, const std::string& name) {
  const Graph* graph = context.node().subgraph(name);
  if (graph == nullptr) context.fail("the sub-graph '", name, "' is missing");
  return *graph;
}

// Exporters give conditions of shape [1] where the specification asks for a scalar.
bool condition_of(const KernelContext& context, const RuntimeValue& value) {
  const Tensor condition = value.dense();
  if (condition.size() != 1 || condition.dtype() != DType::Bool) {
    context.fail("the condition is ", to_string(value), ", expected one bool");
  }
  return condition.int_at(0) != 0;
}

// Tensors of equal shape, one per step, along a new axis.
Tensor stack(const KernelContext& context, const std::vector<Tensor>& parts, int64_t axis) {
  std::vector<Tensor> slices;
  for (const Tensor& part : parts) {
    Shape shape = part.shape();
    shape.insert(shape.begin() + axis, 1);
    slices.push_back(part.reshaped(shape));
  }
  return concat_tensors(context, slices, axis);
}

// What scanning no steps at all gives: the element shape as far as the body states it, 0 where it does not.
Tensor empty_scan(const Value& element, int64_t axis) {
  Shape shape;
  if (element.has_shape()) {
    for (const Dim& dim : element.shape()) shape.push_back(dim.as_constant().value_or(0));
  }
  axis = std::min(axis, static_cast<int64_t>(shape.size()));
  shape.insert(shape.begin() + axis, 0);
  return Tensor::zeros(element.dtype() == DType::Undefined ? DType::F32 : element.dtype(), shape);
}

void run_if(KernelContext& context) {
  const bool condition = condition_of(context, context.value(0));
  const Graph& branch = body_of(context, condition ? "then_branch" : "else_branch");
  std::vector<RuntimeValue> outputs = context.run_subgraph(branch, {});
  if (outputs.size() != context.output_count()) context.fail("the branch has ", outputs.size(), " outputs");
  for (size_t i = 0; i < outputs.size(); ++i) context.set_output(i, std::move(outputs[i]));
}

void run_loop(KernelContext& context) {
  const Graph& body = body_of(context, "body");
  const int64_t trips = context.has_input(0) ? int_scalar(context, 0) : -1;
  bool go_on = !context.has_input(1) || condition_of(context, context.value(1));
  const size_t carried = context.input_count() > 2 ? context.input_count() - 2 : 0;
  const size_t outputs = body.outputs().size() - 1;
  if (body.outputs().empty() || outputs < carried || outputs != context.output_count()) {
    context.fail("the body has ", body.outputs().size(), " outputs for ", carried, " carried values and ",
                 context.output_count(), " outputs");
  }
  std::vector<RuntimeValue> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(context.value(i + 2));
  std::vector<std::vector<Tensor>> scans(outputs - carried);
  for (int64_t step = 0; go_on && (trips < 0 || step < trips); ++step) {
    if (step >= context.limits().max_loop_iterations) {
      context.unsupported("more than ", context.limits().max_loop_iterations, " iterations");
    }
    std::vector<RuntimeValue> inputs{Tensor::scalar(step), Tensor::scalar(true)};
    inputs.insert(inputs.end(), state.begin(), state.end());
    std::vector<RuntimeValue> results = context.run_subgraph(body, std::move(inputs));
    go_on = condition_of(context, results[0]);
    for (size_t i = 0; i < carried; ++i) state[i] = std::move(results[i + 1]);
    for (size_t i = 0; i < scans.size(); ++i) scans[i].push_back(results[i + 1 + carried].dense());
  }
  for (size_t i = 0; i < carried; ++i) context.set_output(i, std::move(state[i]));
  for (size_t i = 0; i < scans.size(); ++i) {
    const Value& element = *body.outputs()[i + 1 + carried].value;
    context.set_output(i + carried, scans[i].empty() ? empty_scan(element, 0) : stack(context, scans[i], 0));
  }
}

// One run over a sequence: states, and slices of the scanned inputs, to states and slices of the scan
// outputs.
struct ScanPlan {
  size_t states = 0;
  std::vector<int64_t> in_axes, in_backward, out_axes, out_backward;
};

std::vector<RuntimeValue> scan(KernelContext& context, const Graph& body, const ScanPlan& plan,
                               std::vector<RuntimeValue> state, const std::vector<Tensor>& scanned,
                               int64_t steps) {
  const size_t out_count = body.outputs().size() - plan.states;
  std::vector<std::vector<Tensor>> results(out_count);
  const auto entry = [](const std::vector<int64_t>& list, size_t i) { return i < list.size() ? list[i] : 0; };
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<RuntimeValue> inputs = state;
    for (size_t i = 0; i < scanned.size(); ++i) {
      const int64_t axis = normalize_axis(context, entry(plan.in_axes, i), scanned[i].rank());
      const int64_t at = entry(plan.in_backward, i) != 0 ? steps - 1 - step : step;
      Tensor slice = slice_axis(context, scanned[i], static_cast<size_t>(axis), at, 1);
      Shape shape = slice.shape();
      shape.erase(shape.begin() + axis);
      inputs.emplace_back(slice.reshaped(shape));
    }
    std::vector<RuntimeValue> outputs = context.run_subgraph(body, std::move(inputs));
    for (size_t i = 0; i < plan.states; ++i) state[i] = std::move(outputs[i]);
    for (size_t i = 0; i < out_count; ++i) results[i].push_back(outputs[i + plan.states].dense());
  }
  for (size_t i = 0; i < out_count; ++i) {
    if (entry(plan.out_backward, i) != 0) std::reverse(results[i].begin(), results[i].end());
    const Value& element = *body.outputs()[i + plan.states].value;
    if (results[i].empty()) {
      state.emplace_back(empty_scan(element, 0));
    } else {
      const int64_t axis = normalize_axis(context, entry(plan.out_axes, i), results[i].front().rank() + 1);
      state.emplace_back(stack(context, results[i], axis));
    }
  }
  return state;
}

// Version 8: every input has a batch dimension in front, and each batch may have a length of its own.
void run_batched_scan(KernelContext& context, const Graph& body, ScanPlan plan, size_t scanned) {
  plan.in_backward = context.node().ints_attribute("directions", {});
  plan.states = context.input_count() - 1 - scanned;
  if (body.outputs().size() != context.output_count() || context.output_count() < plan.states) {
    context.fail("the body has ", body.outputs().size(), " outputs");
  }
  for (size_t i = 1; i < context.input_count(); ++i) {
    const int rank = i <= plan.states ? 1 : 2;  // batch, and of what is scanned the steps
    if (!context.has_input(i) || context.input(i).rank() < rank)
      context.fail("input ", i, " has no batch of steps");
  }
  const int64_t batch = context.input(1).dim(0);
  const int64_t length = context.input(1 + plan.states).dim(1);
  if (context.has_input(0) && context.input(0).size() != batch)
    context.fail(context.input(0).size(), " sequence lengths for a batch of ", batch);
  const auto row = [&](const Tensor& x, int64_t b) {
    if (x.rank() < 1 || x.dim(0) != batch) context.fail("the batch dimensions differ");
    return slice_axis(context, x, 0, b, 1).reshaped(Shape(x.shape().begin() + 1, x.shape().end()));
  };
  std::vector<std::vector<Tensor>> results(context.output_count());
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t steps = context.has_input(0) ? context.input(0).int_at(b) : length;
    if (steps < 0 || steps > length) context.fail("a sequence length is ", steps);
    std::vector<RuntimeValue> state;
    std::vector<Tensor> sequences;
    for (size_t i = 0; i < plan.states; ++i) state.emplace_back(row(context.input(1 + i), b));
    for (size_t i = 0; i < scanned; ++i) sequences.push_back(row(context.input(1 + plan.states + i), b));
    std::vector<RuntimeValue> outputs = scan(context, body, plan, std::move(state), sequences, steps);
    for (size_t i = 0; i < results.size(); ++i) {
      Tensor result = outputs[i].dense();
      if (i >= plan.states && steps < length) {  // zeros up to the longest
        Shape rest = result.shape();
        rest[0] = length - steps;
        result = concat_tensors(context, {result, context.make(result.dtype(), rest)}, 0);
      }
      results[i].push_back(std::move(result));
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].empty()) context.unsupported("an empty batch");
    context.set_output(i, stack(context, results[i], 0));
  }
}

void run_scan(KernelContext& context) {
  const Graph& body = body_of(context, "body");
  const Node& node = context.node();
  const auto scanned = static_cast<size_t>(std::max<int64_t>(0, node.int_attribute("num_scan_inputs", 0)));
  const bool batched = context.opset() < 9;
  if (scanned == 0 || scanned + (batched ? 1 : 0) > context.input_count())
    context.fail("num_scan_inputs is ", scanned);
  ScanPlan plan;
  if (batched) return run_batched_scan(context, body, plan, scanned);
  plan.states = context.input_count() - scanned;
  plan.in_axes = node.ints_attribute("scan_input_axes", {});
  plan.in_backward = node.ints_attribute("scan_input_directions", {});
  plan.out_axes = node.ints_attribute("scan_output_axes", {});
  plan.out_backward = node.ints_attribute("scan_output_directions", {});
  if (body.outputs().size() != context.output_count() || context.output_count() < plan.states) {
    context.fail("the body has ", body.outputs().size(), " outputs");
  }
  std::vector<RuntimeValue> state;
  std::vector<Tensor> sequences;
  for (size_t i = 0; i < plan.states; ++i) state.push_back(context.value(i));
  int64_t steps = 0;
  for (size_t i = 0; i < scanned; ++i) {
    const Tensor& x = context.input(plan.states + i);
    const int64_t axis = normalize_axis(context, i < plan.in_axes.size() ? plan.in_axes[i] : 0, x.rank());
    const int64_t length = x.shape()[static_cast<size_t>(axis)];
    if (i > 0 && length != steps) context.fail("scanned inputs of ", steps, " and ", length, " steps");
    steps = length;
    sequences.push_back(x);
  }
  std::vector<RuntimeValue> outputs = scan(context, body, plan, std::move(state), sequences, steps);
  for (size_t i = 0; i < outputs.size(); ++i) context.set_output(i, std::move(outputs[i]));
}

void run_sequence_map(KernelContext& context) {
  const Graph& body = body_of(context, "body");
  const size_t count = context.value(0).sequence().tensors.size();
  std::vector<TensorSequence> results(body.outputs().size());
  for (size_t step = 0; step < count; ++step) {
    std::vector<RuntimeValue> inputs;
    for (size_t i = 0; i < context.input_count(); ++i) {
      if (!context.value(i).is_sequence()) {
        inputs.push_back(context.value(i));
        continue;
      }
      const auto& tensors = context.value(i).sequence().tensors;
      if (tensors.size() != count) context.fail("sequences of ", count, " and ", tensors.size(), " tensors");
      inputs.emplace_back(tensors[step]);
    }
    const std::vector<RuntimeValue> outputs = context.run_subgraph(body, std::move(inputs));
    for (size_t i = 0; i < outputs.size(); ++i) results[i].tensors.push_back(outputs[i].dense());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    results[i].dtype =
        results[i].tensors.empty() ? body.outputs()[i].value->dtype() : results[i].tensors.front().dtype();
    context.set_output(i, std::move(results[i]));
  }
}

}  // namespace

void register_control_flow(KernelTable& table) {
  add_reference(table, {"If"}, run_if);
  add_reference(table, {"Loop"}, run_loop);
  add_reference(table, {"Scan"}, run_scan, 8);
  add_reference(table, {"SequenceMap"}, run_sequence_map);
}

}  // namespace quern::runtime::reference
