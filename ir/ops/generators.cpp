// Operators that make tensors out of parameters, or out of what they find in one.
#include <algorithm>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

std::vector<Dim> to_dims(const std::vector<int64_t>& values) {
  return {values.begin(), values.end()};
}

std::optional<std::vector<Dim>> small_elements(const Tensor& tensor) {
  if (!(is_integer(tensor.dtype()) || tensor.dtype() == DType::Bool) || tensor.rank() > 1 ||
      tensor.size() > static_cast<int64_t>(kMaxTrackedElements)) {
    return std::nullopt;
  }
  return to_dims(tensor.to_ints());
}

void infer_constant(InferContext& context) {
  const Node& node = context.node();
  if (const Tensor* value = node.attribute<Tensor>("value")) {
    context.set_output(0, value->dtype(), SymShape(value->shape().begin(), value->shape().end()));
    if (auto elements = small_elements(*value)) context.set_elements(0, std::move(*elements));
  } else if (node.has_attribute("value_int")) {
    context.set_output(0, DType::I64, SymShape{});
    context.set_elements(0, {Dim(node.int_attribute("value_int", 0))});
  } else if (node.has_attribute("value_ints")) {
    const std::vector<int64_t> values = node.ints_attribute("value_ints", {});
    context.set_output(0, DType::I64, SymShape{Dim(static_cast<int64_t>(values.size()))});
    context.set_elements(0, to_dims(values));
  } else if (node.has_attribute("value_float")) {
    context.set_output(0, DType::F32, SymShape{});
  } else if (node.has_attribute("value_floats")) {
    const auto count = static_cast<int64_t>(node.floats_attribute("value_floats", {}).size());
    context.set_output(0, DType::F32, SymShape{Dim(count)});
  } else if (node.has_attribute("value_string")) {
    context.set_output(0, DType::String, SymShape{});
  } else if (const auto* strings = node.attribute<std::vector<std::string>>("value_strings")) {
    context.set_output(0, DType::String, SymShape{Dim(static_cast<int64_t>(strings->size()))});
  }
}

// The shape that the elements of an input spell out.
std::optional<SymShape> shape_from(const InferContext& context, size_t input) {
  if (const auto elements = context.elements(input)) return *elements;
  const std::optional<SymShape>& of_shape = context.shape(input);
  if (of_shape && of_shape->size() == 1 && of_shape->front().is_constant() &&
      of_shape->front().constant() >= 0 && of_shape->front().constant() <= 64) {
    return unknown_dims(static_cast<size_t>(of_shape->front().constant()));
  }
  return std::nullopt;
}

void infer_constant_of_shape(InferContext& context) {
  const Tensor* value = context.node().attribute<Tensor>("value");
  const std::optional<SymShape> shape = shape_from(context, 0);
  context.set_output(0, value ? value->dtype() : DType::F32, shape);
  if (value == nullptr || value->size() != 1 || !shape || shape->size() > 1) return;
  const std::optional<int64_t> count = product(*shape).as_constant();
  if (!count || *count < 0 || *count > static_cast<int64_t>(kMaxTrackedElements)) return;
  if (const auto element = small_elements(*value)) {
    context.set_elements(0, std::vector<Dim>(static_cast<size_t>(*count), element->front()));
  }
}

void infer_range(InferContext& context) {
  const DType dtype = context.dtype(0);
  const auto start = context.elements(0);
  const auto limit = context.elements(1);
  const auto delta = context.elements(2);
  Dim count = Dim::fresh();
  if (start && limit && delta && start->size() == 1 && limit->size() == 1 && delta->size() == 1) {
    const std::optional<int64_t> step = delta->front().as_constant();
    const Dim distance = limit->front() - start->front();
    if (step == 0) context.fail("the step is 0");
    if (step == 1) {
      if (const std::optional<Dim> known = known_max(distance, Dim(0))) count = *known;
    } else if (step && distance.is_constant()) {
      const int64_t span = distance.constant();
      const bool forward = (span > 0) == (*step > 0);
      count = Dim(span == 0 || !forward ? 0 : (span - (*step > 0 ? 1 : -1)) / *step + 1);
    }
  }
  const std::optional<int64_t> known = count.as_constant();
  context.set_output(0, dtype, SymShape{count});
  if (!known || *known > static_cast<int64_t>(kMaxTrackedElements) || is_floating(dtype)) return;
  std::vector<Dim> elements;
  for (int64_t i = 0; i < *known; ++i) elements.push_back(start->front() + delta->front() * Dim(i));
  context.set_elements(0, std::move(elements));
}

void infer_eye_like(InferContext& context) {
  const int64_t number = context.node().int_attribute("dtype", 0);
  context.set_output(0, number != 0 ? dtype_from_onnx_number(number) : context.dtype(0), context.shape(0));
}

void infer_random(InferContext& context) {
  const int64_t number = context.node().int_attribute("dtype", 1);
  const std::vector<int64_t> shape = context.node().ints_attribute("shape", {});
  context.set_output(0, dtype_from_onnx_number(number), to_dims(shape));
}

void infer_multinomial(InferContext& context) {
  const DType dtype = dtype_from_onnx_number(context.node().int_attribute("dtype", 6));
  const Dim samples(context.node().int_attribute("sample_size", 1));
  context.set_output(
      0, dtype,
      SymShape{context.shape(0) && !context.shape(0)->empty() ? context.shape(0)->front() : Dim::fresh(),
               samples});
}

void infer_one_hot(InferContext& context) {
  if (!context.shape(0)) {
    context.set_output(0, context.dtype(2), std::nullopt);
    return;
  }
  SymShape shape = *context.shape(0);
  const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", -1),
                                      static_cast<int64_t>(shape.size()) + 1);
  const auto depth = context.elements(1);
  shape.insert(shape.begin() + axis, depth && depth->size() == 1 ? depth->front() : Dim::fresh());
  context.set_output(0, context.dtype(2), std::move(shape));
}

void infer_non_zero(InferContext& context) {
  const Dim rank = context.shape(0) ? Dim(static_cast<int64_t>(context.shape(0)->size())) : Dim::fresh();
  // A scalar counts as a vector of one element.
  context.set_output(0, DType::I64, SymShape{rank == Dim(0) ? Dim(1) : rank, Dim::fresh()});
}

void infer_unique(InferContext& context) {
  const Dim count = Dim::fresh();
  std::optional<SymShape> shape = SymShape{count};
  Dim inverse = context.shape(0) ? product(*context.shape(0)) : Dim::fresh();
  if (context.node().has_attribute("axis")) {
    shape = context.shape(0);
    inverse = Dim::fresh();
    if (shape) {
      const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", 0),
                                          static_cast<int64_t>(shape->size()));
      inverse = (*shape)[static_cast<size_t>(axis)];
      (*shape)[static_cast<size_t>(axis)] = count;
    }
  }
  context.set_output(0, context.dtype(0), shape);
  context.set_output(1, DType::I64, SymShape{count});
  context.set_output(2, DType::I64, SymShape{inverse});
  context.set_output(3, DType::I64, SymShape{count});
}

}  // namespace

void register_generator_schemas(SchemaTable& table) {
  table.add({.op = "Constant", .min_inputs = 0, .max_inputs = 0, .infer = infer_constant});
  table.add({.op = "ConstantOfShape", .min_inputs = 1, .max_inputs = 1, .infer = infer_constant_of_shape});
  table.add({.op = "Range", .min_inputs = 3, .max_inputs = 3, .infer = infer_range});
  for (const char* op : {"EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_eye_like});
  }
  for (const char* op : {"RandomNormal", "RandomUniform"}) {
    table.add({.op = op, .required_attributes = {"shape"}, .infer = infer_random});
  }
  table.add({.op = "Multinomial", .min_inputs = 1, .max_inputs = 1, .infer = infer_multinomial});
  table.add({.op = "OneHot", .min_inputs = 3, .max_inputs = 3, .infer = infer_one_hot});
  table.add({.op = "NonZero", .min_inputs = 1, .max_inputs = 1, .infer = infer_non_zero});
  table.add({.op = "Unique", .min_inputs = 1, .max_inputs = 1, .max_outputs = 4, .infer = infer_unique});
}

}  // namespace quern
