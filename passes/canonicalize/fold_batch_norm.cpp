#include "passes/canonicalize/fold_batch_norm.h"

#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "ir/products.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

// y = x * scale + shift, one of each for a channel.
struct Affine {
  std::vector<double> scale;
  std::vector<double> shift;
};

// The numbers of a constant for so many channels, which lie along axis 1 of `rank`; nothing where it is no
// such.
std::optional<std::vector<double>> per_channel(const Value* value, int64_t channels, int64_t rank) {
  const Tensor* tensor = value ? value->tensor() : nullptr;
  if (!tensor || !is_floating(tensor->dtype()) || tensor->rank() > rank) return std::nullopt;
  if (tensor->size() != 1) {
    const int64_t axis = 1 - (rank - tensor->rank());
    if (tensor->size() != channels || axis < 0 || axis >= tensor->rank() ||
        tensor->dim(static_cast<int>(axis)) != channels)
      return std::nullopt;
  }
  std::vector<double> values;
  for (int64_t c = 0; c < channels; ++c) values.push_back(tensor->at(tensor->size() == 1 ? 0 : c));
  return values;
}

std::optional<Affine> normalization(const Node& node, int64_t channels) {
  if (node.int_attribute("training_mode", 0) != 0 || node.int_attribute("spatial", 1) != 1 ||
      node.opset() < 7) {
    return std::nullopt;
  }
  for (size_t i = 1; i < node.outputs().size(); ++i) {
    if (node.output(i) != nullptr) return std::nullopt;
  }
  const Tensor* parts[4] = {};
  for (size_t i = 0; i < 4; ++i) {
    parts[i] = node.input(i + 1) ? node.input(i + 1)->tensor() : nullptr;
    if (!parts[i] || parts[i]->size() != channels || !is_floating(parts[i]->dtype())) return std::nullopt;
  }
  const double epsilon = node.float_attribute("epsilon", 1e-5F);
  Affine affine;
  for (int64_t c = 0; c < channels; ++c) {
    const double scale = parts[0]->at(c) / std::sqrt(parts[3]->at(c) + epsilon);
    affine.scale.push_back(scale);
    affine.shift.push_back(parts[1]->at(c) - parts[2]->at(c) * scale);
    if (!std::isfinite(affine.scale.back()) || !std::isfinite(affine.shift.back())) return std::nullopt;
  }
  return affine;
}

std::optional<Affine> arithmetic(const Node& node, const Value* x, int64_t channels, int64_t rank) {
  const bool adds = node.is("Add"), subtracts = node.is("Sub") && node.input(0) == x;
  if (node.opset() < 7 || (!adds && !subtracts && !node.is("Mul"))) return std::nullopt;
  std::optional<std::vector<double>> values = per_channel(other_input(node, x), channels, rank);
  if (!values) return std::nullopt;
  const auto count = static_cast<size_t>(channels);
  if (node.is("Mul")) return Affine{std::move(*values), std::vector<double>(count, 0)};
  if (subtracts) {
    for (double& value : *values) value = -value;
  }
  return Affine{std::vector<double>(count, 1), std::move(*values)};
}

bool is_plain_weight(const Value* weight) {
  return weight && is_floating(weight->dtype()) && is_constant_expression(weight) && !weight->quantized() &&
         !weight->packed() && weight->has_shape() && weight->shape().size() == 2 &&
         weight->shape()[0].is_constant();
}

class Folder {
 public:
  Folder(Graph& graph, PassContext& context, PassReport& report)
      : batch_(graph), context_(context), report_(report) {}

  // One link of each chain.
  bool run() {
    std::set<const Node*> taken;
    for (const Node* node : batch_.rewriter().graph().nodes()) {
      if (!is_product(*node) || taken.contains(node)) continue;
      Node* next = sole_user(node->output());
      if (next == nullptr) continue;
      const std::optional<Affine> affine = affine_of(*node, *next);
      if (!affine) continue;
      fold(*node, *next, *affine);
      taken.insert(next);
      ++report_.changes;
    }
    return batch_.commit();
  }

 private:
  std::optional<Affine> affine_of(const Node& product, const Node& next) {
    const bool normalizes = next.is("BatchNormalization");
    const Value* y = product.output();
    if (!y->has_shape() || next.output() == nullptr || (!normalizes && !is_convolution(product)))
      return std::nullopt;
    if (normalizes && (next.input(0) != y || (!is_convolution(product) && y->shape().size() != 2)))
      return std::nullopt;
    const Value* bias = product.input(2);
    if (!is_plain_weight(product.input(1)) || (bias && !bias->tensor())) {
      if (normalizes) context_.explain_failure(report_, next, "the product before it has no plain weights");
      return std::nullopt;
    }
    const int64_t channels = product.input(1)->shape()[0].constant();
    std::optional<Affine> affine =
        normalizes ? normalization(next, channels)
                   : arithmetic(next, y, channels, static_cast<int64_t>(y->shape().size()));
    if (!affine && normalizes)
      context_.explain_failure(report_, next, "it is no inference with constant, finite statistics");
    return affine;
  }

  void fold(const Node& product, const Node& next, const Affine& affine) {
    const auto channels = static_cast<int64_t>(affine.scale.size());
    Value* weight = product.input(1);
    const bool scales =
        std::any_of(affine.scale.begin(), affine.scale.end(), [](double s) { return s != 1; });
    if (scales) {
      Tensor scale = Tensor::zeros(DType::F32, {channels, 1});
      for (int64_t c = 0; c < channels; ++c) scale.set(c, affine.scale[static_cast<size_t>(c)]);
      if (weight->dtype() != DType::F32)
        weight = batch_.add("Cast", {weight}, {{"to", onnx_code(DType::F32)}});
      weight = batch_.add("Mul", {weight, batch_.add_constant(std::move(scale), next.name() + ".scale")});
    }
    const Tensor* before = product.input(2) ? product.input(2)->tensor() : nullptr;
    Tensor bias = Tensor::zeros(DType::F32, {channels});
    for (int64_t c = 0; c < channels; ++c) {
      const auto i = static_cast<size_t>(c);
      bias.set(c, (before ? before->at(c) : 0.0) * affine.scale[i] + affine.shift[i]);
    }
    batch_.substitute(next.output(), product.op(),
                      {product.input(0), weight, batch_.add_constant(std::move(bias), next.name() + ".bias")},
                      product.attributes(), product.domain(), product.name());
  }

  BatchRewriter batch_;
  PassContext& context_;
  PassReport& report_;
};

}  // namespace

FoldBatchNorm::FoldBatchNorm()
    : Pass("fold-batch-norm", "batch normalizations go into the convolutions and products before them") {}

PassReport FoldBatchNorm::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    while (Folder(*each, context, report).run()) {
    }
  }
  return report;
}

}  // namespace quern::passes
