// Losses over classes on axis 1.
#include <algorithm>
#include <cmath>

#include "runtime/reference/axis.h"
#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

// The negative of log_probability at each label, weighted by class and reduced.
void set_loss(KernelContext& context, const std::vector<double>& log_probability) {
  const Tensor& x = context.input(0);
  const Node& node = context.node();
  const AxisLayout layout = axis_layout(x.shape(), 1);
  const std::vector<int64_t> labels = int_values(context.input(1));
  const Tensor* weights = context.optional_input(2);
  if (static_cast<int64_t>(labels.size()) != layout.rows()) context.fail(labels.size(), " labels");
  if (weights != nullptr && weights->size() != layout.length) context.fail(weights->size(), " weights");
  const bool ignores = node.has_attribute("ignore_index");
  const int64_t ignored = node.int_attribute("ignore_index", 0);
  std::vector<double> losses;
  double total = 0;
  double total_weight = 0;
  for (int64_t row = 0; row < layout.rows(); ++row) {
    const int64_t label = labels[static_cast<size_t>(row)];
    double loss = 0;
    if (!ignores || label != ignored) {
      if (label < 0 || label >= layout.length)
        context.fail("label ", label, " of ", layout.length, " classes");
      const double weight = weights != nullptr ? weights->at(label) : 1;
      loss = -log_probability[static_cast<size_t>(layout.at(row, label))] * weight;
      total_weight += weight;
    }
    losses.push_back(loss);
    total += loss;
  }
  const std::string reduction = node.string_attribute("reduction", "mean");
  if (reduction == "none") {
    context.set_output(0, to_tensor(x.dtype(), context.input(1).shape(), losses));
  } else {
    const std::vector<double> one{reduction == "sum" ? total : total / total_weight};
    context.set_output(0, to_tensor(x.dtype(), {}, one));
  }
}

void check_rank(KernelContext& context) {
  if (context.input(0).rank() < 2)
    context.fail("the scores have the shape ", to_string(context.input(0).shape()));
}

void run_negative_log_likelihood(KernelContext& context) {
  check_rank(context);
  const Elements<double> in(context.input(0));
  set_loss(context, std::vector<double>(in.begin(), in.end()));
}

void run_softmax_cross_entropy(KernelContext& context) {
  check_rank(context);
  const Tensor& x = context.input(0);
  const AxisLayout layout = axis_layout(x.shape(), 1);
  const Elements<double> in(x);
  std::vector<double> out(in.size());
  for (int64_t row = 0; row < layout.rows(); ++row) {
    double most = -INFINITY;
    for (int64_t i = 0; i < layout.length; ++i) most = std::max(most, in[layout.at(row, i)]);
    double sum = 0;
    for (int64_t i = 0; i < layout.length; ++i) sum += std::exp(in[layout.at(row, i)] - most);
    for (int64_t i = 0; i < layout.length; ++i) {
      const int64_t at = layout.at(row, i);
      out[static_cast<size_t>(at)] = in[at] - most - std::log(sum);
    }
  }
  set_loss(context, out);
  if (context.wants_output(1)) context.set_output(1, to_tensor(x.dtype(), x.shape(), out));
}

}  // namespace

void register_loss(KernelTable& table) {
  add_reference(table, {"NegativeLogLikelihoodLoss"}, run_negative_log_likelihood);
  add_reference(table, {"SoftmaxCrossEntropyLoss"}, run_softmax_cross_entropy);
}

}  // namespace quern::runtime::reference
