// RowBuilder: bringing the features of rows into the order that a view has them in.
#include <algorithm>
#include <numeric>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"
#include "passes/canonicalize/quantized_layout.h"
#include "passes/canonicalize/row_builder.h"

namespace quern::passes {
namespace {

bool is_feature(const ViewAtom& atom) {
  return atom.axis == Rows::kFeatures || atom.axis == ViewAtom::kBroadcast;
}

bool is_range(const std::vector<int64_t>& order) {
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i] != order[0] + static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

int64_t RowBuilder::feature_count(const Value* rows) const {
  return rows->shape().size() < 2 ? 1 : rows->shape()[1].constant();
}

// Which feature of the rows stands at each place, in the order in which the view runs through them.
std::vector<int64_t> RowBuilder::feature_order(const View& view) const {
  std::vector<int64_t> order = {view.offsets().size() > 2 ? view.offsets()[Rows::kFeatures] : 0};
  for (const ViewAtom& atom : view.atoms()) {
    if (!is_feature(atom)) continue;
    if (!atom.size.is_constant() || !atom.stride.is_constant())
      throw NotRowWise{"it has features without a fixed number"};
    const int64_t stride = atom.axis == Rows::kFeatures ? atom.stride.constant() : 0;
    std::vector<int64_t> next;
    for (const int64_t base : order) {
      for (int64_t i = 0; i < atom.size.constant(); ++i) next.push_back(base + i * stride);
    }
    order = std::move(next);
  }
  return order;
}

// Rows of the features at `order`. Of a projection, the projection's own rows: what is not taken is not
// computed.
Value* RowBuilder::take_features(Value* rows, const std::vector<int64_t>& order) {
  const int64_t count = feature_count(rows);
  if (is_range(order) && static_cast<int64_t>(order.size()) == count) return rows;
  Value*& taken = taken_[{rows, order}];
  if (taken != nullptr) return taken;
  const auto cut = [&](Value* from, int64_t axis) {
    if (const QuantizedTensor* quantized = from->quantized(); quantized && axis == 0) {
      if (auto rows = passes::rows_of(*quantized, order))
        return rewriter_.add_constant(std::move(*rows), from->name());
    }
    if (is_range(order)) {
      return emit("Slice", {from, ints({order.front()}), ints({order.back() + 1}), ints({axis}), ints({1})});
    }
    return emit("Gather", {from, ints(order)}, {{"axis", axis}});
  };
  const Node* producer = produced_by(rows, "Linear", kQuernDomain);
  if (producer == nullptr) return taken = cut(rows, 1);
  std::vector<Value*> inputs = {producer->input(0), cut(producer->input(1), 0)};
  if (producer->input(2)) inputs.push_back(cut(producer->input(2), 0));
  return taken = emit("Linear", inputs, producer->attributes(), std::string(kQuernDomain), producer);
}

Rows RowBuilder::natural(const Rows& rows) {
  if (rows.view.offsets().size() < 3) return rows;
  const std::vector<int64_t> order = feature_order(rows.view);
  Rows result = rows;
  result.rows = take_features(rows.rows, order);
  // The same loops, over features that now stand in order.
  std::vector<ViewAxis> axes = rows.view.axes();
  int64_t inner = static_cast<int64_t>(order.size());
  for (ViewAxis& axis : axes) {
    for (ViewAtom& atom : axis) {
      if (!is_feature(atom)) continue;
      inner /= atom.size.constant();
      atom = {Rows::kFeatures, inner, atom.size};
    }
  }
  result.view = View::of_axes(std::move(axes), {rows.view.offsets()[0], rows.view.offsets()[1], 0});
  return result;
}

// For operators over the last axis: it must hold all features, and the others none.
Rows RowBuilder::joined_last(const Rows& rows, const char* what) {
  Rows result = natural(rows);
  const int rank = result.view.rank();
  for (int i = 0; i + 1 < rank; ++i) {
    const ViewAxis& axis = result.view.axis(i);
    if (std::any_of(axis.begin(), axis.end(), is_feature)) {
      throw NotRowWise{quern::concat(what, " of shape ", to_string(result.view.shape()),
                                     " have features outside their last axis")};
    }
  }
  if (rank == 0 || !std::all_of(result.view.axis(-1).begin(), result.view.axis(-1).end(), is_feature)) {
    throw NotRowWise{quern::concat(what, " have tokens in their last axis")};
  }
  return result;
}

// New rows with as many features, under the view of the old.
Rows RowBuilder::like(Value* rows, const Rows& natural_rows) const {
  Rows result = natural_rows;
  result.rows = rows;
  return result;
}

}  // namespace quern::passes
