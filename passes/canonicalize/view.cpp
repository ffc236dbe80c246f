#include "passes/canonicalize/view.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ir/shape_inference.h"

namespace quern::passes {
namespace {

// Neighbours that are one loop become one atom; atoms of size 1 go.
ViewAxis normal(const ViewAxis& atoms) {
  ViewAxis result;
  for (const ViewAtom& atom : atoms) {
    if (atom.size == Dim(1)) continue;
    if (!result.empty() && result.back().axis == atom.axis) {
      ViewAtom& outer = result.back();
      if (atom.axis == ViewAtom::kBroadcast) {
        outer.size = outer.size * atom.size;
        continue;
      }
      if (outer.stride == atom.stride * atom.size) {
        outer = {atom.axis, atom.stride, outer.size * atom.size};
        continue;
      }
    }
    result.push_back(atom);
    if (atom.axis == ViewAtom::kBroadcast) result.back().stride = 1;
  }
  return result;
}

bool is_anonymous(const Dim& dim) {
  const auto symbol = dim.as_symbol();
  return symbol && symbol->starts_with('?');
}

// Takes loops from the front of `atoms` until their product is `size`; splits the last one if need be.
std::optional<ViewAxis> take(std::vector<ViewAtom>& atoms, const Dim& size) {
  ViewAxis taken;
  Dim left = size;
  while (!(left == Dim(1))) {
    if (atoms.empty()) return std::nullopt;
    ViewAtom& front = atoms.front();
    if (const auto quotient = left.divided_by(front.size)) {
      left = *quotient;
      taken.push_back(front);
      atoms.erase(atoms.begin());
      continue;
    }
    const auto inner = front.size.divided_by(left);
    if (!inner) return std::nullopt;
    taken.push_back({front.axis, front.stride * *inner, left});
    front.size = *inner;
    left = 1;
  }
  return taken;
}

// The constant integers that a node's input `i` or attribute `name` gives.
std::optional<std::vector<int64_t>> integers(const Node& node, size_t i, const std::string& name) {
  if (const auto* attribute = node.attribute<std::vector<int64_t>>(name)) return *attribute;
  const Value* value = node.input(i);
  if (value == nullptr || !value->elements()) return std::nullopt;
  return as_constant(*value->elements());
}

}  // namespace

Dim size_of(std::span<const ViewAtom> atoms) {
  Dim size(1);
  for (const ViewAtom& atom : atoms) size = size * atom.size;
  return size;
}

View::View(const SymShape& root_shape) : offsets_(root_shape.size(), 0) {
  for (size_t i = 0; i < root_shape.size(); ++i) axes_.push_back({{static_cast<int>(i), 1, root_shape[i]}});
  normalize();
}

View View::of_axes(std::vector<ViewAxis> axes, std::vector<int64_t> offsets) {
  View view;
  view.axes_ = std::move(axes);
  view.offsets_ = std::move(offsets);
  view.normalize();
  return view;
}

void View::normalize() {
  for (ViewAxis& axis : axes_) axis = normal(axis);
}

Dim View::size_of(int i) const {
  return quern::passes::size_of(axis(i));
}

SymShape View::shape() const {
  SymShape shape;
  for (const ViewAxis& axis : axes_) shape.push_back(quern::passes::size_of(axis));
  return shape;
}

std::vector<ViewAtom> View::atoms() const {
  std::vector<ViewAtom> all;
  for (const ViewAxis& axis : axes_) all.insert(all.end(), axis.begin(), axis.end());
  return all;
}

std::optional<View> View::reshape(const SymShape& shape) const {
  const Dim total = product(this->shape());
  SymShape wanted = shape;
  const auto unknown = std::find_if(wanted.begin(), wanted.end(), is_anonymous);
  // A symbol that is also a dimension of the view is known after all.
  const auto known = [&](const Dim& dim) {
    const std::vector<ViewAtom> all = atoms();
    return std::any_of(all.begin(), all.end(), [&](const ViewAtom& atom) { return atom.size == dim; });
  };
  if (unknown != wanted.end() && !known(*unknown)) {
    Dim rest(1);
    for (auto it = wanted.begin(); it != wanted.end(); ++it) {
      if (it != unknown) rest = rest * *it;
    }
    const auto quotient = total.divided_by(rest);
    if (!quotient) return std::nullopt;
    *unknown = *quotient;
  }
  std::vector<ViewAtom> left = atoms();
  std::vector<ViewAxis> axes;
  for (const Dim& dim : wanted) {
    const auto taken = take(left, dim);
    if (!taken) return std::nullopt;
    axes.push_back(*taken);
  }
  if (!left.empty()) return std::nullopt;
  return of_axes(std::move(axes), offsets_);
}

View View::transpose(std::span<const int64_t> perm) const {
  std::vector<ViewAxis> axes;
  for (size_t i = 0; i < axes_.size(); ++i) {
    axes.push_back(axes_[perm.empty() ? axes_.size() - 1 - i : static_cast<size_t>(perm[i])]);
  }
  return of_axes(std::move(axes), offsets_);
}

View View::unsqueeze(std::vector<int64_t> axes) const {
  const int64_t rank = static_cast<int64_t>(axes_.size() + axes.size());
  for (int64_t& axis : axes) axis = axis < 0 ? axis + rank : axis;
  std::sort(axes.begin(), axes.end());
  View result = *this;
  for (const int64_t axis : axes) result.axes_.insert(result.axes_.begin() + axis, ViewAxis{});
  return result;
}

std::optional<View> View::squeeze(std::vector<int64_t> axes) const {
  for (int64_t& axis : axes) axis = axis < 0 ? axis + rank() : axis;
  View result;
  result.offsets_ = offsets_;
  for (int i = 0; i < rank(); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) {
      result.axes_.push_back(axis(i));
    } else if (!axis(i).empty()) {
      return std::nullopt;
    }
  }
  return result;
}

std::optional<View> View::expand(const SymShape& shape) const {
  if (static_cast<int>(shape.size()) < rank()) return std::nullopt;
  View result = *this;
  result.axes_.insert(result.axes_.begin(), shape.size() - axes_.size(), ViewAxis{});
  for (size_t i = 0; i < shape.size(); ++i) {
    const Dim size = quern::passes::size_of(result.axes_[i]);
    if (size == shape[i] || shape[i] == Dim(1)) continue;
    if (!result.axes_[i].empty()) return std::nullopt;
    result.axes_[i] = {{ViewAtom::kBroadcast, 1, shape[i]}};
  }
  return result;
}

std::optional<View> View::slice(int axis_index, int64_t begin, int64_t size) const {
  const ViewAxis& old = axis(axis_index);
  if (begin == 0 && size_of(axis_index) == Dim(size)) return *this;
  if (size < 1) return std::nullopt;
  std::vector<ViewAtom> left(old.begin(), old.end());
  // A slice of a product of loops is one only if it keeps whole inner loops, or is one index of the outer
  // ones.
  ViewAxis kept;
  View result = *this;
  for (size_t i = 0; i < left.size(); ++i) {
    const Dim inner_dim = quern::passes::size_of(std::span(left).subspan(i + 1));
    if (!inner_dim.is_constant() || !left[i].size.is_constant()) return std::nullopt;
    const int64_t inner = inner_dim.constant();
    const int64_t first = begin / inner;
    if (begin + size <= (first + 1) * inner && size < inner) {  // inside one index of this loop
      if (left[i].axis != ViewAtom::kBroadcast) {
        if (!left[i].stride.is_constant()) return std::nullopt;
        result.offsets_[static_cast<size_t>(left[i].axis)] += first * left[i].stride.constant();
      }
      begin -= first * inner;
      continue;
    }
    if (begin % inner != 0 || size % inner != 0) return std::nullopt;
    if (left[i].axis != ViewAtom::kBroadcast) {
      if (!left[i].stride.is_constant()) return std::nullopt;
      result.offsets_[static_cast<size_t>(left[i].axis)] += first * left[i].stride.constant();
    }
    kept.push_back({left[i].axis, left[i].stride, size / inner});
    kept.insert(kept.end(), left.begin() + static_cast<int64_t>(i) + 1, left.end());
    break;
  }
  result.axes_[static_cast<size_t>(axis_index < 0 ? axis_index + rank() : axis_index)] = normal(kept);
  return result;
}

namespace {

// Every `step`-th index of an axis from `begin` < step on, where that divides the axis: one column of it as a
// matrix.
std::optional<View> every(const View& view, int axis, int64_t begin, int64_t step) {
  SymShape parted = view.shape();
  const auto at = parted.begin() + axis;
  const int64_t size = at->constant();
  if (step < 1 || size % step != 0 || begin >= step) return std::nullopt;
  *at = Dim(size / step);
  parted.insert(at + 1, Dim(step));
  const auto matrix = view.reshape(parted);
  const auto column = matrix ? matrix->slice(axis + 1, begin, 1) : std::nullopt;
  return column ? column->squeeze({axis + 1}) : std::nullopt;
}

std::optional<View> apply_slice(const View& view, const Node& node) {
  const auto begins = integers(node, 1, "starts");
  const auto ends = integers(node, 2, "ends");
  if (!begins || !ends) return std::nullopt;
  std::vector<int64_t> axes(begins->size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  if (node.input(3) != nullptr || node.has_attribute("axes")) {
    const auto given = integers(node, 3, "axes");
    if (!given) return std::nullopt;
    axes = *given;
  }
  std::vector<int64_t> steps(axes.size(), 1);
  if (node.input(4) != nullptr) {
    const auto given = integers(node, 4, "steps");
    if (!given) return std::nullopt;
    steps = *given;
  }
  std::optional<View> result = view;
  for (size_t i = 0; i < axes.size() && result; ++i) {
    const auto axis = static_cast<int>(axes[i] < 0 ? axes[i] + view.rank() : axes[i]);
    const Dim size = view.size_of(axis);
    if ((*begins)[i] == 0 && steps[i] == 1 && (*ends)[i] >= INT32_MAX) continue;  // all of it
    if (!size.is_constant()) return std::nullopt;
    const int64_t n = size.constant();
    const auto clamp = [n](int64_t at) { return std::clamp(at < 0 ? at + n : at, int64_t{0}, n); };
    const int64_t begin = clamp((*begins)[i]);
    if (steps[i] != 1) {
      if (clamp((*ends)[i]) != n) return std::nullopt;
      result = every(*result, axis, begin, steps[i]);
      continue;
    }
    result = result->slice(axis, begin, clamp((*ends)[i]) - begin);
  }
  return result;
}

std::optional<View> apply_split(const View& view, const Node& node, int output) {
  const auto axis = static_cast<int>(node.int_attribute("axis", 0));
  const Dim size = view.size_of(axis);
  if (!size.is_constant()) return std::nullopt;
  const auto given = integers(node, 1, "split");
  const auto parts = static_cast<int64_t>(node.outputs().size());
  const int64_t even = (size.constant() + parts - 1) / parts;
  int64_t begin = 0;
  for (int i = 0; i < output; ++i) begin += given ? (*given)[static_cast<size_t>(i)] : even;
  const int64_t length =
      given ? (*given)[static_cast<size_t>(output)] : std::min(even, size.constant() - begin);
  return view.slice(axis, begin, length);
}

const std::set<std::string_view> kViewOps = {"Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze",
                                             "Flatten",  "Expand",  "Slice",     "Split",     "Dropout"};

}  // namespace

bool is_view_node(const Node& node) {
  return node.domain().empty() && kViewOps.contains(node.op());
}

std::optional<View> View::apply(const Node& node, int output) const {
  if (!is_view_node(node)) return std::nullopt;
  const std::string& op = node.op();
  const Value* out = node.output(static_cast<size_t>(output));
  if (out == nullptr) return std::nullopt;
  if (op == "Identity" || op == "Dropout") return output == 0 ? std::optional(*this) : std::nullopt;
  if (op == "Transpose") return transpose(node.ints_attribute("perm", {}));
  if (op == "Slice") return apply_slice(*this, node);
  if (op == "Split") return apply_split(*this, node, output);
  if (op == "Unsqueeze") {
    const auto axes = integers(node, 1, "axes");
    return axes ? std::optional(unsqueeze(*axes)) : std::nullopt;
  }
  if (!out->has_shape()) return std::nullopt;
  if (op == "Squeeze") return static_cast<int>(out->shape().size()) == rank() ? *this : reshape(out->shape());
  if (op == "Expand") return expand(out->shape());
  return reshape(out->shape());  // Reshape, Flatten
}

std::string to_string(const View& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank(); ++i) {
    text += i ? ", " : "";
    for (size_t j = 0; j < view.axis(i).size(); ++j) {
      const ViewAtom& atom = view.axis(i)[j];
      text += (j ? "*" : "") + (atom.axis < 0 ? "broadcast" : "axis " + std::to_string(atom.axis));
      if (!(atom.stride == Dim(1))) text += "/" + atom.stride.to_string();
      text += ":" + atom.size.to_string();
    }
    if (view.axis(i).empty()) text += "1";
  }
  return text + "]";
}

}  // namespace quern::passes
