// Normalizations of ai.onnx. Statistics are taken in double.
#include <algorithm>
#include <cmath>

#include "runtime/reference/axis.h"
#include "runtime/reference/normalization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {

Moments moments(const double* row, int64_t count) {
  double sum = 0;
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += row[i];
    squares += row[i] * row[i];
  }
  Moments m;
  const auto n = static_cast<double>(count);
  m.mean = sum / n;
  m.mean_square = squares / n;
  // In a second pass: the difference of large squares would lose the variance.
  double deviations = 0;
  for (int64_t i = 0; i < count; ++i) deviations += (row[i] - m.mean) * (row[i] - m.mean);
  m.variance = deviations / n;
  return m;
}

NormResult normalize_rows(const KernelContext& context, const Tensor& x, int64_t row_length,
                          bool subtract_mean, double epsilon) {
  const Elements<double> in(x);
  NormResult result;
  result.values = make_buffer<double>(context, x.shape());
  const int64_t rows = row_length == 0 ? 0 : x.size() / row_length;
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = in.data() + r * row_length;
    const Moments m = moments(row, row_length);
    const double scale = 1.0 / std::sqrt((subtract_mean ? m.variance : m.mean_square) + epsilon);
    const double mean = subtract_mean ? m.mean : 0.0;
    for (int64_t i = 0; i < row_length; ++i) {
      result.values[static_cast<size_t>(r * row_length + i)] = (row[i] - mean) * scale;
    }
    result.means.push_back(m.mean);
    result.inverse_deviations.push_back(scale);
  }
  return result;
}

Tensor scale_and_shift(const KernelContext& context, const Tensor& normalized, const Tensor& scale,
                       const Tensor* bias) {
  const Shape& shape = normalized.shape();
  const Elements<double> x(normalized);
  std::vector<double> out(x.begin(), x.end());
  const auto apply = [&](const Tensor& parameter, auto combine) {
    if (broadcast_shapes(parameter.shape(), shape) != shape) {
      context.fail("a parameter of shape ", to_string(parameter.shape()), " does not broadcast to ",
                   to_string(shape));
    }
    const Elements<double> values(parameter);
    size_t i = 0;
    for_each_offset<1>(shape, {broadcast_strides(parameter.shape(), shape)}, [&](int64_t offset) {
      out[i] = combine(out[i], values[offset]);
      ++i;
    });
  };
  apply(scale, [](double a, double b) { return a * b; });
  if (bias != nullptr) apply(*bias, [](double a, double b) { return a + b; });
  return to_tensor(normalized.dtype(), shape, out);
}

namespace {

void run_layer_normalization_as(KernelContext& context, bool subtract_mean, float default_epsilon) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const int64_t axis = normalize_axis(context, node.int_attribute("axis", -1), x.rank());
  const int64_t row_length = element_count(Shape(x.shape().begin() + axis, x.shape().end()));
  const NormResult rows =
      normalize_rows(context, x, row_length, subtract_mean, node.float_attribute("epsilon", default_epsilon));
  // The specification rounds to the input's type before it scales.
  const Tensor normalized = to_tensor(x.dtype(), x.shape(), rows.values);
  context.set_output(0, scale_and_shift(context, normalized, context.input(1), context.optional_input(2)));
  Shape stat_shape = x.shape();
  std::fill(stat_shape.begin() + axis, stat_shape.end(), 1);
  const DType stash = dtype_from_onnx_number(node.int_attribute("stash_type", 1));
  if (subtract_mean) {
    if (context.wants_output(1)) context.set_output(1, to_tensor(stash, stat_shape, rows.means));
    if (context.wants_output(2)) context.set_output(2, to_tensor(stash, stat_shape, rows.inverse_deviations));
  } else if (context.wants_output(1)) {
    context.set_output(1, to_tensor(stash, stat_shape, rows.inverse_deviations));
  }
}

void run_layer_normalization(KernelContext& context) {
  run_layer_normalization_as(context, true, 1e-5F);
}

void run_rms_normalization(KernelContext& context) {
  run_layer_normalization_as(context, false, 1e-5F);
}

// A parameter [C] as [C, 1, ...], so that it broadcasts to [N, C, ...].
Tensor per_channel(const KernelContext& context, const Tensor& parameter, const Tensor& x) {
  if (x.rank() < 2 || parameter.size() != x.dim(1)) {
    context.fail("a parameter of shape ", to_string(parameter.shape()), " for an input of shape ",
                 to_string(x.shape()));
  }
  Shape shape(static_cast<size_t>(x.rank() - 1), 1);
  shape[0] = x.dim(1);
  return parameter.reshaped(shape);
}

void run_instance_normalization(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor scale = per_channel(context, context.input(1), x);
  const Tensor bias = per_channel(context, context.input(2), x);
  const int64_t row = element_count(Shape(x.shape().begin() + 2, x.shape().end()));
  const NormResult rows =
      normalize_rows(context, x, row, true, context.node().float_attribute("epsilon", 1e-5F));
  const Tensor normalized = to_tensor(x.dtype(), x.shape(), rows.values);
  context.set_output(0, scale_and_shift(context, normalized, scale, &bias));
}

// Scale and bias are per group up to version 20 and per channel from 21 on.
void run_group_normalization(KernelContext& context) {
  const Tensor& x = context.input(0);
  const int64_t groups = context.node().int_attribute("num_groups", 0);
  if (x.rank() < 2 || groups < 1 || x.dim(1) % groups != 0) context.fail("num_groups is ", groups);
  const auto parameter = [&](const Tensor& given) {
    if (context.opset() >= 21 || given.size() == x.dim(1)) return per_channel(context, given, x);
    if (given.size() != groups)
      context.fail("a parameter of ", given.size(), " elements for ", groups, " groups");
    const int64_t size = x.dim(1) / groups;
    return per_channel(context, strided_copy(context, given, {groups, size}, {1, 0}).reshaped({x.dim(1)}), x);
  };
  const Tensor scale = parameter(context.input(1));
  const Tensor bias = parameter(context.input(2));
  const int64_t row = x.size() == 0 ? 0 : x.size() / (x.dim(0) * groups);
  const NormResult rows =
      normalize_rows(context, x, row, true, context.node().float_attribute("epsilon", 1e-5F));
  const Tensor normalized = to_tensor(x.dtype(), x.shape(), rows.values);
  context.set_output(0, scale_and_shift(context, normalized, scale, &bias));
}

void run_batch_normalization(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  if (x.rank() < 1) context.fail("the input is a scalar");
  const bool training = node.int_attribute("training_mode", 0) != 0;
  if (node.int_attribute("spatial", 1) == 0) context.unsupported("spatial = 0");
  if (context.opset() < 7 && node.int_attribute("is_test", 0) == 0)
    context.unsupported("is_test = 0: training");
  if (!training && context.output_count() > 1 && context.wants_output(1))
    context.unsupported("outputs of training");
  const int64_t channels = x.rank() == 1 ? 1 : x.dim(1);
  for (size_t i = 1; i < 5; ++i) {
    if (context.input(i).size() != channels) {
      context.fail("input ", i, " has ", context.input(i).size(), " elements for ", channels, " channels");
    }
  }
  const Elements<double> in(x), scale(context.input(1)), bias(context.input(2));
  const Elements<double> given_mean(context.input(3)), given_variance(context.input(4));
  std::vector<double> mean(given_mean.begin(), given_mean.end());
  std::vector<double> variance(given_variance.begin(), given_variance.end());
  AxisLayout layout{x.dim(0), 1, 1};
  if (x.rank() > 1) layout = axis_layout(x.shape(), 1);
  const auto channel_of = [&](int64_t i) { return static_cast<size_t>(i / layout.inner % channels); };
  if (training) {
    const double momentum = node.float_attribute("momentum", 0.9F);
    std::vector<std::vector<double>> values(static_cast<size_t>(channels));
    for (int64_t i = 0; i < x.size(); ++i) values[channel_of(i)].push_back(in[i]);
    std::vector<double> running_mean, running_variance;
    for (size_t c = 0; c < values.size(); ++c) {
      const Moments m = moments(values[c].data(), static_cast<int64_t>(values[c].size()));
      running_mean.push_back(mean[c] * momentum + m.mean * (1 - momentum));
      running_variance.push_back(variance[c] * momentum + m.variance * (1 - momentum));
      mean[c] = m.mean;
      variance[c] = m.variance;
    }
    context.set_output(1, to_tensor(context.input(3).dtype(), {channels}, running_mean));
    context.set_output(2, to_tensor(context.input(4).dtype(), {channels}, running_variance));
  }
  const double epsilon = node.float_attribute("epsilon", 1e-5F);
  std::vector<double> out(in.size());
  for (int64_t i = 0; i < x.size(); ++i) {
    const size_t c = channel_of(i);
    const auto at = static_cast<int64_t>(c);
    out[static_cast<size_t>(i)] = scale[at] * (in[i] - mean[c]) / std::sqrt(variance[c] + epsilon) + bias[at];
  }
  context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
}

// y = x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta
void run_lrn(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  if (x.rank() < 2) context.fail("the input has rank ", x.rank());
  const int64_t size = node.int_attribute("size", 0);
  if (size < 1) context.fail("size is ", size);
  const double alpha = node.float_attribute("alpha", 0.0001F) / static_cast<double>(size);
  const double beta = node.float_attribute("beta", 0.75F);
  const double bias = node.float_attribute("bias", 1.0F);
  const Elements<double> in(x);
  const AxisLayout layout = axis_layout(x.shape(), 1);
  std::vector<double> out(in.size());
  for (int64_t k = 0; k < layout.rows(); ++k) {
    for (int64_t c = 0; c < layout.length; ++c) {
      const int64_t first = std::max<int64_t>(0, c - (size - 1) / 2);
      const int64_t last = std::min(layout.length - 1, c + size / 2);
      double sum = 0;
      for (int64_t i = first; i <= last; ++i) sum += in[layout.at(k, i)] * in[layout.at(k, i)];
      const int64_t at = layout.at(k, c);
      out[static_cast<size_t>(at)] = in[at] / std::pow(bias + alpha * sum, beta);
    }
  }
  context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
}

// (x - mean) / deviation over the given axes, all but the channels by default.
void run_mean_variance_normalization(KernelContext& context) {
  const Tensor& x = context.input(0);
  const std::vector<int64_t> axes =
      normalize_axes(context, context.node().ints_attribute("axes", {0, 2, 3}), x.rank());
  Shape kept = x.shape();
  int64_t count = 1;
  for (const int64_t axis : axes) {
    count *= kept[static_cast<size_t>(axis)];
    kept[static_cast<size_t>(axis)] = 1;
  }
  const Elements<double> in(x);
  const Shape strides = broadcast_strides(kept, x.shape());
  std::vector<std::vector<double>> groups(static_cast<size_t>(element_count(kept)));
  int64_t i = 0;
  for_each_offset<1>(x.shape(), {strides},
                     [&](int64_t to) { groups[static_cast<size_t>(to)].push_back(in[i++]); });
  std::vector<Moments> stats;
  for (const auto& group : groups) stats.push_back(moments(group.data(), count));
  std::vector<double> out;
  i = 0;
  for_each_offset<1>(x.shape(), {strides}, [&](int64_t to) {
    const Moments& m = stats[static_cast<size_t>(to)];
    out.push_back((in[i++] - m.mean) / (std::sqrt(m.variance) + 1e-9));
  });
  context.set_output(0, to_tensor(x.dtype(), x.shape(), out));
}

}  // namespace

void register_normalization(KernelTable& table) {
  add_reference(table, {"LayerNormalization"}, run_layer_normalization);
  add_reference(table, {"RMSNormalization", "SimplifiedLayerNormalization"}, run_rms_normalization);
  add_reference(table, {"InstanceNormalization"}, run_instance_normalization);
  add_reference(table, {"GroupNormalization"}, run_group_normalization);
  add_reference(table, {"BatchNormalization"}, run_batch_normalization, 6);
  add_reference(table, {"LRN"}, run_lrn);
  add_reference(table, {"MeanVarianceNormalization"}, run_mean_variance_normalization);
}

}  // namespace quern::runtime::reference
