#include "tests/runtime/reference/inference_check.h"

#include "ir/rewriter.h"
#include "ir/shape_inference.h"

namespace quern::test {
namespace {

using runtime::NamedValues;
using runtime::RuntimeValue;
using Symbols = std::map<std::string, Dim>;

std::string check_shape(const SymShape& inferred, const Shape& actual, const Symbols& symbols) {
  const std::string both = concat(to_string(inferred), " inferred, ", to_string(actual), " computed");
  if (inferred.size() != actual.size()) return "rank: " + both;
  for (size_t i = 0; i < actual.size(); ++i) {
    const Dim known = inferred[i].substitute(symbols);
    if (known.is_constant() && known.constant() != actual[i]) return "shape: " + both;
  }
  return "";
}

bool is_parameter(const Tensor& tensor) {
  return (is_integer(tensor.dtype()) || tensor.dtype() == DType::Bool) && tensor.rank() <= 1 &&
         tensor.size() <= 16;
}

// The graph anew, without what was inferred before, its inputs constants or of the type that `type_of` gives.
template <class IsConstant, class TypeOf>
std::string infer_and_check(const Graph& graph, const NamedValues& inputs, const NamedValues& outputs,
                            const Symbols& symbols, IsConstant is_constant, TypeOf type_of) {
  const std::unique_ptr<Graph> copy = graph.clone();
  Rewriter rewriter(*copy);
  for (Value* value : copy->values()) {
    if (value->producer() != nullptr) rewriter.set_type(value, {});
  }
  for (Value* input : std::vector<Value*>(copy->inputs())) {
    const auto given = inputs.find(input->name());
    if (given == inputs.end() || given->second.tensor() == nullptr) continue;
    const Tensor& tensor = *given->second.tensor();
    if (is_constant(tensor)) {
      rewriter.replace(input, rewriter.add_constant(tensor, input->name() + ".value"));
      rewriter.remove_input(input);
    } else {
      rewriter.set_type(input, type_of(input->name(), tensor));
    }
  }
  rewriter.commit();
  infer_shapes(*copy);
  for (const GraphOutput& output : copy->outputs()) {
    const std::string problem = check_value(*output.value, outputs.at(output.name), symbols);
    if (!problem.empty()) return concat("output '", output.name, "': ", problem);
  }
  return "";
}

}  // namespace

std::string check_value(const Value& value, const RuntimeValue& actual, const Symbols& symbols) {
  const ValueType& type = value.type();
  if (!actual.present()) return "";
  if (type.dtype != DType::Undefined && actual.dtype() != DType::Undefined && type.dtype != actual.dtype()) {
    return concat("dtype: ", to_string(type.dtype), " inferred, ", to_string(actual.dtype()), " computed");
  }
  std::vector<Tensor> tensors;
  if (actual.is_sequence()) {
    tensors = actual.sequence().tensors;
  } else {
    tensors = {actual.dense()};
  }
  for (const Tensor& tensor : tensors) {
    if (!type.shape) continue;
    const std::string problem = check_shape(*type.shape, tensor.shape(), symbols);
    if (!problem.empty()) return problem;
  }
  if (!value.elements() || actual.is_sequence()) return "";
  if (static_cast<int64_t>(value.elements()->size()) != tensors[0].size())
    return "number of tracked elements";
  for (int64_t i = 0; i < tensors[0].size(); ++i) {
    const Dim known = (*value.elements())[static_cast<size_t>(i)].substitute(symbols);
    if (known.is_constant() && known.constant() != tensors[0].int_at(i)) {
      return concat("element ", i, ": ", known.constant(), " tracked, ", tensors[0].int_at(i), " computed");
    }
  }
  return "";
}

std::string check_inference(const Graph& graph, const NamedValues& inputs, const NamedValues& outputs) {
  for (const GraphOutput& output : graph.outputs()) {
    const std::string problem = check_value(*output.value, outputs.at(output.name), {});
    if (!problem.empty()) return concat("as stated: output '", output.name, "': ", problem);
  }
  Symbols symbols;
  const auto symbolic = [&](const std::string& name, const Tensor& tensor) {
    ValueType type{tensor.dtype(), SymShape{}};
    for (size_t i = 0; i < tensor.shape().size(); ++i) {
      const std::string symbol = concat(name, "_", i);
      symbols[symbol] = Dim(tensor.shape()[i]);
      type.shape->push_back(Dim::symbol(symbol));
    }
    return type;
  };
  // The symbols' values are collected first: check_value needs them all.
  for (const auto& [name, value] : inputs) {
    if (value.tensor() != nullptr) symbolic(name, *value.tensor());
  }
  std::string problem = infer_and_check(graph, inputs, outputs, symbols, is_parameter, symbolic);
  if (!problem.empty()) return "symbolic: " + problem;
  problem = infer_and_check(
      graph, inputs, outputs, {}, [](const Tensor&) { return true; },
      [](const std::string&, const Tensor&) { return ValueType{}; });
  return problem.empty() ? "" : "with constants: " + problem;
}

}  // namespace quern::test
