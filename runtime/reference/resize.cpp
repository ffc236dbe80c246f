// Resize and Upsample: interpolation along one axis after the other.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/reference/axis.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

struct Interpolation {
  std::string mode = "nearest";
  std::string coordinates = "half_pixel";
  std::string rounding = "round_prefer_floor";
  double cubic_a = -0.75;
  bool antialias = false;
  bool exclude_outside = false;
  double extrapolation = 0;
};

struct AxisPlan {
  double scale = 1;
  int64_t length = 0;  // of the output
  double roi_begin = 0;
  double roi_end = 1;
};

// The place in the input that output element i looks at.
double source_of(const Interpolation& how, const AxisPlan& axis, int64_t input, int64_t i) {
  const auto n = static_cast<double>(input);
  const auto x = static_cast<double>(i);
  const double resized = axis.scale * n;  // the exact output length, before it was rounded down
  if (how.coordinates == "asymmetric") return x / axis.scale;
  if (how.coordinates == "align_corners") return resized == 1 ? 0 : x * (n - 1) / (resized - 1);
  if (how.coordinates == "tf_half_pixel_for_nn") return (x + 0.5) / axis.scale;
  if (how.coordinates == "pytorch_half_pixel") return resized == 1 ? -0.5 : (x + 0.5) / axis.scale - 0.5;
  if (how.coordinates == "tf_crop_and_resize") {
    const double extent = (axis.roi_end - axis.roi_begin) * (n - 1);
    return axis.roi_begin * (n - 1) + (resized == 1 ? extent / 2 : x * extent / (resized - 1));
  }
  const double half_pixel = (x + 0.5) / axis.scale - 0.5;
  if (how.coordinates == "half_pixel") return half_pixel;
  // half_pixel_symmetric: the centre of the input stays the centre of the output.
  return n / 2 * (1 - static_cast<double>(axis.length) / resized) + half_pixel;
}

double nearest_of(const std::string& rounding, double x) {
  if (rounding == "floor") return std::floor(x);
  if (rounding == "ceil") return std::ceil(x);
  if (rounding == "round_prefer_ceil") return std::floor(x + 0.5);
  return std::ceil(x - 0.5);
}

// Keys' cubic convolution kernel (IEEE Trans. ASSP 29, 1981).
double cubic(double x, double a) {
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return a * (((x - 5) * x + 8) * x - 4);
  return 0;
}

struct Taps {
  int64_t first = 0;  // may lie outside: the border repeats
  std::vector<double> weights;
};

Taps taps_of(const Interpolation& how, double x, double scale, int64_t input) {
  Taps taps;
  if (how.mode == "nearest") {
    taps.first = static_cast<int64_t>(nearest_of(how.rounding, x));
    taps.weights = {1.0};
    return taps;
  }
  // Antialiasing stretches the kernel when the image shrinks.
  const double stretch = how.antialias ? std::min(scale, 1.0) : 1.0;
  const double radius = (how.mode == "cubic" ? 2.0 : 1.0) / stretch;
  taps.first = static_cast<int64_t>(std::floor(x - radius)) + 1;
  const auto last = static_cast<int64_t>(std::ceil(x + radius)) - 1;
  double sum = 0;
  for (int64_t at = taps.first; at <= last; ++at) {
    const double distance = (static_cast<double>(at) - x) * stretch;
    double weight =
        how.mode == "cubic" ? cubic(distance, how.cubic_a) : std::max(0.0, 1 - std::fabs(distance));
    if (how.exclude_outside && (at < 0 || at >= input)) weight = 0;
    taps.weights.push_back(weight);
    sum += weight;
  }
  if ((how.exclude_outside || how.antialias) && sum != 0) {
    for (double& weight : taps.weights) weight /= sum;
  }
  return taps;
}

std::vector<double> resize_axis(const KernelContext& context, const std::vector<double>& data,
                                const Shape& shape, size_t axis, const Interpolation& how,
                                const AxisPlan& plan) {
  Shape out_shape = shape;
  out_shape[axis] = plan.length;
  const AxisLayout from = axis_layout(shape, static_cast<int64_t>(axis));
  const AxisLayout to = axis_layout(out_shape, static_cast<int64_t>(axis));
  std::vector<double> out = make_buffer<double>(context, out_shape);
  if (from.length == 0) {
    if (!out.empty()) context.fail("an empty axis cannot be resized");
    return out;
  }
  for (int64_t i = 0; i < to.length; ++i) {
    const double x = source_of(how, plan, from.length, i);
    if (!(std::fabs(x) < 1e15)) context.fail("a scale is ", plan.scale);
    const bool outside =
        how.coordinates == "tf_crop_and_resize" && (x < 0 || x > static_cast<double>(from.length - 1));
    const Taps taps = taps_of(how, x, plan.scale, from.length);
    for (int64_t row = 0; row < to.rows(); ++row) {
      double sum = 0;
      for (size_t t = 0; t < taps.weights.size(); ++t) {
        const int64_t at = std::clamp<int64_t>(taps.first + static_cast<int64_t>(t), 0, from.length - 1);
        if (taps.weights[t] != 0) sum += taps.weights[t] * data[static_cast<size_t>(from.at(row, at))];
      }
      out[static_cast<size_t>(to.at(row, i))] = outside ? how.extrapolation : sum;
    }
  }
  return out;
}

void resize(KernelContext& context, const Interpolation& how, const std::vector<AxisPlan>& plans) {
  const Tensor& x = context.input(0);
  const Elements<double> in(x);
  std::vector<double> data(in.begin(), in.end());
  Shape shape = x.shape();
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const AxisPlan& plan = plans[axis];
    const bool crops = how.coordinates == "tf_crop_and_resize" && (plan.roi_begin != 0 || plan.roi_end != 1);
    if (plan.length == shape[axis] && plan.scale == 1 && !crops) continue;
    data = resize_axis(context, data, shape, axis, how, plan);
    shape[axis] = plan.length;
  }
  Tensor out = context.make(x.dtype(), shape);
  // Tensor::set rounds to nearest and saturates, which is what images of integers need.
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, data[static_cast<size_t>(i)]);
  context.set_output(0, std::move(out));
}

std::vector<AxisPlan> plans_from_scales(KernelContext& context, const Tensor& scales,
                                        const std::vector<int64_t>& axes) {
  const Tensor& x = context.input(0);
  std::vector<AxisPlan> plans(static_cast<size_t>(x.rank()));
  for (size_t i = 0; i < plans.size(); ++i) plans[i].length = x.shape()[i];
  if (scales.size() != static_cast<int64_t>(axes.size())) {
    context.fail(scales.size(), " scales for ", axes.size(), " axes");
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axes[i]);
    AxisPlan& plan = plans[axis];
    plan.scale = scales.at(static_cast<int64_t>(i));
    const double length = std::floor(static_cast<double>(x.shape()[axis]) * plan.scale);
    if (!(plan.scale > 0) || !(length < 1e15)) context.fail("a scale is ", plan.scale);
    plan.length = static_cast<int64_t>(length);
  }
  return plans;
}

std::vector<AxisPlan> plans_from_sizes(KernelContext& context, const std::vector<int64_t>& sizes,
                                       const std::vector<int64_t>& axes) {
  const Tensor& x = context.input(0);
  const std::string policy = context.node().string_attribute("keep_aspect_ratio_policy", "stretch");
  std::vector<AxisPlan> plans(static_cast<size_t>(x.rank()));
  for (size_t i = 0; i < plans.size(); ++i) plans[i].length = x.shape()[i];
  if (sizes.size() != axes.size()) context.fail(sizes.size(), " sizes for ", axes.size(), " axes");
  double common = policy == "not_larger" ? INFINITY : 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axes[i]);
    if (sizes[i] < 0 || x.shape()[axis] == 0)
      context.fail("size ", sizes[i], " for an axis of ", x.shape()[axis]);
    plans[axis].length = sizes[i];
    plans[axis].scale = static_cast<double>(sizes[i]) / static_cast<double>(x.shape()[axis]);
    common =
        policy == "not_larger" ? std::min(common, plans[axis].scale) : std::max(common, plans[axis].scale);
  }
  if (policy == "stretch") return plans;
  for (const int64_t at : axes) {
    AxisPlan& plan = plans[static_cast<size_t>(at)];
    plan.scale = common;
    plan.length =
        static_cast<int64_t>(common * static_cast<double>(x.shape()[static_cast<size_t>(at)]) + 0.5);
  }
  return plans;
}

void run_resize(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  Interpolation how;
  how.mode = node.string_attribute("mode", "nearest");
  how.cubic_a = node.float_attribute("cubic_coeff_a", -0.75F);
  how.antialias = node.int_attribute("antialias", 0) != 0;
  how.exclude_outside = node.int_attribute("exclude_outside", 0) != 0;
  how.extrapolation = node.float_attribute("extrapolation_value", 0);
  const bool first_version = context.opset() < 11;
  if (first_version) {
    how.coordinates = "asymmetric";
    how.rounding = "floor";
  } else {
    how.coordinates = node.string_attribute("coordinate_transformation_mode", "half_pixel");
    how.rounding = node.string_attribute("nearest_mode", "round_prefer_floor");
  }
  if (how.mode != "nearest" && how.mode != "linear" && how.mode != "cubic")
    context.fail("mode is '", how.mode, "'");
  std::vector<int64_t> axes(static_cast<size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), int64_t{0});
  axes = node.ints_attribute("axes", axes);
  for (int64_t& axis : axes) axis = normalize_axis(context, axis, x.rank());
  std::vector<AxisPlan> plans = context.has_input(3) && context.input(3).size() > 0
                                    ? plans_from_sizes(context, int_values(context.input(3)), axes)
                                    : plans_from_scales(context, context.input(first_version ? 1 : 2), axes);
  if (how.coordinates == "tf_crop_and_resize") {
    const Tensor& roi = context.input(1);
    const auto n = static_cast<int64_t>(axes.size());
    if (roi.size() != 2 * n) context.fail("roi has ", roi.size(), " elements for ", n, " axes");
    for (int64_t i = 0; i < n; ++i) {
      plans[static_cast<size_t>(axes[static_cast<size_t>(i)])].roi_begin = roi.at(i);
      plans[static_cast<size_t>(axes[static_cast<size_t>(i)])].roi_end = roi.at(i + n);
    }
  }
  resize(context, how, plans);
}

// Scales: an attribute in version 7, an input in 9; removed in 10 for Resize.
void run_upsample(KernelContext& context) {
  const Node& node = context.node();
  const std::vector<float> attribute = node.floats_attribute("scales", {});
  const Tensor scales = context.has_input(1)
                            ? context.input(1)
                            : Tensor::from<float>({static_cast<int64_t>(attribute.size())}, attribute);
  std::vector<int64_t> axes(static_cast<size_t>(context.input(0).rank()));
  std::iota(axes.begin(), axes.end(), int64_t{0});
  Interpolation how;
  how.mode = node.string_attribute("mode", "nearest");
  if (how.mode == "bilinear") how.mode = "linear";
  how.coordinates = "asymmetric";
  how.rounding = "floor";
  resize(context, how, plans_from_scales(context, scales, axes));
}

}  // namespace

void register_resize(KernelTable& table) {
  add_reference(table, {"Resize"}, run_resize, 10);
  add_reference(table, {"Upsample"}, run_upsample, 7);
}

}  // namespace quern::runtime::reference
