// com.microsoft: mixtures of experts (Shazeer et al., arXiv 1701.06538). Only the experts that a token is
// routed to are computed.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "runtime/reference/functions.h"
#include "runtime/reference/packed_codes.h"
#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

using Matrix = std::vector<double>;  // [rows, columns]

// One expert's layers: y = act(W1 x + b1) [* (W3 x + b3)], out = W2 y + b2. Biases may be empty.
struct Expert {
  Matrix w1, w2, w3;
  std::vector<double> b1, b2, b3;
};

struct Routing {
  std::vector<int64_t> experts;
  std::vector<double> weights;
};

// The k greatest logits, ties to the lower index. `over_all`: softmax over all experts, renormalised over the
// chosen ones only if asked; else softmax over the chosen alone.
Routing route(const double* logits, int64_t count, int64_t k, bool over_all, bool renormalize) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  Routing routing;
  routing.experts.assign(order.begin(), order.begin() + k);
  const double most = logits[order.front()];
  double all = 0, chosen = 0;
  for (int64_t i = 0; i < count; ++i) all += std::exp(logits[i] - most);
  for (const int64_t e : routing.experts) chosen += std::exp(logits[e] - most);
  const double total = over_all && !renormalize ? all : chosen;
  for (const int64_t e : routing.experts) routing.weights.push_back(std::exp(logits[e] - most) / total);
  return routing;
}

std::vector<double> apply(const KernelContext& context, const Matrix& w, const std::vector<double>& bias,
                          const std::vector<double>& x) {
  const size_t columns = x.size();
  std::vector<double> y(columns == 0 ? 0 : w.size() / columns);
  if (!bias.empty() && bias.size() != y.size())
    context.fail("a bias of ", bias.size(), " for ", y.size(), " features of an expert");
  for (size_t row = 0; row < y.size(); ++row) {
    double sum = bias.empty() ? 0 : bias[row];
    for (size_t i = 0; i < columns; ++i) sum += w[row * columns + i] * x[i];
    y[row] = sum;
  }
  return y;
}

struct MoeSpec {
  int64_t k = 1;
  std::string activation = "relu";
  int64_t fusion = 0;  // of swiglu: 0 gate and linear apart, 1 interleaved rows, 2 one after the other
  double alpha = 1.0, beta = 0.0, limit = INFINITY;
  bool over_all = true;
  bool renormalize = false;

  explicit MoeSpec(const KernelContext& context) {
    const Node& node = context.node();
    k = node.int_attribute("k", 1);
    activation = node.string_attribute("activation_type", "relu");
    fusion = node.int_attribute("swiglu_fusion", 0);
    alpha = node.float_attribute("activation_alpha", 1.0F);
    beta = node.float_attribute("activation_beta", 0.0F);
    if (node.has_attribute("swiglu_limit")) limit = node.float_attribute("swiglu_limit", 0);
    renormalize = node.int_attribute("normalize_routing_weights", 0) != 0;
  }

  double activate(const KernelContext& context, double x) const {
    if (activation == "relu") return std::max(x, 0.0);
    if (activation == "gelu") return gelu_tanh(x);
    if (activation == "silu") return x * sigmoid(x);
    if (activation == "identity") return x;
    context.unsupported("activation_type '", activation, "'");
  }
  // G * sigmoid(alpha G) * (L + beta), both clamped.
  double swiglu(double gate, double linear) const {
    gate = std::min(gate, limit);
    linear = std::clamp(linear, -limit, limit);
    return gate * sigmoid(alpha * gate) * (linear + beta);
  }
};

std::vector<double> run_expert(const KernelContext& context, const MoeSpec& spec, const Expert& expert,
                               const std::vector<double>& x) {
  std::vector<double> hidden = apply(context, expert.w1, expert.b1, x);
  std::vector<double> linear;
  if (!expert.w3.empty()) linear = apply(context, expert.w3, expert.b3, x);
  if (!linear.empty() && linear.size() != hidden.size())
    context.fail("its first and third layers give ", hidden.size(), " and ", linear.size(), " features");
  if (spec.activation != "swiglu") {
    for (size_t i = 0; i < hidden.size(); ++i) {
      hidden[i] = spec.activate(context, hidden[i]) * (linear.empty() ? 1.0 : linear[i]);
    }
    return apply(context, expert.w2, expert.b2, hidden);
  }
  const size_t size = spec.fusion == 0 ? hidden.size() : hidden.size() / 2;
  std::vector<double> gated(size);
  for (size_t i = 0; i < size; ++i) {
    const double gate = spec.fusion == 1 ? hidden[2 * i] : hidden[i];
    const double rest = spec.fusion == 0   ? linear.at(i)
                        : spec.fusion == 1 ? hidden[2 * i + 1]
                                           : hidden[size + i];
    gated[i] = spec.swiglu(gate, rest);
  }
  return apply(context, expert.w2, expert.b2, gated);
}

// x [..., hidden] by `expert_of`, which is asked once for each expert that is needed.
void run_mixture(KernelContext& context, const MoeSpec& spec, int64_t experts,
                 const std::function<Expert(int64_t)>& expert_of) {
  const Tensor& x = context.input(0);
  const Tensor& router = context.input(1);
  if (x.rank() < 1 || experts < 1 || spec.k < 1 || spec.k > experts) context.fail("k is ", spec.k);
  const int64_t width = x.dim(-1);
  const int64_t tokens = width == 0 ? 0 : x.size() / width;
  if (router.size() != tokens * experts) {
    context.fail("router_probs of shape ", to_string(router.shape()), " for ", tokens, " tokens and ",
                 experts, " experts");
  }
  if (spec.activation == "swiglu" && spec.fusion == 0 &&
      !context.has_input(context.node().op() == "MoE" ? 6 : 8)) {
    context.fail("swiglu without fusion needs the third layer");
  }
  const Elements<double> in(x), logits(router);
  std::vector<std::vector<std::pair<int64_t, double>>> tokens_of(static_cast<size_t>(experts));
  for (int64_t t = 0; t < tokens; ++t) {
    const Routing routing =
        route(logits.data() + t * experts, experts, spec.k, spec.over_all, spec.renormalize);
    for (size_t i = 0; i < routing.experts.size(); ++i) {
      tokens_of[static_cast<size_t>(routing.experts[i])].emplace_back(t, routing.weights[i]);
    }
  }
  std::vector<double> out = make_buffer<double>(context, x.shape());
  for (int64_t e = 0; e < experts; ++e) {
    if (tokens_of[static_cast<size_t>(e)].empty()) continue;
    const Expert expert = expert_of(e);
    for (const auto& [token, weight] : tokens_of[static_cast<size_t>(e)]) {
      const double* row = in.data() + token * width;
      const std::vector<double> y = run_expert(context, spec, expert, std::vector<double>(row, row + width));
      if (static_cast<int64_t>(y.size()) != width) context.fail("an expert gives ", y.size(), " features");
      for (int64_t i = 0; i < width; ++i)
        out[static_cast<size_t>(token * width + i)] += weight * y[static_cast<size_t>(i)];
    }
  }
  context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
}

// Slice `e` of a tensor [E, ...] as doubles; nothing where it is omitted.
std::vector<double> slice_of(KernelContext& context, size_t input, int64_t e, int64_t experts) {
  if (!context.has_input(input)) return {};
  const Tensor& x = context.input(input);
  if (x.rank() < 1 || x.dim(0) != experts) {
    context.fail("input ", input, " of shape ", to_string(x.shape()), " for ", experts, " experts");
  }
  const int64_t size = x.size() / experts;
  std::vector<double> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(x.at(e * size + i));
  return values;
}

// (x, router, fc1 [E, F, hidden], b1?, fc2 [E, hidden, I], b2?, fc3?, b3?)
void run_moe(KernelContext& context) {
  const MoeSpec spec(context);
  const int64_t experts = context.input(2).rank() == 3 ? context.input(2).dim(0) : 0;
  run_mixture(context, spec, experts, [&](int64_t e) {
    return Expert{.w1 = slice_of(context, 2, e, experts),
                  .w2 = slice_of(context, 4, e, experts),
                  .w3 = slice_of(context, 6, e, experts),
                  .b1 = slice_of(context, 3, e, experts),
                  .b2 = slice_of(context, 5, e, experts),
                  .b3 = slice_of(context, 7, e, experts)};
  });
}

// Weights u8 [E, N, K*bits/8] at `input`, scales [E, N] or [E, N, blocks] behind them.
Matrix quantized_slice(KernelContext& context, size_t input, size_t zero_input, int64_t e, int64_t experts) {
  if (!context.has_input(input)) return {};
  const Tensor& w = context.input(input);
  const Tensor& scales = context.input(input + 1);
  const int64_t bits = context.node().int_attribute("expert_weight_bits", 4);
  if (bits != 2 && bits != 4 && bits != 8) context.unsupported("expert_weight_bits ", bits);
  if (w.rank() != 3 || w.dim(0) != experts || w.size() == 0 || w.dtype() != DType::U8 || scales.rank() < 2 ||
      scales.dim(0) != experts) {
    context.fail("weights of shape ", to_string(w.shape()), " and scales of shape ",
                 to_string(scales.shape()));
  }
  BlockCodes codes{.rows = w.dim(1), .columns = w.dim(2) * 8 / bits, .bits = bits};
  const int64_t block = context.node().int_attribute("block_size", 0);
  codes.block = block > 0 ? block : codes.columns;
  codes.code_stride = w.dim(2);
  codes.codes = w.data<uint8_t>().data() + e * codes.rows * codes.code_stride;
  const auto part = [&](const Tensor& x) {
    if (x.rank() < 1 || x.dim(0) != experts)
      context.fail("zero points of shape ", to_string(x.shape()), " for ", experts, " experts");
    Shape shape(x.shape().begin() + 1, x.shape().end());
    const int64_t size = element_count(shape);
    Tensor out = context.make(x.dtype(), shape);
    for (int64_t i = 0; i < size; ++i) {
      if (is_floating(x.dtype())) {
        out.set(i, x.at(e * size + i));
      } else {
        out.set_int(i, x.int_at(e * size + i));
      }
    }
    return out;
  };
  const Tensor own_scales = part(scales);
  Tensor zeros;
  if (context.has_input(zero_input)) zeros = part(context.input(zero_input));
  return dequantize_blocks(context, codes, own_scales, zeros.defined() ? &zeros : nullptr);
}

// (x, router, w1, s1, b1?, w2, s2, b2?, w3?, s3?, b3?, zero points 1..3?, router weights?, ...)
void run_qmoe(KernelContext& context) {
  MoeSpec spec(context);
  spec.over_all = false;
  const Node& node = context.node();
  if (node.int_attribute("weights_prepacked", 0) == 1) context.unsupported("weights packed for a GPU");
  for (size_t i = 14; i < context.input_count(); ++i) {
    if (context.has_input(i)) context.unsupported("input ", i);
  }
  const int64_t experts = context.input(2).rank() == 3 ? context.input(2).dim(0) : 0;
  run_mixture(context, spec, experts, [&](int64_t e) {
    return Expert{.w1 = quantized_slice(context, 2, 11, e, experts),
                  .w2 = quantized_slice(context, 5, 12, e, experts),
                  .w3 = quantized_slice(context, 8, 13, e, experts),
                  .b1 = slice_of(context, 4, e, experts),
                  .b2 = slice_of(context, 7, e, experts),
                  .b3 = slice_of(context, 10, e, experts)};
  });
}

}  // namespace

void register_microsoft_moe(KernelTable& table) {
  add_microsoft_reference(table, {"MoE"}, run_moe);
  add_microsoft_reference(table, {"QMoE"}, run_qmoe);
}

}  // namespace quern::runtime::reference
