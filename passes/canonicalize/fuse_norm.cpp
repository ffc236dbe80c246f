#include "passes/canonicalize/fuse_norm.h"

#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

struct NormMatch {
  bool centered = false;  // LayerNormalization
  Value* x = nullptr;
  Value* weight = nullptr;
  Value* bias = nullptr;
  float epsilon = 0;
  Value* output = nullptr;
};

bool is_mean_of_last_axis(const Node& node) {
  if (!node.is("ReduceMean") || node.int_attribute("keepdims", 1) != 1) return false;
  std::vector<int64_t> axes = node.ints_attribute("axes", {});
  if (node.input(1) != nullptr) {
    const Tensor* tensor = node.input(1)->tensor();
    if (tensor == nullptr) return false;
    axes = tensor->to_ints();
  }
  if (axes.size() != 1) return false;
  const Value* x = node.input(0);
  return axes[0] == -1 || (x->has_shape() && axes[0] == static_cast<int64_t>(x->shape().size()) - 1);
}

// d, where `value` is d squared; else null.
Value* square_root_of(const Value* value) {
  if (const Node* pow = produced_by(value, "Pow")) {
    return constant_scalar(pow->input(1)) == 2.0 ? pow->input(0) : nullptr;
  }
  const Node* mul = produced_by(value, "Mul");
  return mul && mul->input(0) == mul->input(1) ? mul->input(0) : nullptr;
}

bool same_sub(const Value* a, const Value* b) {
  if (a == b) return true;
  const Node* first = produced_by(a, "Sub");
  const Node* second = produced_by(b, "Sub");
  return first && second && first->inputs() == second->inputs();
}

// The only user, with Casts between floating types skipped; `value` becomes the value that it uses.
Node* next_user(Value*& value) {
  Node* user = sole_user(value);
  while (user && (user->is("Identity") || (user->is("Cast") && is_floating(user->output()->dtype())))) {
    value = user->output();
    user = sole_user(value);
  }
  return user;
}

// From the mean of squares to d * rsqrt(mean + epsilon). Null and a reason where that breaks off.
Value* normalized(Value* mean, Value* d, NormMatch& match, std::string& reason) {
  Node* add = next_user(mean);
  const auto epsilon = add && add->is("Add") ? scalar_operand(*add).first : std::nullopt;
  if (!epsilon) {
    reason = "no constant epsilon is added to the mean of squares";
    return nullptr;
  }
  match.epsilon = static_cast<float>(*epsilon);
  Value* root = add->output();
  Node* sqrt = next_user(root);
  Value* divisor = nullptr;  // what d is divided by, or
  Value* factor = nullptr;   // multiplied with
  if (sqrt && sqrt->is("Sqrt")) {
    divisor = sqrt->output();
    Node* inverse = next_user(divisor);
    if (inverse && (inverse->is("Reciprocal") || (inverse->is("Div") && inverse->input(1) == divisor &&
                                                  constant_scalar(inverse->input(0)) == 1.0))) {
      factor = inverse->output();
    }
  } else if (sqrt && sqrt->is("Pow") && sqrt->input(0) == root && constant_scalar(sqrt->input(1)) == -0.5) {
    factor = sqrt->output();
  } else {
    reason = "no square root follows the epsilon";
    return nullptr;
  }
  Node* last = factor ? next_user(factor) : next_user(divisor);
  const bool fits = last && (factor ? last->is("Mul") && other_input(*last, factor)
                                    : last->is("Div") && last->input(1) == divisor);
  Value* scaled = fits ? (factor ? other_input(*last, factor) : last->input(0)) : nullptr;
  if (scaled == nullptr || !same_sub(skip_casts(scaled), skip_casts(d))) {
    reason = "the root does not scale the values whose squares were averaged";
    return nullptr;
  }
  return last->output();
}

// A constant operand of `user` that has one number per feature, or one for all of them.
Value* feature_constant(const Node* user, const char* op, const Value* value, int64_t features) {
  Value* other = user && user->is(op) ? other_input(*user, value) : nullptr;
  if (other == nullptr || !is_constant_expression(other) || !other->has_shape()) return nullptr;
  const auto shape = as_constant(other->shape());
  if (!shape) return nullptr;
  const int64_t count = element_count(*shape);
  return count == features && (shape->empty() ? features == 1 : shape->back() == features) ? other : nullptr;
}

std::optional<NormMatch> match_from(const Node& mean, PassContext& context, PassReport& report) {
  Value* d = is_mean_of_last_axis(mean) ? square_root_of(mean.input(0)) : nullptr;
  if (d == nullptr) return std::nullopt;
  const auto features = last_dim(d);
  std::string reason = features ? "" : "the size of the last axis is not known";
  NormMatch match;
  Value* value = features ? normalized(mean.output(), d, match, reason) : nullptr;
  if (value == nullptr) {
    context.explain_failure(report, mean, reason);
    return std::nullopt;
  }
  match.x = d;
  if (const Node* sub = produced_by(skip_casts(d), "Sub")) {
    const Node* center = produced_by(skip_casts(sub->input(1)), "ReduceMean");
    if (center && is_mean_of_last_axis(*center) &&
        skip_casts(center->input(0)) == skip_casts(sub->input(0))) {
      match.centered = true;
      match.x = sub->input(0);
    }
  }
  match.output = value;
  Value* at = value;
  const Node* scale = next_user(at);
  if (Value* weight = feature_constant(scale, "Mul", at, *features)) {
    match.weight = weight;
    match.output = at = scale->output();
    const Node* shift = next_user(at);
    Value* bias = match.centered ? feature_constant(shift, "Add", at, *features) : nullptr;
    if (bias != nullptr) {
      match.bias = bias;
      match.output = shift->output();
    }
  }
  return match;
}

// As a rank-1 value of the dtype wanted.
Value* as_vector(BatchRewriter& batch, Value* value, int64_t features, DType dtype) {
  if (value->shape().size() != 1) {
    value = batch.add("Reshape", {value, batch.add_constant(Tensor::from<int64_t>({1}, {features}))});
  }
  if (value->dtype() != dtype) {
    value = batch.add("Cast", {value},
                      {{"to", int64_t{dtype == DType::F16    ? 10
                                      : dtype == DType::BF16 ? 16
                                                             : 1}}});
  }
  return value;
}

Value* with_dtype(BatchRewriter& batch, Value* value, DType dtype) {
  for (Value* at = value;; at = at->producer()->input(0)) {
    if (at->dtype() == dtype) return at;
    if (at->producer() == nullptr || !at->producer()->is("Cast")) break;
  }
  return batch.add("Cast", {value},
                   {{"to", int64_t{dtype == DType::F16    ? 10
                                   : dtype == DType::BF16 ? 16
                                                          : 1}}});
}

void rewrite(BatchRewriter& batch, const Node& mean, const NormMatch& match) {
  const int64_t features = *last_dim(match.x);
  const DType dtype = match.output->dtype();
  Value* weight = match.weight;
  if (weight == nullptr) {
    Tensor ones = Tensor::zeros(dtype, {features});
    for (int64_t i = 0; i < features; ++i) ones.set(i, 1.0);
    weight = batch.add_constant(std::move(ones));
  } else {
    weight = as_vector(batch, weight, features, dtype);
  }
  std::vector<Value*> inputs = {with_dtype(batch, match.x, dtype), weight};
  if (match.bias) inputs.push_back(as_vector(batch, match.bias, features, dtype));
  batch.substitute(match.output, match.centered ? "LayerNormalization" : "RMSNormalization", inputs,
                   {{"axis", int64_t{-1}}, {"epsilon", match.epsilon}, {"stash_type", int64_t{1}}}, "",
                   mean.name());
}

bool rename_simplified(BatchRewriter& batch, const Node& node) {
  if (node.op() != "SimplifiedLayerNormalization") return false;
  const Value* x = node.input(0);
  const int64_t axis = node.int_attribute("axis", -1);
  const bool last = axis == -1 || (x->has_shape() && axis + 1 == static_cast<int64_t>(x->shape().size()));
  if (!last || (node.output(1) && !node.output(1)->uses().empty())) return false;
  batch.substitute(node.output(), "RMSNormalization", {node.input(0), node.input(1)},
                   {{"axis", int64_t{-1}},
                    {"epsilon", node.float_attribute("epsilon", 1e-5F)},
                    {"stash_type", node.int_attribute("stash_type", 1)}},
                   "", node.name());
  return true;
}

}  // namespace

FuseNorm::FuseNorm()
    : Pass("fuse-norm", "layer and RMS normalizations written as arithmetic become operators") {}

PassReport FuseNorm::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    for (const Node* node : each->nodes()) {
      if (rename_simplified(batch, *node)) {
        ++report.changes;
      } else if (const auto match = match_from(*node, context, report)) {
        rewrite(batch, *node, *match);
        ++report.changes;
      }
    }
    batch.commit();
  }
  return report;
}

}  // namespace quern::passes
