#include "passes/canonicalize/control.h"

#include <algorithm>
#include <tuple>

namespace quern::passes {
namespace {

bool named(const std::string& name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

bool is_of_encoder(const std::string& name) {
  return named(name, {"encoder", "cross"});
}

const std::set<std::string_view> kRandom = {"RandomNormal",      "RandomNormalLike", "RandomUniform",
                                            "RandomUniformLike", "Multinomial",      "Bernoulli"};

}  // namespace

InputRole role_of(const Value& input) {
  const std::string& name = input.name();
  const bool numbers = is_floating(input.dtype());
  if (is_of_encoder(name)) return InputRole::Other;
  if (named(name, {"mask"})) return InputRole::Mask;
  if (numbers) {
    const bool deep = input.has_shape() && input.shape().size() >= 3;
    return deep && named(name, {"past", "cache", "state"}) ? InputRole::Past : InputRole::Other;
  }
  if (named(name, {"position"})) return InputRole::Positions;
  if (named(name, {"use_cache", "branch", "logits_to_keep"})) return InputRole::Flag;
  return InputRole::Ids;
}

bool reads_encoder(const Graph& graph) {
  const auto& inputs = graph.inputs();
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const Value* input) { return is_of_encoder(input->name()); });
}

ControlValues::ControlValues(const Graph& graph) {
  for (const Value* input : graph.inputs()) {
    const InputRole role = role_of(*input);
    if (role == InputRole::Ids || role == InputRole::Past || role == InputRole::Other) data_.insert(input);
  }
  visit(graph);
}

void ControlValues::visit(const Graph& graph) {
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) visit(*sub);
    if (node->is("Shape") || node->is("Size")) continue;
    bool data = kRandom.contains(node->op());
    for (const Value* input : node->inputs()) data |= input != nullptr && data_.contains(input);
    for (const Graph* sub : node->subgraphs()) {
      for (const GraphOutput& output : sub->outputs()) data |= data_.contains(output.value);
      for (const Value* input : sub->inputs()) data |= data_.contains(input);
    }
    if (!data) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr && !output->elements()) data_.insert(output);
    }
  }
}

bool Probe::operator<(const Probe& other) const {
  return std::tie(batch, sequence, past, mask, positions) <
         std::tie(other.batch, other.sequence, other.past, other.mask, other.positions);
}

int64_t Prober::size(const Dim& dim, const Probe& probe) const {
  std::map<std::string, Dim> values;
  values[symbols_.past] = Dim(probe.past);
  values[symbols_.sequence] = Dim(probe.sequence);
  values[symbols_.batch] = Dim(probe.batch);
  const Dim known = dim.substitute(values);
  if (!known.is_constant()) {
    throw_error(ErrorCode::Unsupported, "the dimension ", dim.to_string(),
                " does not follow from batch, sequence and past lengths");
  }
  return known.constant();
}

Tensor Prober::input(const Value& value, const Probe& probe) const {
  const InputRole role = role_of(value);
  if (!value.has_shape() || (role != InputRole::Mask && role != InputRole::Positions)) {
    throw_error(ErrorCode::Unsupported, "it depends on the graph input '", value.name(), "'");
  }
  Shape shape;
  for (const Dim& dim : value.shape()) shape.push_back(size(dim, probe));
  Tensor tensor = Tensor::zeros(value.dtype(), shape);
  const std::vector<int64_t>& given = role == InputRole::Mask ? probe.mask : probe.positions;
  if (!given.empty() && static_cast<int64_t>(given.size()) != tensor.size()) {
    throw_error(ErrorCode::Unsupported, "the graph input '", value.name(), "' of shape ",
                to_string(value.shape()), " is not one number per token");
  }
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t fallback =
        role == InputRole::Mask ? 1 : probe.past + i % std::max<int64_t>(1, probe.sequence);
    const int64_t number = given.empty() ? fallback : given[static_cast<size_t>(i)];
    if (is_floating(tensor.dtype())) {
      tensor.set(i, static_cast<double>(number));
    } else {
      tensor.set_int(i, number);
    }
  }
  return tensor;
}

// Binds `value`, or what it is computed from, where it is an input or has known symbolic elements.
void Prober::bind(const Value* value, const Probe& probe, runtime::Bindings& bindings,
                  std::set<const Value*>& seen) const {
  // Lengths that depend on data, as the number of an expert's tokens does, come with the data.
  const auto is_known = [&](const std::vector<Dim>& elements) {
    return std::all_of(elements.begin(), elements.end(), [&](const Dim& dim) {
      const auto symbols = dim.symbols();
      return std::all_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) {
        return symbol == symbols_.batch || symbol == symbols_.sequence || symbol == symbols_.past;
      });
    });
  };
  if (value == nullptr || value->is_constant() || bindings.contains(value) || !seen.insert(value).second)
    return;
  if (value->elements() && value->has_shape() && value->shape().size() <= 1 &&
      (value->producer() == nullptr || is_known(*value->elements()))) {
    const std::vector<Dim>& elements = *value->elements();
    Tensor tensor = Tensor::zeros(
        value->dtype(), value->shape().empty() ? Shape{} : Shape{static_cast<int64_t>(elements.size())});
    for (size_t i = 0; i < elements.size(); ++i)
      tensor.set_int(static_cast<int64_t>(i), size(elements[i], probe));
    bindings[value] = std::move(tensor);
    return;
  }
  const Node* node = value->producer();
  if (node == nullptr) {
    bindings[value] = input(*value, probe);
    return;
  }
  for (const Value* each : node->inputs()) bind(each, probe, bindings, seen);
  for (const Graph* sub : node->subgraphs()) {
    for (const Value* captured : captured_values(*sub)) bind(captured, probe, bindings, seen);
  }
}

std::vector<Tensor> Prober::evaluate(std::span<const Value* const> values, const Probe& probe,
                                     const runtime::Bindings& given) const {
  runtime::Bindings bindings = given;
  std::set<const Value*> seen;
  for (const Value* value : values) bind(value, probe, bindings, seen);
  runtime::RunOptions options;
  options.limits.max_tensor_bytes = int64_t{1} << 30;
  std::vector<Tensor> results;
  for (const runtime::RuntimeValue& result : runtime::evaluate(values, bindings, options)) {
    results.push_back(result.dense());
  }
  return results;
}

}  // namespace quern::passes
