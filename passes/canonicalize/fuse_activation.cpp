#include "passes/canonicalize/fuse_activation.h"

#include <cmath>
#include <numbers>
#include <set>

#include "passes/canonicalize/match.h"
#include "runtime/interpreter.h"

namespace quern::passes {
namespace {

const std::set<std::string_view> kElementwise = {"Add", "Sub",  "Mul",        "Div",     "Pow",
                                                 "Erf", "Tanh", "Sigmoid",    "Neg",     "Sqrt",
                                                 "Exp", "Cast", "Reciprocal", "Identity"};
constexpr int kMaxTree = 24;  // nodes of one activation

bool is_elementwise(const Node& node) {
  return node.domain().empty() && kElementwise.contains(node.op());
}

// Values that a chain of elementwise operators with scalars leads from to the anchor, nearest first.
std::vector<Value*> sources_of(const Node& anchor) {
  std::vector<Value*> sources;
  std::vector<Value*> open = {anchor.input(0)};
  std::set<Value*> seen;
  while (!open.empty() && sources.size() < kMaxTree) {
    Value* value = open.front();
    open.erase(open.begin());
    if (constant_scalar(value) || !seen.insert(value).second) continue;
    sources.push_back(value);
    const Node* producer = value->producer();
    if (producer == nullptr || !is_elementwise(*producer)) continue;
    for (Value* input : producer->inputs()) open.push_back(input);
  }
  return sources;
}

// The nodes that compute from x and scalars alone, in topological order.
std::vector<Node*> tree_from(Value* x) {
  std::vector<Node*> tree;
  std::set<const Value*> inside = {x};
  std::vector<const Value*> open = {x};
  std::set<const Node*> taken;
  while (!open.empty() && tree.size() < kMaxTree) {
    const Value* value = open.front();
    open.erase(open.begin());
    for (const Use& use : value->uses()) {
      Node* node = use.node;
      if (node->graph() != x->graph() || !is_elementwise(*node) || taken.contains(node)) continue;
      bool complete = true;
      for (const Value* input : node->inputs()) complete &= inside.contains(input) || constant_scalar(input);
      if (!complete) continue;
      taken.insert(node);
      tree.push_back(node);
      inside.insert(node->output());
      open.push_back(node->output());
    }
  }
  return tree;
}

struct Activation {
  const char* op;
  Attributes attributes;
};

std::vector<float> grid() {
  std::vector<float> points;
  for (int i = -40; i <= 40; ++i) points.push_back(static_cast<float>(i) * 0.25F + 0.03F);
  return points;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double swish(double x, double alpha) {
  return x / (1 + std::exp(-alpha * x));
}

// The largest error relative to 1 + |f|; infinite where y is not a number.
template <class Function>
double error_of(const std::vector<float>& x, const std::vector<float>& y, Function function) {
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = function(static_cast<double>(x[i]));
    const double error = std::abs(y[i] - expected) / (1 + std::abs(expected));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

// The function with these values on the grid.
std::optional<Activation> recognise(const std::vector<float>& x, const std::vector<float>& y, DType dtype) {
  const double tolerance = dtype == DType::F32 || dtype == DType::F64 ? 3e-6
                           : dtype == DType::BF16                     ? 2e-2
                                                                      : 2e-3;
  // The two Gelus lie within 5e-4 of one another: take the nearer.
  const double none = error_of(x, y, gelu);
  const double tanh = error_of(x, y, gelu_tanh);
  if (std::min(none, tanh) <= tolerance) {
    return Activation{"Gelu", {{"approximate", std::string(none <= tanh ? "none" : "tanh")}}};
  }
  // y = x * sigmoid(alpha * x): alpha from the point nearest 1.
  size_t at = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::abs(x[i] - 1) < std::abs(x[at] - 1)) at = i;
  }
  const double gate = static_cast<double>(y[at]) / x[at];
  if (!(gate > 0.5 && gate < 1)) return std::nullopt;
  double alpha = std::log(gate / (1 - gate)) / x[at];
  for (const double known : {1.0, 1.702}) {
    if (std::abs(alpha - known) < 20 * tolerance) alpha = known;
  }
  if (error_of(x, y, [&](double v) { return swish(v, alpha); }) > tolerance) return std::nullopt;
  return Activation{"Swish", {{"alpha", static_cast<float>(alpha)}}};
}

Tensor grid_tensor(DType dtype) {
  const std::vector<float> points = grid();
  return Tensor::from<float>({static_cast<int64_t>(points.size())}, points).cast(dtype);
}

struct Match {
  Value* x;
  Value* y;
  Activation activation;
};

// The largest subtree through the anchor that is an activation.
std::optional<Match> match_from(const Node& anchor, PassContext& context, PassReport& report) {
  for (Value* x : sources_of(anchor)) {
    if (!is_floating(x->dtype())) continue;
    const std::vector<Node*> tree = tree_from(x);
    const bool through = std::find(tree.begin(), tree.end(), &anchor) != tree.end();
    if (!through) continue;
    std::vector<const Value*> outputs;
    for (const Node* node : tree) {
      if (node->output()->dtype() == x->dtype()) outputs.push_back(node->output());
    }
    const Tensor points = grid_tensor(x->dtype());
    const auto values = runtime::evaluate(outputs, {{x, points}});
    for (size_t i = outputs.size(); i-- > 0;) {
      const auto found = recognise(points.to_floats(), values[i].dense().to_floats(), x->dtype());
      if (found) return Match{x, const_cast<Value*>(outputs[i]), *found};
    }
  }
  context.explain_failure(report, anchor, "what it is part of is none of Gelu, tanh Gelu, Swish");
  return std::nullopt;
}

// com.microsoft's names for them.
bool rename_known(BatchRewriter& batch, const Node& node) {
  if (node.domain() != "com.microsoft") return false;
  const std::string& op = node.op();
  const bool tanh = op == "FastGelu";
  if (op == "QuickGelu") {
    batch.substitute(node.output(), "Swish", {node.input(0)},
                     {{"alpha", node.float_attribute("alpha", 1.702F)}}, "", node.name());
    return true;
  }
  if (op != "Gelu" && op != "BiasGelu" && !tanh) return false;
  Value* x = node.input(0);
  if (node.input(1) != nullptr) x = batch.add("Add", {x, node.input(1)});
  batch.substitute(node.output(), "Gelu", {x}, {{"approximate", std::string(tanh ? "tanh" : "none")}}, "",
                   node.name());
  return true;
}

}  // namespace

FuseActivation::FuseActivation()
    : Pass("fuse-activation", "Gelu and Swish written as arithmetic become operators") {}

PassReport FuseActivation::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    std::set<const Value*> done;
    for (const Node* node : each->nodes()) {
      if (rename_known(batch, *node)) {
        ++report.changes;
        continue;
      }
      if (!(node->is("Erf") || node->is("Tanh") || node->is("Sigmoid"))) continue;
      const auto match = match_from(*node, context, report);
      if (!match || !done.insert(match->y).second) continue;
      batch.substitute(match->y, match->activation.op, {match->x}, match->activation.attributes, "",
                       node->name());
      ++report.changes;
    }
    batch.commit();
  }
  return report;
}

}  // namespace quern::passes
