// What Reshape, Transpose, Expand and their kin make of a tensor, as index arithmetic instead of nodes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace quern::passes {

// A loop over part of one axis of the root: index i in [0, size) adds i * stride to the root's index on
// `axis`.
struct ViewAtom {
  static constexpr int kBroadcast = -1;
  int axis = kBroadcast;  // of the root; kBroadcast: i is ignored
  Dim stride = 1;
  Dim size = 1;
  bool operator==(const ViewAtom&) const = default;
};

// The atoms that one axis of the viewing tensor is the product of, outermost first; none for an axis of
// size 1.
using ViewAxis = std::vector<ViewAtom>;

// A tensor seen as a re-indexing of another, its root. Kept normal: no atoms of size 1, and neighbours that
// are one loop are one atom. Hence two views of one root are the same re-indexing exactly if they compare
// equal.
class View {
 public:
  View() = default;
  // The tensor itself.
  explicit View(const SymShape& root_shape);
  static View of_axes(std::vector<ViewAxis> axes, std::vector<int64_t> offsets);

  const std::vector<ViewAxis>& axes() const { return axes_; }
  const ViewAxis& axis(int i) const { return axes_[static_cast<size_t>(i < 0 ? i + rank() : i)]; }
  int rank() const { return static_cast<int>(axes_.size()); }
  // Where slices begin, for each axis of the root.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  Dim size_of(int i) const;
  SymShape shape() const;
  // Every atom, in order.
  std::vector<ViewAtom> atoms() const;
  bool operator==(const View&) const = default;

  // What the operators make of it; nothing where the result is no view, or cannot be told from symbols. At
  // most one dimension of `shape` may be a fresh symbol that stands for whatever is left.
  std::optional<View> reshape(const SymShape& shape) const;
  View transpose(std::span<const int64_t> perm) const;
  View unsqueeze(std::vector<int64_t> axes) const;
  std::optional<View> squeeze(std::vector<int64_t> axes) const;
  std::optional<View> expand(const SymShape& shape) const;
  // `size` indices from `begin` of an axis of constant size.
  std::optional<View> slice(int axis, int64_t begin, int64_t size) const;

  // Output `output` of a node whose input 0 this view describes, if the node only moves data about; the
  // node's constant parameters come from symbolic elements, its shapes from inference.
  std::optional<View> apply(const Node& node, int output = 0) const;

 private:
  void normalize();
  std::vector<ViewAxis> axes_;
  std::vector<int64_t> offsets_;
};

// The product of the sizes of atoms.
Dim size_of(std::span<const ViewAtom> atoms);
// Splits neighbouring loops until they are the finest that `a` and `b` share; for comparing merged axes.
std::string to_string(const View& view);

// Whether View::apply could say something of the operator.
bool is_view_node(const Node& node);

}  // namespace quern::passes
