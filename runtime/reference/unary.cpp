// Element-wise operators of one input.
#include <cmath>
#include <limits>

#include "runtime/reference/functions.h"
#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// y = op(x), computed in float, or in double for f64; for operators that know floating types alone. An Op
// that takes parameters is made from the node.
template <class Op>
void run_float(KernelContext& context) {
  const Tensor& x = context.input(0);
  if (!is_floating(x.dtype())) context.unsupported("the input is ", to_string(x.dtype()));
  with_computing_type(x.dtype(), [&]<class C>() {
    if constexpr (std::is_floating_point_v<C>) {
      const Elements<C> in(x);
      std::vector<C> out(in.size());
      const Op op(context.node());
      for (size_t i = 0; i < out.size(); ++i) out[i] = op(in[static_cast<int64_t>(i)]);
      context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
    }
  });
}

// The same for operators that know integers too.
template <class Op>
void run_number(KernelContext& context) {
  const Tensor& x = context.input(0);
  with_computing_type(x.dtype(), [&]<class C>() {
    const Elements<C> in(x);
    std::vector<C> out(in.size());
    const Op op(context.node());
    for (size_t i = 0; i < out.size(); ++i) out[i] = op(in[static_cast<int64_t>(i)]);
    context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
  });
}

// y = test(x), a bool.
template <class Op>
void run_test(KernelContext& context) {
  const Tensor& x = context.input(0);
  with_computing_type(x.dtype(), [&]<class C>() {
    const Elements<C> in(x);
    Tensor out = context.make(DType::Bool, x.shape());
    const std::span<uint8_t> flags = out.mutable_data<uint8_t>();
    const Op op(context.node());
    for (size_t i = 0; i < flags.size(); ++i) flags[i] = op(in[static_cast<int64_t>(i)]) ? 1 : 0;
    context.set_output(0, std::move(out));
  });
}

// An operator without parameters.
#define QUERN_OP(Name, expression) \
  struct Name {                    \
    explicit Name(const Node&) {}  \
    template <class C>             \
    C operator()(C x) const {      \
      return expression;           \
    }                              \
  };
QUERN_OP(Acos, std::acos(x))
QUERN_OP(Acosh, std::acosh(x))
QUERN_OP(Asin, std::asin(x))
QUERN_OP(Asinh, std::asinh(x))
QUERN_OP(Atan, std::atan(x))
QUERN_OP(Atanh, std::atanh(x))
QUERN_OP(Ceil, std::ceil(x))
QUERN_OP(Cos, std::cos(x))
QUERN_OP(Cosh, std::cosh(x))
QUERN_OP(Erf, std::erf(x))
QUERN_OP(Exp, std::exp(x))
QUERN_OP(Floor, std::floor(x))
QUERN_OP(HardSwish, x* std::max(C{0}, std::min(C{1}, x / C{6} + C{0.5})))
QUERN_OP(Log, std::log(x))
QUERN_OP(Mish, x* std::tanh(softplus(x)))
QUERN_OP(Reciprocal, C{1} / x)
QUERN_OP(Round, std::nearbyint(x))
QUERN_OP(Sigmoid, sigmoid(x))
QUERN_OP(Sin, std::sin(x))
QUERN_OP(Sinh, std::sinh(x))
QUERN_OP(Softplus, softplus(x))
QUERN_OP(Softsign, x / (C{1} + std::abs(x)))
QUERN_OP(Sqrt, std::sqrt(x))
QUERN_OP(Tan, std::tan(x))
QUERN_OP(Tanh, std::tanh(x))
QUERN_OP(Relu, x > C{0} ? x : (x != x ? x : C{0}))
QUERN_OP(Neg, static_cast<C>(C{0} - x))
QUERN_OP(Sign, x > C{0} ? C{1} : (x < C{0} ? static_cast<C>(C{0} - C{1}) : (x != x ? x : C{0})))
#undef QUERN_OP

// Negating the least integer wraps; unsigned arithmetic makes that defined.
template <>
int64_t Neg::operator()(int64_t x) const {
  return static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(x));
}
// Not 0 - x, which would lose the sign of zero.
template <>
float Neg::operator()(float x) const {
  return -x;
}
template <>
double Neg::operator()(double x) const {
  return -x;
}

struct Abs {
  explicit Abs(const Node&) {}
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_floating_point_v<C>) return std::fabs(x);
    if constexpr (std::is_same_v<C, int64_t>) {
      return x < 0 ? static_cast<int64_t>(uint64_t{0} - static_cast<uint64_t>(x)) : x;
    }
    return x;
  }
};

struct BitwiseNot {
  explicit BitwiseNot(const Node&) {}
  template <class C>
  C operator()(C x) const {
    if constexpr (std::is_integral_v<C>) return static_cast<C>(~x);
    return x;
  }
};

// With parameters alpha, beta, ... from the node's attributes.
struct Parameters {
  Parameters(const Node& node, float default_alpha, float default_beta = 0, const char* second = "beta")
      : alpha(node.float_attribute("alpha", default_alpha)),
        beta(node.float_attribute(second, default_beta)) {}
  float alpha;
  float beta;
};

struct Celu : Parameters {
  explicit Celu(const Node& node) : Parameters(node, 1.0F) {}
  template <class C>
  C operator()(C x) const {
    return std::max(C{0}, x) + std::min(C{0}, C{alpha} * (std::exp(x / C{alpha}) - C{1}));
  }
};
struct Elu : Parameters {
  explicit Elu(const Node& node) : Parameters(node, 1.0F) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? C{alpha} * (std::exp(x) - C{1}) : x;
  }
};
struct HardSigmoid : Parameters {
  explicit HardSigmoid(const Node& node) : Parameters(node, 0.2F, 0.5F) {}
  template <class C>
  C operator()(C x) const {
    return std::max(C{0}, std::min(C{1}, C{alpha} * x + C{beta}));
  }
};
struct LeakyRelu : Parameters {
  explicit LeakyRelu(const Node& node) : Parameters(node, 0.01F) {}
  template <class C>
  C operator()(C x) const {
    return x < 0 ? C{alpha} * x : x;
  }
};
struct Selu : Parameters {
  explicit Selu(const Node& node)
      : Parameters(node, 1.67326319217681884765625F, 1.05070102214813232421875F, "gamma") {}
  template <class C>
  C operator()(C x) const {
    return C{beta} * (x <= 0 ? C{alpha} * (std::exp(x) - C{1}) : x);
  }
};
struct Swish : Parameters {
  explicit Swish(const Node& node) : Parameters(node, 1.0F) {}
  template <class C>
  C operator()(C x) const {
    return x * sigmoid(C{alpha} * x);
  }
};
struct ThresholdedRelu : Parameters {
  explicit ThresholdedRelu(const Node& node) : Parameters(node, 1.0F) {}
  template <class C>
  C operator()(C x) const {
    return x > C{alpha} ? x : C{0};
  }
};

struct Gelu {
  explicit Gelu(const Node& node) : tanh_form(node.string_attribute("approximate", "none") == "tanh") {}
  template <class C>
  C operator()(C x) const {
    return tanh_form ? gelu_tanh(x) : gelu(x);
  }
  bool tanh_form;
};

struct Shrink {
  explicit Shrink(const Node& node)
      : bias(node.float_attribute("bias", 0.0F)), lambda(node.float_attribute("lambd", 0.5F)) {}
  template <class C>
  C operator()(C x) const {
    const auto value = static_cast<double>(x);
    return static_cast<C>(value < -lambda ? value + bias : value > lambda ? value - bias : 0.0);
  }
  double bias;
  double lambda;
};

struct Not {
  explicit Not(const Node&) {}
  template <class C>
  bool operator()(C x) const {
    return x == C{0};
  }
};
struct IsNaN {
  explicit IsNaN(const Node&) {}
  template <class C>
  bool operator()(C x) const {
    return x != x;
  }
};
struct IsInf {
  explicit IsInf(const Node& node)
      : negative(node.int_attribute("detect_negative", 1) != 0),
        positive(node.int_attribute("detect_positive", 1) != 0) {}
  template <class C>
  bool operator()(C x) const {
    if constexpr (std::is_floating_point_v<C>) return std::isinf(x) && (x < 0 ? negative : positive);
    return false;
  }
  bool negative;
  bool positive;
};

void run_identity(KernelContext& context) {
  context.set_output(0, context.value(0));
}

}  // namespace

void register_unary(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run) { add_reference(table, {op}, run); };
  add("Acos", run_float<Acos>);
  add("Acosh", run_float<Acosh>);
  add("Asin", run_float<Asin>);
  add("Asinh", run_float<Asinh>);
  add("Atan", run_float<Atan>);
  add("Atanh", run_float<Atanh>);
  add("Ceil", run_float<Ceil>);
  add("Celu", run_float<Celu>);
  add("Cos", run_float<Cos>);
  add("Cosh", run_float<Cosh>);
  add("Elu", run_float<Elu>);
  add("Erf", run_float<Erf>);
  add("Exp", run_float<Exp>);
  add("Floor", run_float<Floor>);
  add("Gelu", run_float<Gelu>);
  add("HardSigmoid", run_float<HardSigmoid>);
  add("HardSwish", run_float<HardSwish>);
  add("LeakyRelu", run_float<LeakyRelu>);
  add("Log", run_float<Log>);
  add("Mish", run_float<Mish>);
  add("Reciprocal", run_float<Reciprocal>);
  add("Round", run_float<Round>);
  add("Selu", run_float<Selu>);
  add("Sigmoid", run_float<Sigmoid>);
  add("Sin", run_float<Sin>);
  add("Sinh", run_float<Sinh>);
  add("Softplus", run_float<Softplus>);
  add("Softsign", run_float<Softsign>);
  add("Sqrt", run_float<Sqrt>);
  add("Swish", run_float<Swish>);
  add("Tan", run_float<Tan>);
  add("Tanh", run_float<Tanh>);
  add("ThresholdedRelu", run_float<ThresholdedRelu>);
  add("Abs", run_number<Abs>);
  add("BitwiseNot", run_number<BitwiseNot>);
  add("Neg", run_number<Neg>);
  add("Relu", run_number<Relu>);
  add("Shrink", run_number<Shrink>);
  add("Sign", run_number<Sign>);
  add("Not", run_test<Not>);
  add("IsNaN", run_test<IsNaN>);
  add("IsInf", run_test<IsInf>);
  add("Identity", run_identity);
}

}  // namespace quern::runtime::reference
