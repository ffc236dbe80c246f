#include "passes/canonicalize/fuse_convolution.h"

#include <numeric>
#include <optional>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

struct ConvolutionMatch {
  bool transposed = false;
  Shape weight;  // Conv: [M, C / group, kernel...]; ConvTranspose: [C, M / group, kernel...]
  Shape kernel;
  int64_t groups = 1;
  int64_t outputs = 0;
};

std::optional<ConvolutionMatch> match(const Node& node, PassContext& context, PassReport& report) {
  ConvolutionMatch m{.transposed = node.is("ConvTranspose")};
  if (!m.transposed && !node.is("Conv")) return std::nullopt;
  const auto reject = [&](const char* why) {
    context.explain_failure(report, node, why);
    return std::nullopt;
  };
  const Value* weight = node.input(1);
  const auto shape = weight && weight->has_shape() ? as_constant(weight->shape()) : std::nullopt;
  if (!shape || !is_constant_expression(weight)) return reject("its weight is no constant");
  if (!is_floating(weight->dtype()) || weight->quantized() || weight->packed())
    return reject("its weight is quantized already");
  if (shape->size() < 3 || shape->size() > 5 || element_count(*shape) == 0)
    return reject("it has other than one to three spatial dimensions");
  m.weight = *shape;
  m.kernel.assign(shape->begin() + 2, shape->end());
  m.groups = node.int_attribute("group", 1);
  if (node.ints_attribute("kernel_shape", m.kernel) != m.kernel || m.groups < 1 ||
      m.weight[0] % m.groups != 0) {
    return reject("its attributes do not fit its weight");
  }
  m.outputs = m.transposed ? m.weight[1] * m.groups : m.weight[0];
  if (const Value* bias = node.input(2)) {
    const auto length = bias->has_shape() ? as_constant(bias->shape()) : std::nullopt;
    if (!is_constant_expression(bias) || length != Shape{m.outputs})
      return reject("its bias is no constant vector");
  }
  return m;
}

// The matrix that W was made of by just the steps that undo as_matrix(), as `quern export` writes codes that
// no axis of W has the scales of; null if it was not.
Value* matrix_behind(const ConvolutionMatch& m, const Value* weight) {
  const Node* last = produced_by(weight, "Reshape");
  const Node* turn = last ? produced_by(last->input(0), "Transpose") : nullptr;
  const Node* first = turn ? produced_by(turn->input(0), "Reshape") : nullptr;
  Value* matrix = first ? first->input(0) : nullptr;
  if (matrix == nullptr || !matrix->has_shape() || !first->output()->has_shape()) return nullptr;
  const auto spatial = static_cast<int64_t>(m.kernel.size());
  const int64_t channels = m.transposed ? m.weight[0] / m.groups : m.weight[1];
  Shape split = {m.groups, m.outputs / m.groups};
  split.insert(split.end(), m.kernel.begin(), m.kernel.end());
  split.push_back(channels);
  Shape order = {0, 1, spatial + 2};
  if (m.transposed) order = {0, spatial + 2, 1};
  for (int64_t i = 0; i < spatial; ++i) order.push_back(2 + i);
  const bool same = as_constant(matrix->shape()) == Shape{m.outputs, element_count(m.kernel) * channels} &&
                    as_constant(first->output()->shape()) == split &&
                    turn->ints_attribute("perm", {}) == order;
  return same ? matrix : nullptr;
}

// W as a matrix, of whose columns those of one tap lie together.
Value* as_matrix(BatchRewriter& batch, const ConvolutionMatch& m, Value* weight) {
  const auto reshape = [&](Value* value, const Shape& shape) {
    const auto rank = static_cast<int64_t>(shape.size());
    Value* target = batch.add_constant(Tensor::from<int64_t>({rank}, std::span<const int64_t>(shape)));
    return batch.add("Reshape", {value, target});
  };
  const auto transpose = [&](Value* value, const Shape& order) {
    return batch.add("Transpose", {value}, {{"perm", order}});
  };
  if (Value* matrix = matrix_behind(m, weight)) return matrix;
  const int64_t taps = element_count(m.kernel);
  const auto rank = static_cast<int64_t>(m.weight.size());
  Shape order;  // of the spatial dimensions of W
  if (!m.transposed) {
    const int64_t channels = m.weight[1];
    if (taps > 1 && channels > 1) {
      order = {0};
      for (int64_t axis = 2; axis < rank; ++axis) order.push_back(axis);
      order.push_back(1);
      weight = transpose(weight, order);
    }
    return reshape(weight, {m.outputs, taps * channels});
  }
  const int64_t channels = m.weight[0] / m.groups;
  Shape grouped = {m.groups, channels};
  grouped.insert(grouped.end(), m.weight.begin() + 1, m.weight.end());
  order = {0, 2};
  for (int64_t axis = 3; axis <= rank; ++axis) order.push_back(axis);
  order.push_back(1);
  return reshape(transpose(reshape(weight, grouped), order), {m.outputs, taps * channels});
}

}  // namespace

FuseConvolution::FuseConvolution()
    : Pass("fuse-convolution", "convolutions get weights of one row for each output") {}

PassReport FuseConvolution::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    for (const Node* node : each->nodes()) {
      const std::optional<ConvolutionMatch> m = match(*node, context, report);
      if (!m) continue;
      Attributes attributes = node->attributes();
      attributes["kernel_shape"] = m->kernel;
      std::vector<Value*> inputs = {node->input(0), as_matrix(batch, *m, node->input(1))};
      if (node->input(2)) inputs.push_back(node->input(2));
      batch.substitute(node->output(), m->transposed ? "ConvolutionTranspose" : "Convolution", inputs,
                       std::move(attributes), std::string(kQuernDomain), node->name());
      ++report.changes;
    }
    batch.commit();
  }
  return report;
}

}  // namespace quern::passes
