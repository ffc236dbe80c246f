#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// Division truncates towards zero; of dimensions, only those without a remainder are tracked.
std::optional<Dim> divide(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) {
    if (b.constant() == 0) return std::nullopt;
    return b.constant() == -1 ? Dim(0) - a : Dim(a.constant() / b.constant());
  }
  return a.divided_by(b);
}

std::optional<Dim> modulo(const Dim& a, const Dim& b) {
  if (!a.is_constant() || !b.is_constant() || b.constant() == 0) return std::nullopt;
  if (b.constant() == -1) return Dim(0);
  const int64_t rest = a.constant() % b.constant();
  return Dim(rest != 0 && (rest < 0) != (b.constant() < 0) ? rest + b.constant() : rest);
}

// The sign of the dividend, as C's fmod.
std::optional<Dim> truncated_modulo(const Dim& a, const Dim& b) {
  if (!a.is_constant() || !b.is_constant() || b.constant() == 0) return std::nullopt;
  return Dim(b.constant() == -1 ? 0 : a.constant() % b.constant());
}

std::optional<Dim> known_bool(std::optional<bool> value) {
  return value ? std::optional<Dim>(Dim(*value ? 1 : 0)) : std::nullopt;
}

std::optional<Dim> binary(const std::string& op, const Dim& a, const Dim& b) {
  if (op == "Add") return a + b;
  if (op == "Sub") return a - b;
  if (op == "Mul") return a * b;
  if (op == "Div") return divide(a, b);
  if (op == "Mod") return modulo(a, b);
  if (op == "Min") return known_min(a, b);
  if (op == "Max") return known_max(a, b);
  if (op == "Equal") return known_bool(known_equal(a, b));
  if (op == "Less") return known_bool(known_less(a, b));
  if (op == "Greater") return known_bool(known_less(b, a));
  const auto negated = [](std::optional<bool> value) {
    return value ? std::optional<bool>(!*value) : std::nullopt;
  };
  if (op == "LessOrEqual") return known_bool(negated(known_less(b, a)));
  if (op == "GreaterOrEqual") return known_bool(negated(known_less(a, b)));
  if (!a.is_constant() || !b.is_constant()) return std::nullopt;
  const bool x = a.constant() != 0;
  const bool y = b.constant() != 0;
  if (op == "And") return Dim(x && y);
  if (op == "Or") return Dim(x || y);
  if (op == "Xor") return Dim(x != y);
  return std::nullopt;
}

// Shape arithmetic: integer elements are followed through the operators that exporters use for it.
void track_binary(InferContext& context) {
  if (context.input_count() != 2 || is_floating(context.dtype(0))) return;
  const std::string& op = context.node().op();
  const bool truncating = op == "Mod" && context.node().int_attribute("fmod", 0) != 0;
  track_elements(context, [&](const Dim& a, const Dim& b) {
    return truncating ? truncated_modulo(a, b) : binary(op, a, b);
  });
}

// All of them compute in one type, but Pow, whose exponent may be of another.
void check_one_type(const InferContext& context) {
  if (context.node().op() == "Pow") return;
  const DType first = context.dtype(0);
  for (size_t i = 1; i < context.input_count(); ++i) {
    if (!context.has_input(i) || first == DType::Undefined || context.dtype(i) == DType::Undefined) continue;
    if (context.dtype(i) != first) {
      context.fail(concat("inputs of ", to_string(first), " and ", to_string(context.dtype(i)),
                          "; they must be of one type"));
    }
  }
}

void infer_arithmetic(InferContext& context) {
  check_one_type(context);
  infer_broadcast(context);
  track_binary(context);
}

void infer_comparison(InferContext& context) {
  check_one_type(context);
  infer_broadcast_as(context, DType::Bool);
  track_binary(context);
}

// Before version 7 only the second input was broadcast.
void infer_comparison_before_7(InferContext& context) {
  context.set_output(0, DType::Bool, context.shape(0));
}

void infer_test(InferContext& context) {
  context.set_output(0, DType::Bool, context.shape(0));
  if (context.node().op() == "Not") {
    track_elements(context, [](const Dim& a) -> std::optional<Dim> {
      return a.is_constant() ? std::optional<Dim>(Dim(a.constant() == 0)) : std::nullopt;
    });
  }
}

void infer_unary(InferContext& context) {
  infer_same_as_input(context);
  const std::string& op = context.node().op();
  if (op == "Identity") {
    if (const auto elements = context.elements(0)) context.set_elements(0, *elements);
  } else if (op == "Neg" && !is_floating(context.dtype(0))) {
    track_elements(context, [](const Dim& a) { return std::optional<Dim>(Dim(0) - a); });
  } else if (op == "Abs" && !is_floating(context.dtype(0))) {
    track_elements(context, [](const Dim& a) -> std::optional<Dim> {
      if (a.is_constant()) return a.constant() < 0 ? Dim(0) - a : a;
      return a.lower_bound().value_or(-1) >= 0 ? std::optional<Dim>(a) : std::nullopt;
    });
  }
}

// PRelu broadcasts its slope to the input, never the other way.
void infer_first_input(InferContext& context) {
  context.set_output(0, context.input_type(0));
}

void infer_where(InferContext& context) {
  infer_broadcast_as(context, context.dtype(1));
  const auto condition = context.elements(0);
  const auto a = context.elements(1);
  const auto b = context.elements(2);
  if (!condition || !a || !b || is_floating(context.dtype(1))) return;
  const size_t count = std::max({condition->size(), a->size(), b->size()});
  std::vector<Dim> result;
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](const std::vector<Dim>& list) -> const Dim* {
      if (list.size() == count) return &list[i];
      return list.size() == 1 ? &list[0] : nullptr;
    };
    const Dim* which = at(*condition);
    const Dim* x = at(*a);
    const Dim* y = at(*b);
    if (which == nullptr || x == nullptr || y == nullptr) return;
    if (*x == *y) {
      result.push_back(*x);
      continue;
    }
    if (!which->is_constant()) return;
    result.push_back(which->constant() != 0 ? *x : *y);
  }
  context.set_elements(0, std::move(result));
}

void infer_clip(InferContext& context) {
  infer_same_as_input(context);
}

// Integers and booleans keep their tracked elements, as far as the new type can hold them.
void infer_cast_to(InferContext& context, DType to) {
  context.set_output(0, to, context.shape(0));
  if (is_floating(context.dtype(0))) return;
  if (to == DType::I64 || to == DType::I32) {
    if (const auto elements = context.elements(0)) context.set_elements(0, *elements);
  } else if (to == DType::Bool) {
    track_elements(context, [](const Dim& a) -> std::optional<Dim> {
      const std::optional<bool> zero = known_equal(a, Dim(0));
      return zero ? std::optional<Dim>(Dim(*zero ? 0 : 1)) : std::nullopt;
    });
  }
}

void infer_cast(InferContext& context) {
  infer_cast_to(context, dtype_from_onnx_number(context.node().int_attribute("to", 0)));
}

void infer_cast_like(InferContext& context) {
  infer_cast_to(context, context.dtype(1));
}

// Numbers under 10 hold any tensor's bits under another type of equal width.
void infer_bit_cast(InferContext& context) {
  context.set_output(0, dtype_from_onnx_number(context.node().int_attribute("to", 0)), context.shape(0));
}

void infer_dropout(InferContext& context) {
  context.set_output(0, context.input_type(0));
  // A mask of booleans since version 10, of the data's type before.
  context.set_output(1, context.node().opset() >= 10 ? DType::Bool : context.dtype(0), context.shape(0));
}

}  // namespace

void register_elementwise_schemas(SchemaTable& table) {
  for (const char* op :
       {"Abs",        "Acos",    "Acosh", "Asin",        "Asinh",          "Atan",     "Atanh",
        "BitwiseNot", "Ceil",    "Celu",  "Cos",         "Cosh",           "Elu",      "Erf",
        "Exp",        "Floor",   "Gelu",  "HardSigmoid", "HardSwish",      "Identity", "LeakyRelu",
        "Log",        "Mish",    "Neg",   "Reciprocal",  "Relu",           "Round",    "Selu",
        "Shrink",     "Sigmoid", "Sign",  "Sin",         "Sinh",           "Softplus", "Softsign",
        "Sqrt",       "Swish",   "Tan",   "Tanh",        "ThresholdedRelu"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_unary});
  }
  for (const char* op : {"Not", "IsNaN", "IsInf"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_test});
  }
  // Version 7 brought multidirectional broadcasting; the attributes `axis` and `broadcast` before it are
  // gone.
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow"}) {
    table.add({.op = op, .min_inputs = 2, .max_inputs = 2, .infer = infer_first_input});
    table.add({.op = op, .since = 7, .min_inputs = 2, .max_inputs = 2, .infer = infer_arithmetic});
  }
  for (const char* op : {"Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}) {
    table.add({.op = op, .min_inputs = 2, .max_inputs = 2, .infer = infer_arithmetic});
  }
  for (const char* op : {"Equal", "Less", "Greater", "And", "Or", "Xor"}) {
    table.add({.op = op, .min_inputs = 2, .max_inputs = 2, .infer = infer_comparison_before_7});
    table.add({.op = op, .since = 7, .min_inputs = 2, .max_inputs = 2, .infer = infer_comparison});
  }
  for (const char* op : {"LessOrEqual", "GreaterOrEqual"}) {
    table.add({.op = op, .min_inputs = 2, .max_inputs = 2, .infer = infer_comparison});
  }
  // Version 8 brought broadcasting; before it all shapes were equal, which is a case of it.
  for (const char* op : {"Min", "Max", "Sum", "Mean"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = kVariadic, .infer = infer_arithmetic});
  }
  table.add({.op = "PRelu", .min_inputs = 2, .max_inputs = 2, .infer = infer_first_input});
  table.add({.op = "Where", .min_inputs = 3, .max_inputs = 3, .infer = infer_where});
  // Bounds: attributes up to version 10, inputs from 11 on.
  table.add({.op = "Clip", .min_inputs = 1, .max_inputs = 3, .infer = infer_clip});
  table.add(
      {.op = "Cast", .min_inputs = 1, .max_inputs = 1, .required_attributes = {"to"}, .infer = infer_cast});
  table.add({.op = "CastLike", .min_inputs = 2, .max_inputs = 2, .infer = infer_cast_like});
  table.add({.op = "BitCast",
             .min_inputs = 1,
             .max_inputs = 1,
             .required_attributes = {"to"},
             .infer = infer_bit_cast});
  // ratio and mode: attributes up to version 11, inputs from 12 on.
  table.add({.op = "Dropout", .min_inputs = 1, .max_inputs = 3, .max_outputs = 2, .infer = infer_dropout});
}

}  // namespace quern
