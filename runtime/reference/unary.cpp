// Element-wise operators of one input.
#include <cmath>

#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// y = op(x), computed in float, or in double for f64; for operators that know floating types alone.
template <class Op>
void run_float(KernelContext& context) {
  const Tensor& x = context.input(0);
  if (!is_floating(x.dtype())) context.unsupported("the input is ", to_string(x.dtype()));
  with_computing_type(x.dtype(), [&]<class C>() {
    if constexpr (std::is_floating_point_v<C>) {
      const Elements<C> in(x);
      std::vector<C> out(in.size());
      const Op op{};
      for (size_t i = 0; i < out.size(); ++i) out[i] = op(in[static_cast<int64_t>(i)]);
      context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
    }
  });
}

#define QUERN_FLOAT_OP(Name, expression) \
  struct Name {                          \
    template <class C>                   \
    C operator()(C x) const {            \
      return expression;                 \
    }                                    \
  };
QUERN_FLOAT_OP(Sqrt, std::sqrt(x))
QUERN_FLOAT_OP(Exp, std::exp(x))
QUERN_FLOAT_OP(Erf, std::erf(x))
QUERN_FLOAT_OP(Tanh, std::tanh(x))
QUERN_FLOAT_OP(Sin, std::sin(x))
QUERN_FLOAT_OP(Cos, std::cos(x))
// Written so that exp never overflows to infinity over infinity.
QUERN_FLOAT_OP(Sigmoid, x >= 0 ? C{1} / (C{1} + std::exp(-x)) : std::exp(x) / (C{1} + std::exp(x)))
#undef QUERN_FLOAT_OP

}  // namespace

void register_unary(KernelTable& table) {
  add_reference(table, {"Sqrt"}, run_float<Sqrt>);
  add_reference(table, {"Exp"}, run_float<Exp>);
  add_reference(table, {"Erf"}, run_float<Erf>);
  add_reference(table, {"Tanh"}, run_float<Tanh>);
  add_reference(table, {"Sin"}, run_float<Sin>);
  add_reference(table, {"Cos"}, run_float<Cos>);
  add_reference(table, {"Sigmoid"}, run_float<Sigmoid>);
}

}  // namespace quern::runtime::reference
