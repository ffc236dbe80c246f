#include "passes/canonicalize/attention_match.h"

#include <algorithm>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

constexpr double kMaskedBelow = -1e3;  // a fill that no score survives

bool is_float_cast(const Node& node) {
  return node.is("Cast") && is_floating(node.output()->dtype()) && is_floating(node.input(0)->dtype());
}

bool is_product(const Node& node) {
  return node.is("MatMul") || node.is("FusedMatMul", kMicrosoftDomain);
}

// Whether a Reshape leaves the last two axes alone.
bool keeps_last_two(const Node& node) {
  const Value* in = node.input(0);
  const Value* out = node.output();
  if (!in->has_shape() || !out->has_shape() || in->shape().size() < 3 || out->shape().size() < 3)
    return false;
  return std::equal(in->shape().end() - 2, in->shape().end(), out->shape().end() - 2);
}

// The constant with a logit per head that is joined to the scores as a further key; null if that is not what
// the node does.
Value* joined_sinks(const Node& node) {
  if (!node.is("Concat") || node.inputs().size() != 2 || !node.output()->has_shape()) return nullptr;
  const int64_t axis = node.int_attribute("axis", 0);
  if (axis != -1 && axis + 1 != static_cast<int64_t>(node.output()->shape().size())) return nullptr;
  Value* sinks = node.input(1);
  while (sinks && !is_constant_expression(sinks)) {
    const Node* producer = sinks->producer();
    const bool spreads = producer && (producer->is("Expand") || is_float_cast(*producer));
    sinks = spreads ? producer->input(0) : nullptr;
  }
  if (sinks == nullptr || !sinks->has_shape() || sinks->shape().size() != 4) return nullptr;
  const SymShape& shape = sinks->shape();
  const bool by_head =
      shape[0] == Dim(1) && shape[1].is_constant() && shape[2] == Dim(1) && shape[3] == Dim(1);
  return by_head ? sinks : nullptr;
}

// x of x - ReduceMax(x), which a softmax does not see; null if the node does something else.
Value* less_its_maximum(const Node& node) {
  if (!node.is("Sub")) return nullptr;
  const Node* maximum = produced_by(skip_casts(node.input(1)), "ReduceMax");
  return maximum && skip_casts(maximum->input(0)) == skip_casts(node.input(0)) ? node.input(0) : nullptr;
}

// Whether the node leaves out the last of the last axis.
bool drops_last(const Node& node) {
  if (!node.is("Slice") || !node.input(0)->has_shape()) return false;
  const auto is = [&](size_t input, int64_t wanted) {
    const auto number = constant_scalar(node.input(input));
    return number && *number == static_cast<double>(wanted);
  };
  const auto rank = static_cast<int64_t>(node.input(0)->shape().size());
  return is(1, 0) && is(2, -1) && (is(3, -1) || is(3, rank - 1)) && (!node.input(4) || is(4, 1));
}

struct Scores {
  Value* sinks = nullptr;
  Node* product = nullptr;
  double scale = 1;
  double softcap = 0;
  std::vector<MaskTerm> terms;
};

// From the input of the Softmax up to the product of q and k.
class ScoresWalk {
 public:
  explicit ScoresWalk(std::string& reason) : reason_(reason) {}

  std::optional<Scores> walk(Value* value, Scores found, int depth = 0) {
    for (; depth < 32; ++depth) {
      Node* node = value->producer();
      if (node == nullptr)
        return give_up("the scores come from '" + value->name() + "', which is no product");
      if (is_product(*node)) {
        if (is_constant_expression(node->input(0)) || is_constant_expression(node->input(1))) {
          return give_up("the scores are a product with a constant");
        }
        if (node->is("FusedMatMul", kMicrosoftDomain)) found.scale *= node->float_attribute("alpha", 1.0F);
        if (found.softcap != 0) found.scale *= found.softcap;
        found.product = node;
        return found;
      }
      if (is_float_cast(*node) || node->is("Identity") || (node->is("Reshape") && keeps_last_two(*node))) {
        value = node->input(0);
      } else if (node->is("Mul") || node->is("Div")) {
        const auto [scalar, other] = scalar_operand(*node);
        if (!scalar || (node->is("Div") && other != node->input(0))) return give_up("it scales by no scalar");
        found.scale *= node->is("Mul") ? *scalar : 1 / *scalar;
        value = other;
      } else if (node->is("Tanh")) {
        if (found.softcap != 0) return give_up("it caps twice");
        found.softcap = found.scale;
        found.scale = 1;
        value = node->input(0);
      } else if (Value* less = less_its_maximum(*node)) {
        value = less;
      } else if (Value* sinks = found.terms.empty() && found.scale == 1 ? joined_sinks(*node) : nullptr) {
        if (found.sinks) return give_up("it joins two columns of sinks");
        found.sinks = sinks;
        value = node->input(0);
      } else if (node->is("Where")) {
        return branch_where(*node, found, depth);
      } else if (node->is("Add") || node->is("Sub")) {
        return branch_add(*node, found, depth);
      } else {
        return give_up(describe(*node) + " stands between product and Softmax");
      }
    }
    return give_up("too many operators stand between product and Softmax");
  }

 private:
  std::optional<Scores> give_up(std::string why) {
    if (reason_.empty()) reason_ = std::move(why);
    return std::nullopt;
  }

  std::optional<Scores> branch_where(const Node& node, const Scores& found, int depth) {
    for (const size_t side : {1, 2}) {
      const auto fill = constant_scalar(node.input(3 - side));
      if (!fill || !(*fill * found.scale <= kMaskedBelow)) continue;
      if (found.softcap != 0) return give_up("it masks before the soft cap");
      Scores inner = found;
      inner.terms.push_back(
          {.value = node.input(0), .boolean = true, .keep_where = side == 1, .fill = *fill * found.scale});
      return walk(node.input(side), std::move(inner), depth + 1);
    }
    return give_up(describe(node) + " fills with no large negative constant");
  }

  // Either operand may be the scores; the one that leads to a product is.
  std::optional<Scores> branch_add(const Node& node, const Scores& found, int depth) {
    if (found.softcap != 0) return give_up("it adds a mask before the soft cap");
    const size_t sides = node.is("Sub") ? 1 : 2;
    for (size_t side = 0; side < sides; ++side) {
      Scores inner = found;
      inner.terms.push_back(
          {.value = node.input(1 - side), .factor = node.is("Sub") ? -found.scale : found.scale});
      if (auto result = walk(node.input(side), std::move(inner), depth + 1)) return result;
    }
    return std::nullopt;
  }

  std::string& reason_;
};

// From the Softmax down to the product with v.
Node* find_output_product(Node& softmax, bool& nan_guard, bool& without_last) {
  Value* p = softmax.output();
  for (int depth = 0; depth < 16; ++depth) {
    if (p->uses().size() == 2) {  // Where(IsNaN(p), 0, p)
      Node* a = p->uses()[0].node;
      Node* b = p->uses()[1].node;
      if (b->is("IsNaN")) std::swap(a, b);
      if (!a->is("IsNaN") || !b->is("Where") || b->input(0) != a->output() || b->input(2) != p ||
          constant_scalar(b->input(1)) != 0.0) {
        return nullptr;
      }
      nan_guard = true;
      p = b->output();
      continue;
    }
    Node* user = sole_user(p);
    if (user == nullptr) return nullptr;
    if (is_product(*user)) return user->input(0) == p ? user : nullptr;
    const bool drops = drops_last(*user);
    without_last |= drops;
    const bool passes = drops || is_float_cast(*user) || user->is("Identity") ||
                        (user->is("Dropout") && user->input(0) == p) ||
                        (user->is("Reshape") && keeps_last_two(*user));
    if (!passes) return nullptr;
    p = user->output();
  }
  return nullptr;
}

// From an operand of a product up through re-indexings and scalings.
std::optional<AttentionOperand> stages_of(Value* operand, bool scalings) {
  std::vector<std::pair<Node*, int>> nodes;  // with the output used; from the operand upwards
  Value* root = operand;
  std::vector<double> factors;
  while (Node* node = root->producer()) {
    double factor = 1;
    Value* next = nullptr;
    if (is_view_node(*node)) {
      next = node->input(0);
    } else if (scalings && (node->is("Mul") || node->is("Div"))) {
      const auto [scalar, other] = scalar_operand(*node);
      if (scalar && (node->is("Mul") || other == node->input(0))) {
        factor = node->is("Mul") ? *scalar : 1 / *scalar;
        next = other;
      }
    }
    if (next == nullptr || !next->has_shape()) break;
    nodes.emplace_back(node, root->output_index());
    factors.push_back(factor);
    root = next;
  }
  // A node that no view describes (a Slice with steps, say) ends the chain below itself: start again from
  // there.
  for (size_t top = nodes.size();; --top) {
    Value* base = top == 0 ? operand : nodes[top - 1].first->input(0);
    if (!base->has_shape()) return std::nullopt;
    AttentionOperand result;
    View view(base->shape());
    result.stages.push_back({base, view});
    bool whole = true;
    for (size_t i = top; i-- > 0 && whole;) {
      const auto& [node, output] = nodes[i];
      const auto next = is_view_node(*node) ? view.apply(*node, output) : std::optional(view);
      whole = next.has_value();
      if (whole) view = *next;
      result.stages.push_back({node->output(static_cast<size_t>(output)), view});
    }
    if (whole) {
      double scale = 1;
      for (size_t i = 0; i < top; ++i) {
        scale *= factors[i];
        result.stages[top - i - 1].scale = scale;
      }
      return result;
    }
    if (top == 0) return std::nullopt;
  }
}

// Names the axes of the operand: [lead..., rows, columns], sequence and size being one each of the last two.
bool name_axes(AttentionOperand& operand, bool sequence_last) {
  const View& view = operand.stages.back().view;
  const int rank = view.rank();
  if (rank < 3 || rank > 5) return false;
  operand.sequence = view.axis(sequence_last ? -1 : -2);
  operand.size = view.axis(sequence_last ? -2 : -1);
  std::vector<ViewAtom> lead;
  size_t batch_atoms = 0;
  for (int i = 0; i < rank - 2; ++i) {
    lead.insert(lead.end(), view.axis(i).begin(), view.axis(i).end());
    if (i == 0) batch_atoms = lead.size();
  }
  if (rank == 3) {
    const auto first_head =
        std::find_if(lead.begin(), lead.end(), [](const ViewAtom& atom) { return atom.size.is_constant(); });
    batch_atoms = static_cast<size_t>(first_head - lead.begin());
  }
  operand.batch.assign(lead.begin(), lead.begin() + static_cast<int64_t>(batch_atoms));
  operand.heads.assign(lead.begin() + static_cast<int64_t>(batch_atoms), lead.end());
  // Repetition for groups: the innermost loops over heads.
  while (!operand.heads.empty() && operand.heads.back().axis == ViewAtom::kBroadcast)
    operand.heads.pop_back();
  const Dim count = size_of(operand.heads);
  const auto broadcast = [](const ViewAtom& atom) { return atom.axis == ViewAtom::kBroadcast; };
  for (const ViewAxis* axis : {&operand.batch, &operand.heads, &operand.sequence, &operand.size}) {
    if (std::any_of(axis->begin(), axis->end(), broadcast)) return false;
  }
  if (!count.is_constant() || !size_of(operand.size).is_constant()) return false;
  operand.head_count = count.constant();
  return true;
}

}  // namespace

std::optional<AttentionMatch> match_attention(Node& softmax, std::string& reason) {
  const Value* scores = softmax.input(0);
  const int64_t axis = softmax.int_attribute("axis", softmax.opset() < 13 ? 1 : -1);
  const bool last =
      scores->has_shape() && (axis == -1 || axis + 1 == static_cast<int64_t>(scores->shape().size()));
  if (!last) {
    reason = "it is not over the last axis";
    return std::nullopt;
  }
  AttentionMatch match;
  match.softmax = &softmax;
  bool without_last = false;
  match.product = find_output_product(softmax, match.nan_guard, without_last);
  if (match.product == nullptr) {
    reason = "no product with values follows";
    return std::nullopt;
  }
  auto found = ScoresWalk(reason).walk(softmax.input(0), {});
  if (!found) return std::nullopt;
  if (without_last != (found->sinks != nullptr)) {
    reason = "its scores have a last column that is no sink";
    return std::nullopt;
  }
  match.sinks = found->sinks;
  match.scale = found->scale;
  match.softcap = found->softcap;
  match.terms = std::move(found->terms);
  const auto q = stages_of(found->product->input(0), true);
  const auto k = stages_of(found->product->input(1), true);
  const auto v = stages_of(match.product->input(1), false);
  if (!q || !k || !v) {
    reason = "the shapes of its operands are not known";
    return std::nullopt;
  }
  match.q = *q;
  match.k = *k;
  match.v = *v;
  match.scores_rank =
      match.product->output()->has_shape() ? static_cast<int>(match.product->output()->shape().size()) : 0;
  const bool transposed = found->product->int_attribute("transB", 0) != 0;
  if (found->product->int_attribute("transA", 0) != 0 || !name_axes(match.q, false) ||
      !name_axes(match.k, !transposed) || !name_axes(match.v, false)) {
    reason = "its operands do not divide into batch, heads, sequence and head size";
    return std::nullopt;
  }
  if (match.sinks && !(match.sinks->shape()[1] == Dim(match.q.head_count))) {
    reason = "its sinks are not one for each head";
    return std::nullopt;
  }
  if (match.k.head_count != match.v.head_count || match.q.head_count % match.k.head_count != 0) {
    reason = concat(match.q.head_count, " query heads do not share ", match.k.head_count, " key and ",
                    match.v.head_count, " value heads");
    return std::nullopt;
  }
  return match;
}

}  // namespace quern::passes
