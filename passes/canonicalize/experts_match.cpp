#include "passes/canonicalize/experts_match.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"
#include "passes/canonicalize/view.h"

namespace quern::passes {
namespace {

constexpr const char* kNoExperts = "it has no experts";
constexpr int kTries = 4;              // values that could be the end of a mixture
constexpr size_t kFarthest = 1 << 18;  // nodes between a TopK and the end of its mixture

bool is_float_cast(const Node& node) {
  return node.is("Cast") && is_floating(node.output()->dtype()) && is_floating(node.input(0)->dtype());
}

// Whether axis `axis` of a value is its last.
bool is_last_axis(const Value* value, int64_t axis) {
  return axis == -1 || (value->has_shape() && axis + 1 == static_cast<int64_t>(value->shape().size()));
}

bool only_last_axis(const Node& node, size_t input, const Value* data) {
  const auto& axes = node.input(input) ? node.input(input)->elements() : std::nullopt;
  return axes && axes->size() == 1 && (*axes)[0].is_constant() && is_last_axis(data, (*axes)[0].constant());
}

// Whether each row of the result depends on the same row of the data alone.
bool keeps_rows(const Node& node) {
  static const std::set<std::string_view> kElementwise = {
      "Add",      "Sub", "Mul",  "Div",      "Max",       "Min",       "Pow",       "Relu", "Sigmoid",
      "Tanh",     "Neg", "Sqrt", "Exp",      "Erf",       "Gelu",      "Abs",       "Clip", "Swish",
      "Softplus", "Elu", "Cast", "Identity", "HardSwish", "LeakyRelu", "Reciprocal"};
  if (node.is("Linear", kQuernDomain) || node.is("MatMul")) return true;
  if (!node.domain().empty()) return false;
  if (kElementwise.contains(node.op())) return true;
  if (node.is("Slice")) return only_last_axis(node, 3, node.input(0));
  if (node.is("Split")) return is_last_axis(node.input(0), node.int_attribute("axis", 0));
  return false;
}

// Reproducible numbers between -1 and 1.
double number(uint64_t seed) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 12345;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) / static_cast<double>(1ULL << 52) - 1;
}

}  // namespace

ExpertsMatcher::ExpertsMatcher(const Graph& graph, const TransformerInputs& inputs)
    : graph_(graph), prober_(graph, inputs.symbols), has_past_(!inputs.symbols.past.empty()) {
  const std::vector<Node*>& nodes = graph.nodes();
  varying_.insert(graph.inputs().begin(), graph.inputs().end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    order_[nodes[i]] = i;
    const auto& inputs = nodes[i]->inputs();
    const bool varies =
        !nodes[i]->subgraphs().empty() ||
        std::any_of(inputs.begin(), inputs.end(), [&](const Value* v) { return v && varying_.contains(v); });
    if (varies) varying_.insert(nodes[i]->outputs().begin(), nodes[i]->outputs().end());
  }
}

// A product of data with a constant matrix, or with one for each expert.
bool ExpertsMatcher::is_weighted(const Node& node, int64_t experts) const {
  if (node.is("Linear", kQuernDomain)) return is_constant(node.input(1));
  if (!node.is("MatMul") || !is_constant(node.input(1)) || !node.input(1)->has_shape()) return false;
  const SymShape& weight = node.input(1)->shape();
  return weight.size() == 3 && weight[0] == Dim(experts);
}

// Where the value is needed last by more than its shape.
size_t ExpertsMatcher::last_use(const Value* value) const {
  if (graph_.is_output(value)) return std::numeric_limits<size_t>::max();
  size_t last = 0;
  for (const Use& use : value->uses()) {
    if (use.node->is("Shape") || use.node->is("Size")) continue;
    const auto at = order_.find(use.node);
    last = std::max(last, at == order_.end() ? std::numeric_limits<size_t>::max() : at->second);
  }
  return last;
}

std::optional<ExpertsMatch> ExpertsMatcher::match(const Node& top_k, std::string& reason) const {
  ExpertsMatch match;
  reason.clear();
  const auto experts = last_dim(top_k.input(0));
  const auto& k = top_k.input(1)->elements();
  if (!experts || !k || k->size() != 1 || !(*k)[0].is_constant() ||
      !is_last_axis(top_k.input(0), top_k.int_attribute("axis", -1)) ||
      top_k.int_attribute("largest", 1) == 0) {
    reason = "it does not take a constant number of the greatest of the last axis";
    return std::nullopt;
  }
  match.routing.experts = *experts;
  match.routing.per_token = (*k)[0].constant();
  // Up to the router's product.
  Value* value = top_k.input(0);
  const Node* router = value->producer();
  for (; router && !router->is("Linear", kQuernDomain); router = value->producer()) {
    const bool score = router->is("Softmax") || router->is("Sigmoid") || router->is("Identity");
    if (score || is_float_cast(*router) || is_view_node(*router)) {
      value = router->input(0);
    } else if (router->is("Add") && match.routing.bias == nullptr) {
      const bool second = is_constant(router->input(1));
      match.routing.bias = router->input(second ? 1 : 0);
      value = router->input(second ? 0 : 1);
      if (!is_constant(match.routing.bias)) break;
    } else {
      break;
    }
  }
  if (!router || !router->is("Linear", kQuernDomain) || last_dim(router->output()) != experts) {
    reason = "what it chooses from are not the scores of a router's product";
    return std::nullopt;
  }
  match.logits = router->output();
  match.x = router->input(0);
  std::vector<Value*> aliases = {match.x};  // the same rows, in other shapes
  while (const Node* node = aliases.back()->producer()) {
    if (!is_float_cast(*node) && !node->is("Identity") && !is_view_node(*node)) break;
    aliases.push_back(node->input(0));
  }
  // Down to the first value through which everything goes that the choice decides, and that experts computed.
  const auto hidden = last_dim(match.x);
  std::set<const Value*> dependent = {match.logits}, live = {match.logits};
  const std::vector<Node*>& nodes = graph_.nodes();
  bool chosen = false;
  int tries = 0;
  for (size_t i = order_.at(router) + 1; i < std::min(nodes.size(), order_.at(router) + kFarthest); ++i) {
    const Node* node = nodes[i];
    if (node->is("Shape") || node->is("Size")) continue;
    const auto in = [&](const Value* input) { return input && dependent.contains(input); };
    if (std::none_of(node->inputs().begin(), node->inputs().end(), in)) continue;
    chosen |= node == &top_k;
    for (const Value* input : node->inputs()) {
      if (input && live.contains(input) && last_use(input) <= i) live.erase(input);
    }
    for (Value* output : node->outputs()) {
      if (output == nullptr || last_use(output) == 0) continue;  // not used, or its shape alone
      dependent.insert(output);
      live.insert(output);
    }
    if (live.empty()) break;
    if (!chosen || live.size() > 1 || *live.begin() != node->output()) continue;
    if (!is_floating(node->output()->dtype()) || last_dim(node->output()) != hidden) continue;
    match.output = node->output();
    std::string why;
    if (auto found = analyse(match, aliases, why)) return found;
    if (why == kNoExperts) continue;
    // The results of all experts may be one value before they are summed up.
    if (reason.empty()) reason = why;
    if (++tries == kTries) return std::nullopt;
  }
  if (reason.empty()) reason = "what it decides comes together in no one value";
  return std::nullopt;
}

std::optional<ExpertsMatch> ExpertsMatcher::analyse(ExpertsMatch match, const std::vector<Value*>& aliases,
                                                    std::string& reason) const {
  reason = find_layers(match, aliases);
  try {
    if (reason.empty()) reason = find_routing(match, aliases);
    if (reason.empty()) reason = check_rows(match, aliases);
  } catch (const Error& error) {
    reason = concat("it cannot be evaluated: ", error.message());
  }
  if (!reason.empty()) return std::nullopt;
  return match;
}

// Empty, or why not. The order of the layers is still that of the graph.
std::string ExpertsMatcher::find_layers(ExpertsMatch& match, const std::vector<Value*>& aliases) const {
  std::set<const Value*> given(aliases.begin(), aliases.end());
  given.insert(match.logits);
  const int64_t experts = match.routing.experts;
  // What the output is computed from, latest node last.
  const auto earlier = [&](const Node* a, const Node* b) { return order_.at(a) < order_.at(b); };
  std::set<Node*, decltype(earlier)> region(earlier);
  std::vector<const Value*> open = {match.output};
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    if (value == nullptr || given.contains(value) || is_constant(value) || value->elements()) continue;
    Node* node = value->producer();
    if (node == nullptr) return concat("it depends on '", value->name(), "' too");
    if (node->is("Shape") || !region.insert(node).second) continue;
    open.insert(open.end(), node->inputs().begin(), node->inputs().end());
  }
  // How many products with weights lie above each value.
  std::unordered_map<const Value*, int> depth;
  const auto depth_of = [&](const Value* value) {
    const auto found = depth.find(value);
    return found == depth.end() ? 0 : found->second;
  };
  std::vector<Node*> last_layers;
  for (Node* node : region) {
    int deepest = 0;
    for (const Value* input : node->inputs()) deepest = std::max(deepest, depth_of(input));
    if (is_weighted(*node, experts)) {
      ++deepest;
      if (deepest > 2) return "its experts have more than two layers";
      if (deepest == 2) last_layers.push_back(node);
    }
    for (const Value* output : node->outputs()) {
      if (output) depth[output] = deepest;
    }
  }
  if (last_layers.empty()) return kNoExperts;
  match.batched = last_layers.front()->is("MatMul");
  const auto count = static_cast<int64_t>(last_layers.size());
  if (match.batched ? count != 1 : count != experts)
    return concat("it has ", count, " last layers for ", experts, " experts");
  for (Node* last : last_layers) {
    ExpertLayers layers{.output = last->output()};
    Node* add = match.batched ? sole_user(last->output()) : nullptr;
    if (add && add->is("Add") && is_constant(other_input(*add, last->output())))
      layers.output = add->output();
    std::set<Node*, decltype(earlier)> inside(earlier);
    open = {layers.output};
    while (!open.empty()) {
      const Value* value = open.back();
      open.pop_back();
      if (value == nullptr || is_constant(value)) continue;
      if (depth_of(value) == 0) {
        if (layers.input && layers.input != value)
          return concat("an expert takes '", layers.input->name(), "' and '", value->name(), "'");
        layers.input = const_cast<Value*>(value);
        continue;
      }
      Node* node = value->producer();
      if (!keeps_rows(*node)) return concat(describe(*node), " stands between the layers of an expert");
      if (inside.insert(node).second) open.insert(open.end(), node->inputs().begin(), node->inputs().end());
    }
    if (layers.input == nullptr || last_dim(layers.input) != last_dim(match.x) ||
        last_dim(layers.output) != last_dim(match.x)) {
      return "an expert's layers do not lead from rows to rows";
    }
    layers.nodes.assign(inside.begin(), inside.end());
    match.layers.push_back(std::move(layers));
  }
  return {};
}

namespace {

// Logits and rows for a probe, under all the shapes that they have in the graph.
class Trial {
 public:
  Trial(const Prober& prober, const Probe& probe, const ExpertsMatch& match,
        const std::vector<Value*>& aliases)
      : prober_(prober), probe_(probe), match_(match) {
    tokens_ = probe.batch * probe.sequence;
    width_ = last_dim(match.x).value();
    const int64_t experts = match.routing.experts;
    for (int64_t t = 0; t < tokens_; ++t) {
      // Every expert is somebody's first choice.
      for (int64_t e = 0; e < experts; ++e)
        logits_.push_back(number(static_cast<uint64_t>(t * experts + e)) + (e == t % experts ? 3 : 0));
      for (int64_t c = 0; c < width_; ++c) rows_.push_back(number(static_cast<uint64_t>((t + 7) * 4099 + c)));
    }
    bind(match.logits, logits_);
    for (const Value* alias : aliases) bind(alias, rows_);
  }

  int64_t tokens() const { return tokens_; }
  int64_t width() const { return width_; }
  // As the graph's dtype has them.
  double logit(int64_t t, int64_t e) const {
    return bindings_.at(match_.logits).tensor()->at(t * match_.routing.experts + e);
  }
  double row(int64_t t, int64_t c) const { return bindings_.at(match_.x).tensor()->at(t * width_ + c); }
  const Shape& shape_of(const Value* alias) const { return bindings_.at(alias).tensor()->shape(); }

  // The output where an expert's layers give result(layers, expert if batched, input, feature) instead.
  template <class Result>
  Tensor run(const Result& result) const {
    std::vector<const Value*> inputs;
    for (const ExpertLayers& layers : match_.layers) inputs.push_back(layers.input);
    const std::vector<Tensor> given = prober_.evaluate(inputs, probe_, bindings_);
    runtime::Bindings bindings = bindings_;
    for (size_t j = 0; j < given.size(); ++j) {
      const Tensor& in = given[j];
      const int64_t rows = in.size() / width_;
      if (in.rank() < 2 || (match_.batched && (in.rank() != 3 || in.dim(0) != match_.routing.experts)))
        throw_error(ErrorCode::Unsupported, "an expert's input has the shape ", quern::to_string(in.shape()));
      const int64_t each = match_.batched ? rows / match_.routing.experts : rows;
      Tensor out = Tensor::zeros(match_.layers[j].output->dtype(), in.shape());
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t expert = match_.batched ? r / each : static_cast<int64_t>(j);
        for (int64_t c = 0; c < width_; ++c)
          out.set(r * width_ + c, result(expert, in.at(r * width_ + c), c));
      }
      bindings[match_.layers[j].output] = std::move(out);
    }
    Tensor out = prober_.evaluate(match_.output, probe_, bindings);
    if (out.size() != tokens_ * width_)
      throw_error(ErrorCode::Unsupported, "it gives ", quern::to_string(out.shape()));
    return out;
  }

 private:
  void bind(const Value* value, const std::vector<double>& numbers) {
    Shape shape;
    for (const Dim& dim : value->shape()) shape.push_back(prober_.size(dim, probe_));
    Tensor tensor = Tensor::zeros(value->dtype(), shape);
    if (tensor.size() != static_cast<int64_t>(numbers.size()))
      throw_error(ErrorCode::Unsupported, "'", value->name(), "' is not one row per token");
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, numbers[static_cast<size_t>(i)]);
    bindings_[value] = std::move(tensor);
  }

  const Prober& prober_;
  Probe probe_;
  const ExpertsMatch& match_;
  int64_t tokens_ = 0, width_ = 0;
  std::vector<double> logits_, rows_;
  runtime::Bindings bindings_;
};

double tolerance_of(const ExpertsMatch& match) {
  const DType dtype = match.output->dtype();
  return dtype == DType::F32 ? 1e-4 : dtype == DType::BF16 ? 4e-2 : 5e-3;
}

// What RouteExperts gives.
std::vector<double> route(const Trial& trial, int64_t t, const RoutingKind& kind,
                          const std::vector<double>& bias) {
  const auto experts = static_cast<size_t>(kind.experts);
  std::vector<double> scores(experts);
  double sum = 0;
  for (size_t e = 0; e < experts; ++e) {
    const double logit = trial.logit(t, static_cast<int64_t>(e));
    scores[e] = kind.score == "softmax" ? std::exp(logit) : 1 / (1 + std::exp(-logit));
    sum += scores[e];
  }
  for (double& score : scores) score /= kind.score == "softmax" ? sum : 1;
  std::vector<size_t> order(experts);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return scores[a] + (bias.empty() ? 0 : bias[a]) > scores[b] + (bias.empty() ? 0 : bias[b]);
  });
  std::vector<double> weights(experts);
  double chosen = 0;
  for (int64_t i = 0; i < kind.per_token; ++i) chosen += scores[order[static_cast<size_t>(i)]];
  for (int64_t i = 0; i < kind.per_token; ++i) {
    const size_t e = order[static_cast<size_t>(i)];
    weights[e] = kind.scale * scores[e] / (kind.normalize ? chosen : 1);
  }
  return weights;
}

}  // namespace

// Which layers are which expert's, and how logits become weights.
std::string ExpertsMatcher::find_routing(ExpertsMatch& match, const std::vector<Value*>& aliases) const {
  const int64_t experts = match.routing.experts;
  const Trial trial(prober_, {.batch = 1, .sequence = experts, .past = 0}, match, aliases);
  if (experts > trial.width()) return "it has more experts than features";
  const Tensor out = trial.run([](int64_t expert, double, int64_t c) { return expert == c ? 1.0 : 0.0; });
  const auto seen = [&](int64_t t, int64_t layers) { return out.at(t * trial.width() + layers); };
  std::vector<int64_t> layers_of(static_cast<size_t>(experts));  // by expert
  std::set<int64_t> taken;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t most = 0;
    for (int64_t j = 1; j < experts; ++j) most = seen(e, j) > seen(e, most) ? j : most;
    layers_of[static_cast<size_t>(e)] = most;
    taken.insert(most);
  }
  if (static_cast<int64_t>(taken.size()) != experts) return "some experts serve nobody";
  if (match.batched && !std::is_sorted(layers_of.begin(), layers_of.end()))
    return "the logits are in another order than the experts' weights";
  std::vector<double> bias;
  if (match.routing.bias) {
    const Value* value = match.routing.bias;
    const Tensor tensor = runtime::evaluate(std::span(&value, 1)).front().dense();
    if (tensor.size() != experts) return "the bias of its choice is not one number for each expert";
    for (int64_t e = 0; e < experts; ++e) bias.push_back(tensor.at(e));
  }
  for (const auto& [score, normalize] :
       {std::pair("softmax", true), {"softmax", false}, {"sigmoid", true}, {"sigmoid", false}}) {
    RoutingKind kind = match.routing;
    kind.score = score;
    kind.normalize = normalize;
    kind.scale = 1;
    kind.scale = seen(0, layers_of[0]) / route(trial, 0, kind, bias)[0];
    if (std::abs(kind.scale - 1) < tolerance_of(match)) kind.scale = 1;
    bool fits = std::isfinite(kind.scale) && kind.scale > 0;
    for (int64_t t = 0; t < trial.tokens() && fits; ++t) {
      const std::vector<double> weights = route(trial, t, kind, bias);
      for (int64_t e = 0; e < experts; ++e) {
        const double difference =
            seen(t, layers_of[static_cast<size_t>(e)]) - weights[static_cast<size_t>(e)];
        fits = fits && std::abs(difference) <= tolerance_of(match) * kind.scale;
      }
    }
    if (!fits) continue;
    match.routing = kind;
    if (match.batched) return {};
    std::vector<ExpertLayers> ordered;
    for (const int64_t j : layers_of) ordered.push_back(match.layers[static_cast<size_t>(j)]);
    match.layers = std::move(ordered);
    return {};
  }
  return "its weights are neither a softmax nor a logistic function of the logits, normalized or not";
}

// Whether each row goes to its experts and comes back, and the shape of the whole.
std::string ExpertsMatcher::check_rows(ExpertsMatch& match, const std::vector<Value*>& aliases) const {
  const Trial trial(prober_, {.batch = 2, .sequence = 3, .past = has_past_ ? 2 : 0}, match, aliases);
  const auto factor = [](int64_t expert) { return 0.5 + 0.25 * number(static_cast<uint64_t>(expert + 1)); };
  const Tensor out = trial.run([&](int64_t expert, double x, int64_t c) {
    return x * factor(expert) + 0.01 * static_cast<double>(c);
  });
  std::vector<double> bias;
  if (match.routing.bias) {
    const Value* value = match.routing.bias;
    for (const float b : runtime::evaluate(std::span(&value, 1)).front().dense().to_floats())
      bias.push_back(b);
  }
  for (int64_t t = 0; t < trial.tokens(); ++t) {
    const std::vector<double> weights = route(trial, t, match.routing, bias);
    for (int64_t c = 0; c < trial.width(); ++c) {
      double expected = 0;
      for (int64_t e = 0; e < match.routing.experts; ++e)
        expected +=
            weights[static_cast<size_t>(e)] * (trial.row(t, c) * factor(e) + 0.01 * static_cast<double>(c));
      const double error = std::abs(out.at(t * trial.width() + c) - expected);
      if (error > tolerance_of(match) * (1 + std::abs(expected)) * std::max(1.0, match.routing.scale))
        return "rows do not come back as the sums of what their experts make of them";
    }
  }
  for (Value* alias : aliases) {
    if (trial.shape_of(alias) == out.shape()) match.output_like = alias;
  }
  return match.output_like ? "" : concat("its result has the shape ", quern::to_string(out.shape()));
}

}  // namespace quern::passes
