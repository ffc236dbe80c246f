// Mixtures of experts of ai.quern: RouteExperts, ExpertRows and CombineExperts (docs/canonical-graph.md).
#include "runtime/reference/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/schema.h"
#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

double squash(double x) {
  return 1 / (1 + std::exp(-x));
}

// The scores of one row: a softmax or a logistic function of its logits.
std::vector<double> scores_of(const float* logits, int64_t experts, bool softmax) {
  std::vector<double> scores(logits, logits + experts);
  if (!softmax) {
    std::transform(scores.begin(), scores.end(), scores.begin(), squash);
    return scores;
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  for (double& score : scores) score = std::exp(score - most);
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  for (double& score : scores) score /= sum;
  return scores;
}

// (logits [..., E], selection_bias? [E])
void run_route_experts(KernelContext& context) {
  const Tensor& logits = context.input(0);
  const Tensor* bias = context.optional_input(1);
  const Node& node = context.node();
  const int64_t k = node.int_attribute("experts_per_token", 0);
  const int64_t experts = logits.rank() > 0 ? logits.dim(-1) : 0;
  const std::string score = node.string_attribute("score", "softmax");
  if (score != "softmax" && score != "sigmoid") context.unsupported("score '", score, "'");
  if (k < 1 || k > experts || (bias && bias->shape() != Shape{experts}))
    context.fail("experts_per_token is ", k, " for logits of shape ", to_string(logits.shape()));
  const bool normalize = node.int_attribute("normalize", 0) != 0;
  const double scale = node.float_attribute("scale", 1);
  const Elements<float> in(logits);
  std::vector<float> out = make_buffer<float>(context, logits.shape());
  std::vector<int64_t> order(static_cast<size_t>(experts));
  for (int64_t first = 0; first < logits.size(); first += experts) {
    const std::vector<double> scores = scores_of(in.data() + first, experts, score == "softmax");
    const auto rank = [&](int64_t e) {
      const double own = bias ? scores[static_cast<size_t>(e)] : static_cast<double>(in[first + e]);
      return own + (bias ? bias->at(e) : 0.0);
    };
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rank(a) > rank(b); });
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += scores[static_cast<size_t>(order[static_cast<size_t>(i)])];
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = order[static_cast<size_t>(i)];
      out[static_cast<size_t>(first + e)] =
          static_cast<float>(scores[static_cast<size_t>(e)] / (normalize ? sum : 1) * scale);
    }
  }
  context.set_output(0, to_tensor(DType::F32, logits.shape(), out));
}

// Tokens of routing [..., E] that an expert serves.
std::vector<int64_t> rows_of(const KernelContext& context, const Tensor& routing, int64_t expert) {
  const int64_t experts = routing.rank() > 0 ? routing.dim(-1) : 0;
  if (expert < 0 || expert >= experts)
    context.fail("expert ", expert, " of a routing of shape ", to_string(routing.shape()));
  std::vector<int64_t> rows;
  for (int64_t token = 0; token < routing.size() / experts; ++token) {
    if (routing.at(token * experts + expert) != 0) rows.push_back(token);
  }
  return rows;
}

// (x [..., C], routing [..., E])
void run_expert_rows(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& routing = context.input(1);
  const std::vector<int64_t> rows = rows_of(context, routing, context.node().int_attribute("expert", -1));
  const int64_t width = x.rank() > 0 ? x.dim(-1) : 0;
  if (width == 0 || x.size() / width != routing.size() / routing.dim(-1))
    context.fail("x ", to_string(x.shape()), " and routing ", to_string(routing.shape()), " do not fit");
  const Shape shape = {static_cast<int64_t>(rows.size()), width};
  const Elements<float> in(x);
  std::vector<float> out = make_buffer<float>(context, shape);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(in.data() + rows[i] * width, width, out.begin() + static_cast<int64_t>(i) * width);
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// (routing [..., E], y [rows of the expert, C] for each expert)
void run_combine_experts(KernelContext& context) {
  const Tensor& routing = context.input(0);
  const auto experts = static_cast<int64_t>(context.input_count()) - 1;
  if (routing.rank() < 1 || routing.dim(-1) != experts)
    context.fail(experts, " results for a routing of shape ", to_string(routing.shape()));
  Shape shape = routing.shape();
  shape.back() = context.input(1).rank() == 2 ? context.input(1).dim(1) : 0;
  const int64_t width = shape.back();
  std::vector<double> sums = make_buffer<double>(context, shape);
  for (int64_t e = 0; e < experts; ++e) {
    const std::vector<int64_t> rows = rows_of(context, routing, e);
    const Tensor& y = context.input(static_cast<size_t>(e) + 1);
    if (y.shape() != Shape{static_cast<int64_t>(rows.size()), width})
      context.fail("expert ", e, " serves ", rows.size(), " tokens, its result is ", to_string(y.shape()));
    const Elements<float> in(y);
    for (size_t i = 0; i < rows.size(); ++i) {
      const double weight = routing.at(rows[i] * experts + e);
      for (int64_t c = 0; c < width; ++c) {
        sums[static_cast<size_t>(rows[i] * width + c)] +=
            weight * static_cast<double>(in[static_cast<int64_t>(i) * width + c]);
      }
    }
  }
  const std::vector<float> out(sums.begin(), sums.end());
  context.set_output(0, to_tensor(context.input(1).dtype(), shape, out));
}

}  // namespace

void register_experts(KernelTable& table) {
  const auto add = [&](std::string_view op, KernelFunction run) {
    table.add(kQuernDomain, op, {std::string(kReferenceImplementation), 1, run, nullptr});
  };
  add("RouteExperts", run_route_experts);
  add("ExpertRows", run_expert_rows);
  add("CombineExperts", run_combine_experts);
}

}  // namespace quern::runtime::reference
