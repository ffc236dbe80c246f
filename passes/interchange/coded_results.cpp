// Products whose results are read in codes alone: QLinearMatMul, QLinearConv and what lies between two of
// them.
#include <algorithm>
#include <cmath>

#include "ir/activation_scheme.h"
#include "ir/products.h"
#include "passes/interchange/weights.h"

namespace quern::passes {
namespace {

// What moves or chooses elements does the same with their codes.
bool keeps_codes(const Node& node) {
  if (node.is("MaxPool")) return node.output(1) == nullptr;
  return node.is("Flatten") || node.is("Reshape") || node.is("Squeeze") || node.is("Unsqueeze") ||
         node.is("Identity") || node.is("Transpose");
}

// The limits of a Relu or a Clip; nothing where they are not constant, or it is neither.
std::optional<std::pair<double, double>> clamps_to(const Node& node) {
  if (node.is("Relu")) return std::pair(0.0, HUGE_VAL);
  if (!node.is("Clip")) return std::nullopt;
  std::pair<double, double> limits(-HUGE_VAL, HUGE_VAL);
  if (node.opset() < 11) {
    return std::pair<double, double>(node.float_attribute("min", -HUGE_VALF),
                                     node.float_attribute("max", HUGE_VALF));
  }
  for (size_t i = 1; i <= 2; ++i) {
    if (node.input(i) == nullptr) continue;
    const Tensor* limit = node.input(i)->tensor();
    if (limit == nullptr || limit->size() != 1) return std::nullopt;
    (i == 1 ? limits.first : limits.second) = limit->at(0);
  }
  return limits;
}

// Whether the ends of the codes clamp as the node does.
bool ends_clamp(const Node& node, const ActivationScheme& scheme) {
  const auto limits = clamps_to(node);
  return limits && std::nearbyint(limits->first / scheme.scale) <= static_cast<double>(scheme.lowest) &&
         static_cast<double>(scheme.highest) <= std::nearbyint(limits->second / scheme.scale);
}

bool is_static(const Node& node) {
  return node.string_attribute("activations", "") == "static";
}

}  // namespace

bool WeightLowering::reads_codes(const Node& node) {
  // ConvTranspose has no form on integers.
  if (!is_product(node) || node.op() == "ConvolutionTranspose" || !is_static(node)) return false;
  const Weight& weight = weight_of(node.input(1));
  return weight.is_quantized && is_integer(weight.codes.scheme.code);
}

WeightLowering::CodedOutput WeightLowering::coded_output(const Node& node) {
  CodedOutput output{.steps = {}, .last = node.output(), .reader = nullptr};
  const Graph& graph = *node.graph();
  for (;;) {
    const std::vector<Use>& uses = output.last->uses();
    if (uses.empty() || graph.is_output(output.last) || uses.front().node->graph() != &graph) return output;
    const Node& first = *uses.front().node;
    if (reads_codes(first)) {
      const ActivationScheme scheme = activation_scheme(first);
      const bool all_alike = std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
        return use.input == 0 && use.node->graph() == &graph && reads_codes(*use.node) &&
               activation_scheme(*use.node) == scheme;
      });
      const bool clamped = std::all_of(output.steps.begin(), output.steps.end(), [&](const Node* step) {
        return keeps_codes(*step) || ends_clamp(*step, scheme);
      });
      if (all_alike && clamped) output.reader = &first;
      return output;
    }
    const bool passes =
        uses.size() == 1 && uses.front().input == 0 && (keeps_codes(first) || clamps_to(first));
    if (!passes) return output;
    output.steps.push_back(&first);
    output.last = first.output();
  }
}

Value* WeightLowering::hand_on(const CodedOutput& output, const Dynamic& codes) {
  Dynamic at = codes;
  for (const Node* step : output.steps) {
    if (!keeps_codes(*step)) continue;
    std::vector<Value*> inputs = step->inputs();
    inputs.front() = at.codes;
    at.codes = emit_.add(step->op(), inputs, step->attributes());
  }
  ready_codes_[output.last] = at;
  // Nobody reads it, if all goes well.
  return emit_.add("DequantizeLinear", {codes.codes, codes.scale, codes.point});
}

// The bias in units of the product's sums; null where there is none, or it does not fit 32 bits.
Value* WeightLowering::integer_bias(const Node& node, const Weight& weight) {
  const Tensor* bias = node.input(2) ? node.input(2)->tensor() : nullptr;
  if (bias == nullptr) return nullptr;
  const double input_scale = static_cast<double>(node.float_attribute("activation_scale", 0));
  const Tensor& scales = weight.codes.scales;
  Tensor units = Tensor::zeros(DType::I32, bias->shape());
  for (int64_t i = 0; i < bias->size(); ++i) {
    const double unit = input_scale * scales.at(scales.size() == 1 ? 0 : i);
    const double value = unit != 0 ? std::nearbyint(bias->at(i) / unit) : bias->at(i) == 0 ? 0 : HUGE_VAL;
    constexpr double kMost = 1 << 30;
    if (!(std::fabs(value) <= kMost)) return nullptr;
    units.set_int(i, static_cast<int64_t>(value));
  }
  return emit_.constant(std::move(units), node.input(2)->name() + "_quantized");
}

// A Linear whose input and result are codes; null where they are not.
Value* WeightLowering::coded_product(const Node& node, const Dynamic& x, const Codes& columns) {
  if (!is_static(node)) return nullptr;
  const CodedOutput output = coded_output(node);
  if (output.reader == nullptr) return nullptr;
  const Weight& weight = weight_of(node.input(1));
  Value* bias = integer_bias(node, weight);
  const Value* shaped = node.input(0);
  const bool rows = shaped->has_shape() && shaped->shape().size() == 2;
  if (node.input(2) != nullptr && (bias == nullptr || !rows || !options_.fused)) return nullptr;
  Dynamic y = static_constants(*output.reader, true);
  // Scales by column want zero points by column.
  const Tensor& points = *columns.points->tensor();
  Value* column_points = columns.points;
  if (columns.scales->tensor()->size() != points.size()) {
    Tensor all = Tensor::zeros(DType::U8, columns.scales->tensor()->shape());
    for (int64_t i = 0; i < all.size(); ++i) all.set_int(i, points.int_at(0));
    column_points = emit_.constant(std::move(all), columns.points->name());
  }
  if (bias != nullptr) {
    y.codes = emit_.add_microsoft("QGemm", {x.codes, x.scale, x.point, columns.codes, columns.scales,
                                            column_points, bias, y.scale, y.point});
  } else {
    y.codes = emit_.add("QLinearMatMul", {x.codes, x.scale, x.point, columns.codes, columns.scales,
                                          column_points, y.scale, y.point});
  }
  return hand_on(output, y);
}

}  // namespace quern::passes
