// Element-wise operators, activations, reductions, and operators that only look at features differently.
#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/decoder/compiler.h"

namespace quern::runtime {
namespace {

int64_t width_of(const Shape& features) {
  int64_t width = 1;
  for (const int64_t dim : features) width *= dim;
  return width;
}

// The integers of a constant input, or of the attribute that older versions have in its place.
std::optional<std::vector<int64_t>> ints_of(const Node& node, size_t input, const std::string& attribute) {
  const Value* value = node.input(input);
  if (value != nullptr) {
    if (value->tensor() == nullptr) return std::nullopt;
    return value->tensor()->to_ints();
  }
  if (!attribute.empty() && node.has_attribute(attribute)) return node.ints_attribute(attribute, {});
  return std::nullopt;
}

// Axis 1 is the first feature dimension of a row; 0 and what is out of range become -1.
int64_t feature_axis(int64_t axis, const Shape& features) {
  const auto rank = static_cast<int64_t>(features.size()) + 1;
  if (axis < 0) axis += rank;
  return axis >= 1 && axis < rank ? axis - 1 : -1;
}

// A constant's elements for every feature of a row; nothing where it would make the row larger.
std::optional<std::vector<float>> spread(const std::vector<float>& elements, Shape shape,
                                         const Shape& features) {
  if (shape.size() == features.size() + 1 && shape.front() == 1) shape.erase(shape.begin());
  if (shape.size() > features.size()) return std::nullopt;
  shape.insert(shape.begin(), features.size() - shape.size(), 1);
  Shape strides = strides_of(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) {
      strides[i] = 0;
    } else if (shape[i] != features[i]) {
      return std::nullopt;
    }
  }
  std::vector<float> out(static_cast<size_t>(width_of(features)));
  for (size_t i = 0; i < out.size(); ++i) {
    auto rest = static_cast<int64_t>(i);
    int64_t index = 0;
    for (size_t d = features.size(); d-- > 0;) {
      index += rest % features[d] * strides[d];
      rest /= features[d];
    }
    out[i] = elements[static_cast<size_t>(index)];
  }
  return out;
}

}  // namespace

// One side of an operation whose result has these features. False: only the reference can do it.
bool EntryCompiler::row_side(const Node& node, const Value* value, const Shape& features, Side& side,
                             int64_t& group) {
  if (const RowValue* row = find_row(value)) {
    side.rows = row->at;
    if (row->features == features) return true;
    const int64_t width = row->at.width;
    Shape expected = features;
    expected.back() = 1;
    const bool by_group = row->features == expected;
    if (!by_group && width != 1) return false;
    side.kind = Side::Kind::Spread;
    group = by_group ? features.back() : width_of(features);
    return true;
  }
  if (value == nullptr || !value->is_constant())
    unsupported(node, "an input is neither of tokens nor constant");
  const std::vector<float>& elements = context_.constant(node, *value);
  if (elements.size() == 1) {
    side.kind = Side::Kind::Scalar;
    side.scalar = elements[0];
    return true;
  }
  auto vector = spread(elements, value->tensor()->shape(), features);
  if (!vector) return false;
  side.kind = Side::Kind::Vector;
  plan_.constants.push_back(std::move(*vector));
  side.vector = plan_.constants.back().data();
  return true;
}

bool EntryCompiler::try_binary(const Node& node, cpu::BinaryOp op) {
  if (node.inputs().size() != 2) return false;
  const RowValue* a = find_row(node.input(0));
  const RowValue* b = find_row(node.input(1));
  if (a == nullptr && b == nullptr) unsupported(node, "neither input is of tokens");
  const RowValue* larger = b == nullptr || (a != nullptr && a->at.width >= b->at.width) ? a : b;
  if (a != nullptr && b != nullptr && a->space != b->space) unsupported(node, "its inputs differ in rows");
  const RowValue result = *larger;
  Side sides[2];
  int64_t group = 0;
  for (size_t i = 0; i < 2; ++i) {
    if (!row_side(node, node.input(i), result.features, sides[i], group)) return false;
  }
  const Operand y = define(node.output(), result.space, result.features);
  add_step(std::make_unique<BinaryStep>(*plan_.kernels.rows, op, sides[0], sides[1], y, group), node,
           result.space);
  return true;
}

// activation(gate) * up, where it is not the epilogue of products.
bool EntryCompiler::emit_gated(const Node& node) {
  for (size_t i = 0; i < 2; ++i) {
    const Node* activation = node.input(i) != nullptr ? node.input(i)->producer() : nullptr;
    if (activation == nullptr || !deferred_.contains(activation)) continue;
    cpu::Unary op;
    unary_of(*activation, op);
    const RowValue gate = row_input(*activation, 0);
    const RowValue* up = find_row(node.input(1 - i));
    if (up != nullptr && up->features == gate.features && up->space == gate.space) {
      const Operand y = define(node.output(), gate.space, gate.features);
      add_step(std::make_unique<GatedStep>(*plan_.kernels.rows, op, gate.at, up->at, y), node, gate.space);
      return true;
    }
    emit_unary(*activation, op);
    deferred_.erase(activation);
  }
  return false;
}

void EntryCompiler::binary(const Node& node) {
  static const std::map<std::string, cpu::BinaryOp> kOps = {
      {"Add", cpu::BinaryOp::Add},    {"Sub", cpu::BinaryOp::Subtract}, {"Mul", cpu::BinaryOp::Multiply},
      {"Div", cpu::BinaryOp::Divide}, {"Max", cpu::BinaryOp::Maximum},  {"Min", cpu::BinaryOp::Minimum}};
  if (node.op() == "Mul" && emit_gated(node)) return;
  if (!try_binary(node, kOps.at(node.op()))) fallback(node);
}

void EntryCompiler::emit_unary(const Node& node, cpu::Unary op) {
  const RowValue x = row_input(node, 0);
  const Operand y = define(node.output(), x.space, x.features);
  add_step(std::make_unique<UnaryStep>(*plan_.kernels.rows, op, x.at, y), node, x.space);
}

void EntryCompiler::unary(const Node& node) {
  cpu::Unary op;
  if (!unary_of(node, op)) return fallback(node);
  const Node* user = sole_user(node.output());
  if (user != nullptr && user->is("Mul")) {
    row_input(node, 0);
    deferred_.insert(&node);
    return;
  }
  emit_unary(node, op);
}

void EntryCompiler::gelu(const Node& node) {
  unary(node);
}

void EntryCompiler::swish(const Node& node) {
  unary(node);
}

// Gelu of x + bias.
void EntryCompiler::biased_gelu(const Node& node) {
  if (node.input(1) == nullptr) return unary(node);
  const RowValue x = row_input(node, 0);
  Side bias;
  int64_t group = 0;
  if (!row_side(node, node.input(1), x.features, bias, group)) return fallback(node);
  const Operand sum = new_buffer(x.at.width, x.space);
  const Operand y = define(node.output(), x.space, x.features);
  Side whole;
  whole.rows = x.at;
  add_step(std::make_unique<BinaryStep>(*plan_.kernels.rows, cpu::BinaryOp::Add, whole, bias, sum, group),
           node, x.space);
  const cpu::Unary op = node.op() == "FastGelu" ? cpu::Unary::GeluTanh : cpu::Unary::Gelu;
  add_step(std::make_unique<UnaryStep>(*plan_.kernels.rows, op, sum, y), node, x.space);
}

void EntryCompiler::softmax(const Node& node) {
  const RowValue x = row_input(node, 0);
  const int64_t axis = feature_axis(node.int_attribute("axis", node.opset() >= 13 ? -1 : 1), x.features);
  // Before opset 13 everything from the axis on was one group.
  const bool last = axis == static_cast<int64_t>(x.features.size()) - 1;
  if (axis < 0) unsupported(node, "it works across tokens");
  if (!last && node.opset() >= 13) return fallback(node);
  int64_t size = 1;
  for (size_t i = static_cast<size_t>(axis); i < x.features.size(); ++i) size *= x.features[i];
  const Operand y = define(node.output(), x.space, x.features);
  add_step(std::make_unique<SoftmaxStep>(*plan_.kernels.rows, size, x.at, y), node, x.space);
}

void EntryCompiler::reduce(const Node& node) {
  static const std::map<std::string, cpu::ReduceOp> kOps = {{"ReduceMean", cpu::ReduceOp::Mean},
                                                            {"ReduceSum", cpu::ReduceOp::Sum},
                                                            {"ReduceMax", cpu::ReduceOp::Max},
                                                            {"ReduceMin", cpu::ReduceOp::Min},
                                                            {"ReduceSumSquare", cpu::ReduceOp::SumOfSquares}};
  const RowValue x = row_input(node, 0);
  const auto axes = ints_of(node, 1, "axes");
  if (!axes || axes->empty()) unsupported(node, "it reduces across tokens");
  const auto last = static_cast<int64_t>(x.features.size()) - 1;
  if (axes->size() != 1 || feature_axis(axes->front(), x.features) != last) return fallback(node);
  Shape features = x.features;
  const int64_t size = features.back();
  features.back() = 1;
  if (node.int_attribute("keepdims", 1) == 0) features.pop_back();
  const Operand y = define(node.output(), x.space, features);
  add_step(std::make_unique<ReduceStep>(*plan_.kernels.rows, kOps.at(node.op()), size, x.at, y), node,
           x.space);
}

void EntryCompiler::split(const Node& node) {
  const RowValue x = row_input(node, 0);
  if (feature_axis(node.int_attribute("axis", 0), x.features) < 0) unsupported(node, "it splits tokens");
  if (feature_axis(node.int_attribute("axis", 0), x.features) != 0) return fallback(node);
  const int64_t whole = x.features[0], inner = x.at.width / whole;
  std::vector<int64_t> sizes;
  if (const auto given = ints_of(node, 1, "split")) {
    sizes = *given;
  } else if (node.input(1) != nullptr) {
    unsupported(node, "its sizes are not constant");
  } else {
    const auto parts = static_cast<int64_t>(node.outputs().size()), part = (whole + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) sizes.push_back(std::min(part, whole - i * part));
  }
  int64_t offset = 0;
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    if (i >= sizes.size() || sizes[i] < 0 || sizes[i] > whole - offset) invalid(node, "its sizes do not fit");
    Shape features = x.features;
    features[0] = sizes[i];
    if (node.output(i) != nullptr) define_view(node.output(i), x, offset * inner, features);
    offset += sizes[i];
  }
}

void EntryCompiler::slice(const Node& node) {
  const RowValue x = row_input(node, 0);
  const auto starts = ints_of(node, 1, "starts"), ends = ints_of(node, 2, "ends");
  if (!starts || !ends || starts->size() != ends->size()) unsupported(node, "its bounds are not constant");
  std::vector<int64_t> axes(starts->size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  if (const auto given = ints_of(node, 3, "axes")) axes = *given;
  std::vector<int64_t> steps(starts->size(), 1);
  if (const auto given = ints_of(node, 4, "")) steps = *given;
  for (const int64_t axis : axes) {
    if (feature_axis(axis, x.features) < 0) unsupported(node, "it slices tokens");
  }
  if (axes.size() != 1 || steps.size() != 1 || steps[0] != 1 || feature_axis(axes[0], x.features) != 0) {
    return fallback(node);
  }
  const int64_t whole = x.features[0], inner = x.at.width / whole;
  const auto clamp = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + whole : i, 0, whole); };
  const int64_t begin = clamp((*starts)[0]), end = clamp((*ends)[0]);
  if (begin >= end) invalid(node, "nothing is left of the features");
  Shape features = x.features;
  features[0] = end - begin;
  define_view(node.output(), x, begin * inner, features);
}

void EntryCompiler::concat_features(const Node& node) {
  std::vector<RowValue> parts;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (find_row(node.input(i)) == nullptr) return fallback(node);
    parts.push_back(row_input(node, i));
  }
  const int64_t axis = feature_axis(node.int_attribute("axis", 0), parts.front().features);
  if (axis < 0) unsupported(node, "it joins tokens");
  if (axis != 0) return fallback(node);
  Shape features = parts.front().features;
  features[0] = 0;
  for (const RowValue& part : parts) {
    Shape rest = part.features;
    rest[0] = features[0];
    if (rest != features || part.space != parts.front().space)
      invalid(node, "its inputs do not fit together");
    features[0] += part.features[0];
  }
  const Operand y = define(node.output(), parts.front().space, features);
  int64_t offset = 0;
  for (const RowValue& part : parts) {
    add_step(std::make_unique<CopyStep>(part.at, Operand{y.buffer, y.offset + offset, part.at.width}), node,
             part.space);
    offset += part.at.width;
  }
}

// Reshape, Flatten, Squeeze and Unsqueeze: the same features in another shape, as long as tokens stay tokens.
void EntryCompiler::reshape(const Node& node) {
  const RowValue x = row_input(node, 0);
  Shape features;
  if (node.op() == "Flatten") {
    if (node.int_attribute("axis", 1) != 1) unsupported(node, "it moves features into tokens");
    features = {x.at.width};
  } else if (node.op() == "Reshape") {
    const auto target = ints_of(node, 1, "shape");
    if (!target || target->empty()) unsupported(node, "its shape is not constant");
    const bool allow_zero = node.int_attribute("allowzero", 0) != 0;
    int64_t known = 1, open = -1;
    for (size_t i = 1; i < target->size(); ++i) {
      int64_t dim = (*target)[i];
      if (dim == 0 && !allow_zero) dim = i - 1 < x.features.size() ? x.features[i - 1] : 0;
      if (dim == -1) {
        open = static_cast<int64_t>(i) - 1;
      } else {
        known *= std::max<int64_t>(dim, 0);
      }
      features.push_back(dim);
    }
    const bool keeps_tokens = (*target)[0] == 0 && !allow_zero;
    if (open >= 0 && known > 0 && keeps_tokens) features[static_cast<size_t>(open)] = x.at.width / known;
    if (!keeps_tokens && ((*target)[0] != -1 || open >= 0))
      unsupported(node, "it moves features into tokens");
  } else {
    features = x.features;
    const auto axes = ints_of(node, 1, "axes");
    if (!axes) unsupported(node, "its axes are not constant");
    const bool insert = node.op() == "Unsqueeze";
    const auto rank = static_cast<int64_t>(features.size() + 1 + (insert ? axes->size() : 0));
    std::vector<int64_t> sorted = *axes;
    for (int64_t& axis : sorted) axis += axis < 0 ? rank : 0;
    std::sort(sorted.begin(), sorted.end());
    if (!insert) std::reverse(sorted.begin(), sorted.end());
    for (const int64_t axis : sorted) {
      const auto most = static_cast<int64_t>(features.size()) + (insert ? 1 : 0);
      if (axis < 1 || axis > most) unsupported(node, "it changes the dimension of tokens");
      if (insert) {
        features.insert(features.begin() + (axis - 1), 1);
      } else {
        features.erase(features.begin() + (axis - 1));
      }
    }
  }
  if (width_of(features) != x.at.width) unsupported(node, "it moves features into tokens");
  define_view(node.output(), x, 0, features);
}

void EntryCompiler::identity(const Node& node) {
  if (node.op() == "Cast" && node.int_attribute("to", 1) != 1) unsupported(node, "decoders compute in f32");
  const RowValue x = row_input(node, 0);
  define_view(node.output(), x, 0, x.features);
}

}  // namespace quern::runtime
