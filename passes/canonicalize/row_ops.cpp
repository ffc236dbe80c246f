// RowBuilder: look-ups, projections, norms, elementwise operators and data movement.
#include <algorithm>
#include <cmath>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"
#include "passes/canonicalize/row_builder.h"

namespace quern::passes {
namespace {

constexpr const char* kCutTokens = " cuts or reorders tokens";

// The axis of a view as a non-negative index.
int axis_of(const Node& node, const View& view, int64_t fallback) {
  const int64_t axis = node.int_attribute("axis", fallback);
  return static_cast<int>(axis < 0 ? axis + view.rank() : axis);
}

}  // namespace

void RowBuilder::embedding(const Node& node) {
  Value* table = node.input(0);
  const Rows& ids = rows_of(node.input(1));
  Rows result = ids;
  result.rows = emit("Embedding", {table, ids.rows}, {}, std::string(kQuernDomain), &node);
  std::vector<ViewAxis> axes = ids.view.axes();
  axes.push_back({{Rows::kFeatures, 1, table->shape()[1]}});
  result.view = View::of_axes(std::move(axes), ids.view.offsets());
  set(node.output(), std::move(result));
}

void RowBuilder::linear(const Node& node) {
  const Rows x = joined_last(rows_of(node.input(0)), "the inputs of a projection");
  if (x.cached) throw NotRowWise{describe(node) + " projects what comes from the cache"};
  std::vector<Value*> inputs = {x.rows, node.input(1)};
  if (node.input(2)) inputs.push_back(as_f32(node.input(2)));
  Rows result = x;
  result.rows = emit("Linear", inputs, node.attributes(), std::string(kQuernDomain), &node);
  std::vector<ViewAxis> axes = x.view.axes();
  axes.back() = {{Rows::kFeatures, 1, node.input(1)->shape()[0]}};
  result.view = View::of_axes(std::move(axes), x.view.offsets());
  set(node.output(), std::move(result));
}

void RowBuilder::unary(const Node& node) {
  const Rows x = natural(rows_of(node.input(0)));
  if (node.is("Cast")) {
    const bool floats = is_floating(node.output()->dtype()) && x.rows->dtype() == DType::F32;
    const bool ints = is_integer(node.output()->dtype()) && x.rows == ids_;
    if (!floats && !ints) throw NotRowWise{describe(node) + " leaves floating point"};
    set(node.output(), x);
    return;
  }
  std::vector<Value*> inputs = {x.rows};
  for (size_t i = 1; i < node.inputs().size(); ++i) {
    if (node.input(i) && !is_constant_expression(node.input(i)))
      throw NotRowWise{describe(node) + " has variable bounds"};
    inputs.push_back(as_f32(node.input(i)));
  }
  set(node.output(), like(emit_like(x.rows, node.op(), inputs, node.attributes(), &node), x));
}

// A constant as one number per feature in the order of `data`'s features, or as a scalar.
Value* RowBuilder::constant_operand(Value* constant, const Rows& data, const SymShape& shape) {
  if (!constant->has_shape()) throw NotRowWise{"a constant operand has no shape"};
  if (size_of(View(constant->shape()).atoms()) == Dim(1)) {
    if (constant->shape().empty()) return as_f32(constant);
    const Tensor* tensor = constant->tensor();
    if (tensor == nullptr) return as_f32(emit("Reshape", {constant, ints({})}));
    return as_f32(rewriter_.add_constant(tensor->reshaped({})));
  }
  const auto spread = View(constant->shape()).expand(shape);
  if (!spread || spread->rank() != data.view.rank())
    throw NotRowWise{"a constant operand does not broadcast"};
  std::vector<ViewAxis> axes;  // of the features alone
  for (int i = 0; i < data.view.rank(); ++i) {
    const ViewAxis& mine = data.view.axis(i);
    const bool features =
        std::all_of(mine.begin(), mine.end(), [](const ViewAtom& a) { return a.axis == Rows::kFeatures; });
    const ViewAxis& theirs = spread->axis(i);
    const bool constant_here =
        std::all_of(theirs.begin(), theirs.end(), [](const ViewAtom& a) { return a.axis < 0; });
    if (!features && !constant_here) throw NotRowWise{"a constant operand differs from token to token"};
    if (features) axes.push_back(theirs);
  }
  // One index into the constant, flattened, per feature.
  const auto dims = as_constant(constant->shape());
  const Shape strides = strides_of(*dims);
  std::vector<int64_t> order = {0};
  for (const ViewAtom& atom : View::of_axes(axes, {}).atoms()) {
    const int64_t stride =
        atom.axis < 0 ? 0 : atom.stride.constant() * strides[static_cast<size_t>(atom.axis)];
    std::vector<int64_t> next;
    for (const int64_t base : order) {
      for (int64_t i = 0; i < atom.size.constant(); ++i) next.push_back(base + i * stride);
    }
    order = std::move(next);
  }
  const int64_t count = element_count(*dims);
  Value* flat = constant->shape().size() == 1 ? constant : emit("Reshape", {constant, ints({count})});
  bool same = static_cast<int64_t>(order.size()) == count;
  for (size_t i = 0; same && i < order.size(); ++i) same = order[i] == static_cast<int64_t>(i);
  return as_f32(same ? flat : emit("Gather", {flat, ints(order)}, {{"axis", int64_t{0}}}));
}

void RowBuilder::binary(const Node& node) {
  const Value* out = node.output();
  if (!out->has_shape()) throw NotRowWise{"the shape of '" + out->name() + "' is not known"};
  std::vector<Value*> inputs;
  std::optional<Rows> result;
  for (Value* input : node.inputs()) {
    if (!is_data(input) && is_constant_expression(input)) {
      inputs.push_back(nullptr);  // below, once the data's layout is known
      continue;
    }
    Rows rows = is_data(input) ? rows_of(input) : position_embedding(input);
    if (rows.cached) throw NotRowWise{describe(node) + " computes with what comes from the cache"};
    const auto spread = rows.view.expand(out->shape());
    if (!spread) throw NotRowWise{describe(node) + " broadcasts in a way that is not followed"};
    if (!(size_of(rows.view.atoms()) == size_of(spread->atoms()))) {
      const bool one_feature = feature_order(rows.view).size() == 1;
      // One number per token broadcasts by itself; more are repeated.
      if (!one_feature) rows = natural(Rows{.rows = rows.rows, .view = *spread, .last_only = rows.last_only});
    } else {
      rows.view = *spread;
      rows = natural(rows);
    }
    inputs.push_back(rows.rows);
    const bool wider = !result || feature_count(rows.rows) > feature_count(result->rows);
    if (wider) result = rows;
  }
  if (!result) throw NotRowWise{describe(node) + " has no operand with rows"};
  if (result->view.rank() != static_cast<int>(out->shape().size()))
    result->view = *result->view.expand(out->shape());
  if (result->view.shape() != out->shape())
    throw NotRowWise{describe(node) + " broadcasts in a way that is not followed"};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr) inputs[i] = constant_operand(node.input(i), *result, out->shape());
  }
  set(out, like(emit(node.op(), inputs, {}, "", &node), *result));
}

// Embedding(table, positions + offset), seen through Casts and re-indexings: a row of the table per position.
Rows RowBuilder::position_embedding(const Value* value) {
  const Value* at = value;
  while (at->producer() && (is_view_node(*at->producer()) || at->producer()->is("Cast")))
    at = at->producer()->input(0);
  const Node* lookup = produced_by(at, "Embedding", kQuernDomain);
  if (lookup == nullptr || !at->has_shape()) {
    throw NotRowWise{"'" + value->name() + "' depends on positions or masks, but is no look-up of positions"};
  }
  const bool has_past = !inputs_.symbols.past.empty();
  std::optional<int64_t> offset;
  for (const auto& [sequence, past] : {std::pair<int64_t, int64_t>{1, 0}, {5, 0}, {4, 9}}) {
    const Probe probe{.batch = 1, .sequence = sequence, .past = has_past ? past : 0};
    const Tensor found = prober_.evaluate(lookup->input(1), probe);
    for (int64_t i = 0; i < found.size(); ++i) {
      const int64_t shift = found.int_at(i) - probe.past - i % sequence;
      if (found.size() % sequence != 0 || (offset && *offset != shift)) {
        throw NotRowWise{"'" + value->name() + "' looks up other things than positions"};
      }
      offset = shift;
    }
  }
  Value* table = lookup->input(0);
  const auto rows = table->shape()[0].as_constant();
  if (!offset || *offset < 0 || !rows) throw NotRowWise{"positions are looked up with a negative offset"};
  note_context(*rows - *offset);
  if (*offset != 0) table = emit("Slice", {table, ints({*offset}), ints({*rows}), ints({0}), ints({1})});
  Rows result;
  result.rows = emit("Embedding", {table, positions_}, {}, std::string(kQuernDomain), lookup);
  const SymShape& ids = inputs_.ids->shape();
  result.view = View(SymShape{ids[0], ids[1], table->shape()[1]});
  return result;
}

// A norm over the last axis: over all features, or over those of each head.
Value* RowBuilder::emit_norm(const Node& origin, const char* op, const Rows& x, Value* weight, Value* bias,
                             float epsilon) {
  const int64_t total = feature_count(x.rows);
  const Dim last = x.view.size_of(-1);
  const ViewAxis& axis = x.view.axis(-1);
  const bool features = std::all_of(axis.begin(), axis.end(), [](const ViewAtom& a) {
    return a.axis == Rows::kFeatures && a.stride == Dim(1);
  });
  if (!features || !last.is_constant()) throw NotRowWise{describe(origin) + " is not over features"};
  const int64_t size = last.constant();
  Value* rows = x.rows;
  if (size != total) rows = emit("Reshape", {rows, ints({0, total / size, size})});
  std::vector<Value*> inputs = {rows, as_f32(weight)};
  if (bias) inputs.push_back(as_f32(bias));
  Value* normed = emit_like(
      rows, op, inputs, {{"axis", int64_t{-1}}, {"epsilon", epsilon}, {"stash_type", int64_t{1}}}, &origin);
  return size != total ? emit("Reshape", {normed, ints({0, total})}) : normed;
}

void RowBuilder::norm(const Node& node) {
  const Rows x = natural(rows_of(node.input(0)));
  if (axis_of(node, x.view, -1) != x.view.rank() - 1)
    throw NotRowWise{describe(node) + " is not over the last axis"};
  Value* normed = emit_norm(node, node.op().c_str(), x, node.input(1), node.input(2),
                            node.float_attribute("epsilon", 1e-5F));
  set(node.output(), like(normed, x));
}

void RowBuilder::skip_norm(const Node& node) {
  const bool simple = node.op() == "SkipSimplifiedLayerNormalization";
  const auto operand = [&](const Value* value) {
    return joined_last(is_data(value) ? rows_of(value) : position_embedding(value), "the inputs of a norm");
  };
  const Rows x = operand(node.input(0));
  const Rows y = operand(node.input(1));
  if (x.view != y.view) throw NotRowWise{describe(node) + " adds values that are laid out differently"};
  Value* bias = node.input(simple ? 3 : 4);
  Value* skip = y.rows;
  if (bias) skip = emit("Add", {skip, as_f32(bias)});
  Value* sum = emit("Add", {x.rows, skip});
  Value* normed =
      emit_norm(node, simple ? "RMSNormalization" : "LayerNormalization", like(sum, x), node.input(2),
                simple ? nullptr : node.input(3), node.float_attribute("epsilon", 1e-12F));
  for (const size_t unused : {1, 2}) {
    if (node.output(unused) && !node.output(unused)->uses().empty())
      throw NotRowWise{describe(node) + " gives out its statistics"};
  }
  set(node.output(), like(normed, x));
  set(node.output(3), like(sum, x));
}

void RowBuilder::move(const Node& node) {
  const Rows& x = rows_of(node.input(0));
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Value* out = node.outputs()[i];
    if (out == nullptr || (node.is("Dropout") && i > 0)) continue;
    auto view = x.view.apply(node, static_cast<int>(i));
    if (!view) {
      throw NotRowWise{quern::concat(
          describe(node), " on a value of shape ", to_string(x.view.shape()),
          node.is("Slice") || node.is("Split") ? kCutTokens : " cannot be followed symbolically")};
    }
    Rows moved = x;
    moved.view = std::move(*view);
    state_[out] = std::move(moved);  // no counterpart: the rows carry another value's name
  }
}

// One index of a feature axis, or the last position.
void RowBuilder::gather(const Node& node) {
  const Rows& x = rows_of(node.input(0));
  const int axis = axis_of(node, x.view, 0);
  const Tensor* indices = node.input(1)->tensor();
  if (indices == nullptr) throw NotRowWise{describe(node) + " takes variable indices"};
  const Dim size = x.view.size_of(axis);
  Rows result = x;
  if (indices->size() == 1 && !size.is_constant() && indices->int_at(0) == -1) {
    std::vector<ViewAxis> axes = x.view.axes();
    const ViewAxis& sequence = axes[static_cast<size_t>(axis)];
    if (sequence.size() != 1 || sequence[0].axis != Rows::kSequence)
      throw NotRowWise{describe(node) + kCutTokens};
    if (indices->rank() == 0) {
      axes.erase(axes.begin() + axis);
    } else {
      axes[static_cast<size_t>(axis)].clear();
    }
    result.view = View::of_axes(std::move(axes), x.view.offsets());
    result.last_only = true;
  } else {
    if (indices->size() != 1 || !size.is_constant()) throw NotRowWise{describe(node) + kCutTokens};
    const int64_t index = indices->int_at(0);
    const auto cut = x.view.slice(axis, index < 0 ? index + size.constant() : index, 1);
    const auto flat = cut && indices->rank() == 0 ? cut->squeeze({axis}) : cut;
    if (!flat) throw NotRowWise{describe(node) + kCutTokens};
    result.view = *flat;
  }
  state_[node.output()] = std::move(result);
}

// New keys or values after past ones; or features beside features.
void RowBuilder::join(const Node& node) {
  const Value* out = node.output();
  if (!out->has_shape()) throw NotRowWise{"the shape of '" + out->name() + "' is not known"};
  const bool past_first = node.inputs().size() == 2 && inputs_.is_past(node.input(0));
  if (past_first) {
    Rows result = rows_of(node.input(1));
    const int axis = axis_of(node, result.view, 0);
    std::vector<ViewAxis> axes = result.view.axes();
    ViewAxis& sequence = axes[static_cast<size_t>(axis)];
    if (result.cached || sequence.size() != 1 || sequence[0].axis != Rows::kSequence) {
      throw NotRowWise{describe(node) + " joins a past and new values along another axis than the sequence"};
    }
    sequence[0].size = out->shape()[static_cast<size_t>(axis)];
    result.view = View::of_axes(std::move(axes), result.view.offsets());
    result.cached = true;
    state_[out] = std::move(result);
    return;
  }
  std::vector<Value*> parts;
  std::vector<int64_t> starts;  // of each part among all features
  std::vector<Rows> rows;
  int64_t total = 0;
  for (const Value* input : node.inputs()) {
    rows.push_back(natural(rows_of(input)));
    parts.push_back(rows.back().rows);
    starts.push_back(total);
    total += feature_count(parts.back());
  }
  // Which feature of the parts, side by side, stands where: loops outside the axis, then parts, then loops
  // from it on.
  const int axis = axis_of(node, rows[0].view, 0);
  const auto features_before = [&](const View& view) {
    int64_t count = 1;
    for (int i = 0; i < axis; ++i) {
      for (const ViewAtom& atom : view.axis(i))
        count *= atom.axis == Rows::kFeatures ? atom.size.constant() : 1;
    }
    return count;
  };
  const int64_t outer = features_before(rows[0].view);
  std::vector<int64_t> order;
  for (int64_t o = 0; o < outer; ++o) {
    for (size_t p = 0; p < rows.size(); ++p) {
      const int64_t inner = feature_count(parts[p]) / outer;
      for (int64_t i = 0; i < inner; ++i) order.push_back(starts[p] + o * inner + i);
    }
  }
  Rows result = rows[0];
  std::vector<ViewAxis> axes = rows[0].view.axes();
  Dim joint(0);
  for (const Rows& part : rows) {
    if (part.view.rank() != rows[0].view.rank() || part.cached != rows[0].cached)
      throw NotRowWise{describe(node) + " joins unlike values"};
    for (int i = 0; i < part.view.rank(); ++i) {
      const bool same = part.view.size_of(i) == rows[0].view.size_of(i);
      if (i != axis && !same) throw NotRowWise{describe(node) + " joins unlike values"};
    }
    for (const ViewAtom& atom : part.view.axis(axis)) {
      if (atom.axis != Rows::kFeatures) throw NotRowWise{describe(node) + " joins tokens"};
    }
    joint = joint + part.view.size_of(axis);
  }
  int64_t stride = total;
  axes[static_cast<size_t>(axis)] = {{Rows::kFeatures, 1, joint}};
  for (ViewAxis& each : axes) {
    for (ViewAtom& atom : each) {
      if (atom.axis != Rows::kFeatures) continue;
      stride /= atom.size.constant();
      atom.stride = stride;
    }
  }
  result.view = View::of_axes(std::move(axes), rows[0].view.offsets());
  result.rows = take_features(emit("Concat", parts, {{"axis", int64_t{1}}}, "", &node), order);
  set(out, std::move(result));
}

// Softmax and its kind over all features.
void RowBuilder::along_features(const Node& node) {
  const Rows x = joined_last(rows_of(node.input(0)), "the inputs of a Softmax");
  const int64_t fallback = node.opset() < 13 ? 1 : -1;
  if (axis_of(node, x.view, fallback) != x.view.rank() - 1)
    throw NotRowWise{describe(node) + " is not over the last axis"};
  set(node.output(), like(emit_like(x.rows, node.op(), {x.rows}, {{"axis", int64_t{-1}}}, &node), x));
}

}  // namespace quern::passes
