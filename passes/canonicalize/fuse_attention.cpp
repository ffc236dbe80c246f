#include "passes/canonicalize/fuse_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/schema.h"
#include "ir/shape_inference.h"
#include "passes/canonicalize/attention_match.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {
namespace {

ViewAxis joined(ViewAxis a, const ViewAxis& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A stage of the operand with the axes wanted, up to a permutation; the permutation that makes them so.
struct Found {
  const AttentionOperand::Stage* stage = nullptr;
  std::vector<int64_t> perm;
};

Found find_stage(const AttentionOperand& operand, const std::vector<ViewAxis>& wanted) {
  const View target = View::of_axes(wanted, operand.stages.back().view.offsets());
  for (const auto& stage : operand.stages) {
    if (stage.view.rank() != target.rank() || stage.view.offsets() != target.offsets()) continue;
    std::vector<int64_t> perm;
    std::vector<bool> taken(static_cast<size_t>(target.rank()), false);
    for (int i = 0; i < target.rank(); ++i) {
      for (int j = 0; j < target.rank(); ++j) {
        if (taken[static_cast<size_t>(j)] || stage.view.axis(j) != target.axis(i)) continue;
        taken[static_cast<size_t>(j)] = true;
        perm.push_back(j);
        break;
      }
    }
    if (static_cast<int>(perm.size()) == target.rank()) return {&stage, perm};
  }
  return {};
}

bool is_identity(const std::vector<int64_t>& perm) {
  return std::is_sorted(perm.begin(), perm.end());
}

// The operand as [batch, sequence, heads * size], if it stands there in that form.
Found find_packed(const AttentionOperand& operand) {
  Found found = find_stage(operand, {operand.batch, operand.sequence, joined(operand.heads, operand.size)});
  return found.stage && is_identity(found.perm) ? found : Found{};
}

Value* shape_constant(BatchRewriter& batch, const std::vector<int64_t>& shape) {
  return batch.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(shape.size())}, shape));
}

// How an operand becomes [batch, heads, sequence, size]: by permuting a stage, or by parting its last axis
// too.
struct HeadsPlan {
  Found found;
  bool packed = false;
  int64_t heads = 1, size = 1;
};

HeadsPlan plan_heads(const AttentionOperand& operand) {
  HeadsPlan plan{.heads = operand.head_count, .size = size_of(operand.size).constant()};
  plan.found = find_stage(operand, {operand.batch, operand.heads, operand.sequence, operand.size});
  if (plan.found.stage == nullptr) {
    plan.found = find_packed(operand);
    plan.packed = true;
  }
  return plan;
}

Value* emit_heads(BatchRewriter& batch, const HeadsPlan& plan) {
  Value* value = plan.found.stage->value;
  if (plan.packed) {
    value = batch.add("Reshape", {value, shape_constant(batch, {0, 0, plan.heads, plan.size})});
    return batch.add("Transpose", {value}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }
  if (is_identity(plan.found.perm)) return value;
  return batch.add("Transpose", {value}, {{"perm", plan.found.perm}});
}

// Whether mask_to_scores knows what to do.
bool mask_fits(const Value* mask, int scores) {
  if (!mask->has_shape()) return false;
  const int rank = static_cast<int>(mask->shape().size());
  const auto unit = [&](int from_end) {
    return mask->shape()[static_cast<size_t>(rank - from_end)] == Dim(1);
  };
  // Products over joint axes [batch * heads, S, T] meet masks of four axes behind a Reshape that parts them.
  if (rank < 3 || rank == 4) return rank < 3 || scores != 5 || (unit(3) && unit(4));
  if (rank == 3) return scores != 5 || unit(3);
  return rank == 5 && scores == 5 && unit(3);
}

// Brings a mask to the four axes of the scores, or to fewer that broadcast to them.
Value* mask_to_scores(BatchRewriter& batch, Value* mask, const AttentionMatch& match) {
  const int rank = static_cast<int>(mask->shape().size());
  const int scores = match.scores_rank;
  if (scores == 3 && rank == 3 && !(mask->shape()[0] == Dim(1))) {
    // [batch * heads, S, T]: part the first axis.
    Value* tail = batch.add("Shape", {mask}, {{"start", int64_t{1}}});
    Value* shape =
        batch.add("Concat", {shape_constant(batch, {-1, match.q.head_count}), tail}, {{"axis", int64_t{0}}});
    return batch.add("Reshape", {mask, shape});
  }
  if (scores == 5 && rank == 5) return batch.add("Squeeze", {mask, shape_constant(batch, {2})});
  if (scores == 5 && rank == 4) return batch.add("Squeeze", {mask, shape_constant(batch, {1})});
  return mask;
}

Value* as_added(BatchRewriter& batch, Value* condition, const MaskTerm& term, DType dtype) {
  Value* zero = batch.add_constant(Tensor::scalar<float>(0.0F).cast(dtype));
  const double lowest = dtype == DType::F16    ? -65504.0
                        : dtype == DType::BF16 ? -3.3895313892515355e38
                                               : -3.4028234663852886e38;
  const double fill = std::isinf(term.fill) ? term.fill : std::max(term.fill, lowest);
  Value* filled = batch.add_constant(Tensor::scalar<float>(static_cast<float>(fill)).cast(dtype));
  return term.keep_where ? batch.add("Where", {condition, zero, filled})
                         : batch.add("Where", {condition, filled, zero});
}

// All terms as one mask: a condition where there are conditions alone and rows that see nothing are guarded
// (then Attention gives zeros for them); else a sum.
Value* emit_mask(BatchRewriter& batch, const AttentionMatch& match, DType dtype) {
  Value* mask = nullptr;
  const bool conditions =
      match.nan_guard && std::all_of(match.terms.begin(), match.terms.end(), [](const MaskTerm& term) {
        return term.boolean && std::isinf(term.fill);
      });
  for (const MaskTerm& term : match.terms) {
    Value* value = mask_to_scores(batch, batch.resolve(term.value), match);
    if (term.boolean && conditions) {
      if (!term.keep_where) value = batch.add("Not", {value});
      mask = mask ? batch.add("And", {mask, value}) : value;
      continue;
    }
    if (term.boolean) {
      value = as_added(batch, value, term, dtype);
    } else {
      if (value->dtype() != dtype) value = batch.add("Cast", {value}, {{"to", onnx_code(dtype)}});
      if (term.factor != 1) {
        Value* factor =
            batch.add_constant(Tensor::scalar<float>(static_cast<float>(term.factor)).cast(dtype));
        value = batch.add("Mul", {value, factor});
      }
    }
    mask = mask ? batch.add("Add", {mask, value}) : value;
  }
  return mask;
}

// The value [batch, S, heads * size] that the output of the product goes back to; else null.
Value* packed_output(const AttentionMatch& match) {
  const Value* output = match.product->output();
  const Node* transpose = sole_user(output);
  if (!transpose || !transpose->is("Transpose") || match.scores_rank != 4 ||
      transpose->ints_attribute("perm", {}) != std::vector<int64_t>{0, 2, 1, 3}) {
    return nullptr;
  }
  const Node* reshape = sole_user(transpose->output());
  if (!reshape || !reshape->is("Reshape") || !reshape->output()->has_shape()) return nullptr;
  if (!transpose->output()->has_shape()) return nullptr;
  const SymShape& parted = transpose->output()->shape();
  const SymShape& joint = reshape->output()->shape();
  const bool packs = joint.size() == 3 && joint[0] == parted[0] && joint[1] == parted[1] &&
                     joint[2] == parted[2] * parted[3];
  return packs ? reshape->output() : nullptr;
}

// The attention's output in the shape that the product's had.
Value* to_product_shape(BatchRewriter& batch, Value* attention, const AttentionMatch& match) {
  Value* tail = batch.add("Shape", {attention}, {{"start", int64_t{2}}});
  if (match.scores_rank == 3) {
    return batch.add("Reshape", {attention, batch.add("Concat", {shape_constant(batch, {-1}), tail},
                                                      {{"axis", int64_t{0}}})});
  }
  Value* head = batch.add("Shape", {attention}, {{"end", int64_t{1}}});
  Value* groups = shape_constant(batch, {match.k.head_count, match.q.head_count / match.k.head_count});
  return batch.add("Reshape", {attention, batch.add("Concat", {head, groups, tail}, {{"axis", int64_t{0}}})});
}

// Empty, or why the match cannot be rewritten.
std::string obstacle(const AttentionMatch& match, const std::array<HeadsPlan, 3>& plans) {
  for (const HeadsPlan& plan : plans) {
    if (plan.found.stage == nullptr)
      return "an operand is nowhere laid out by batch, heads, sequence and head size";
  }
  if (match.scores_rank < 3 || match.scores_rank > 5) return "the rank of the scores is not 3, 4 or 5";
  for (const MaskTerm& term : match.terms) {
    if (!mask_fits(term.value, match.scores_rank))
      return "the mask '" + term.value->name() + "' does not fit the scores";
  }
  return {};
}

std::string rewrite(BatchRewriter& batch, const AttentionMatch& match) {
  const DType dtype = match.product->output()->dtype();
  Attributes attributes;
  const std::array<Found, 3> packed = {find_packed(match.q), find_packed(match.k), find_packed(match.v)};
  const std::array<HeadsPlan, 3> plans = {plan_heads(match.q), plan_heads(match.k), plan_heads(match.v)};
  if (std::string why = obstacle(match, plans); !why.empty()) return why;
  Value* back = packed_output(match);
  const bool all_packed = back && packed[0].stage && packed[1].stage && packed[2].stage;
  std::vector<Value*> inputs;
  double scale = match.scale;
  for (size_t i = 0; i < 3; ++i) {
    Value* value = all_packed ? packed[i].stage->value : emit_heads(batch, plans[i]);
    if (i < 2) scale *= (all_packed ? packed[i] : plans[i].found).stage->scale;
    if (value->dtype() != dtype) value = batch.add("Cast", {value}, {{"to", onnx_code(dtype)}});
    inputs.push_back(value);
  }
  if (all_packed) {
    attributes["q_num_heads"] = match.q.head_count;
    attributes["kv_num_heads"] = match.k.head_count;
  }
  attributes["scale"] = static_cast<float>(scale);
  if (match.softcap != 0) attributes["softcap"] = static_cast<float>(match.softcap);
  if (Value* mask = emit_mask(batch, match, dtype)) inputs.push_back(mask);
  if (match.sinks) {
    inputs.resize(7, nullptr);
    inputs.push_back(batch.add("Reshape", {match.sinks, shape_constant(batch, {match.q.head_count})}));
  }
  // Of the queries' shape: what exporters' masks are broadcast from may hide it.
  SymShape shape = inputs[0]->shape();
  const int64_t value_size = size_of(match.v.size).constant();
  shape.back() = all_packed ? Dim(match.q.head_count * value_size) : Dim(value_size);
  Value* attention = batch
                         .add_node({.op = "Attention",
                                    .domain = std::string(match.sinks ? kQuernDomain : kOnnxDomain),
                                    .name = match.softmax->name(),
                                    .inputs = inputs,
                                    .attributes = attributes,
                                    .outputs = {{.type = {dtype, shape}}}})
                         ->output();
  if (all_packed) {
    batch.replace(back, attention);
  } else {
    batch.replace(match.product->output(),
                  match.scores_rank == 4 ? attention : to_product_shape(batch, attention, match));
  }
  return {};
}

}  // namespace

FuseAttention::FuseAttention()
    : Pass("fuse-attention", "attention written as products, masks and Softmax becomes an operator") {}

PassReport FuseAttention::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    for (Node* node : each->nodes()) {
      if (!node->is("Softmax")) continue;
      std::string reason;
      const auto match = match_attention(*node, reason);
      if (match) reason = rewrite(batch, *match);
      if (match && reason.empty()) {
        ++report.changes;
      } else {
        context.explain_failure(report, *node, reason);
      }
    }
    batch.commit();
  }
  if (report.changes > 0) infer_shapes(graph);
  return report;
}

}  // namespace quern::passes
