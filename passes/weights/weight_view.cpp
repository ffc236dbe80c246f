#include "passes/weights/weight_view.h"

#include <algorithm>
#include <numeric>

#include "ir/float_types.h"
#include "ir/parallel_for.h"
#include "passes/cleanup/node_facts.h"

namespace quern::passes {
namespace {

bool is_readable(DType dtype) {
  return is_floating(dtype) && bit_width(dtype) >= 8 && dtype != DType::F64;
}

// Whether every value of `narrow` is one of `wide` too.
bool widens(DType narrow, DType wide) {
  return narrow == wide || (wide == DType::F32 && is_readable(narrow)) ||
         (bit_width(narrow) == 8 && (wide == DType::F16 || wide == DType::BF16));
}

// The strides of `shape` over the same elements in the same order, or nothing where they would have to be
// copied.
std::optional<std::vector<int64_t>> strides_for(const Shape& old_shape,
                                                const std::vector<int64_t>& old_strides, const Shape& shape) {
  // Loops over one element can go; of the rest, neighbours that are one loop are merged.
  std::vector<std::pair<int64_t, int64_t>> loops;  // size, stride
  for (size_t i = 0; i < old_shape.size(); ++i) {
    if (old_shape[i] == 0) return strides_of(shape);
    if (old_shape[i] == 1) continue;
    if (!loops.empty() && loops.back().second == old_shape[i] * old_strides[i]) {
      loops.back() = {loops.back().first * old_shape[i], old_strides[i]};
    } else {
      loops.emplace_back(old_shape[i], old_strides[i]);
    }
  }
  std::vector<int64_t> strides(shape.size(), 1);
  // From the innermost loop outwards, each new dimension must take a factor of what is left of one loop.
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (loops.empty() || loops.back().first % shape[i] != 0) return std::nullopt;
    strides[i] = loops.back().second;
    loops.back() = {loops.back().first / shape[i], loops.back().second * shape[i]};
    if (loops.back().first == 1) loops.pop_back();
  }
  return strides;
}

int64_t wrap_axis(int64_t axis, size_t rank) {
  return axis < 0 ? axis + static_cast<int64_t>(rank) : axis;
}

}  // namespace

WeightView::WeightView(Tensor tensor)
    : storage_(std::move(tensor)),
      shape_(storage_.shape()),
      strides_(strides_of(shape_)),
      precision_(storage_.dtype()) {}

WeightView WeightView::transposed() const {
  WeightView view = *this;
  std::reverse(view.shape_.begin(), view.shape_.end());
  std::reverse(view.strides_.begin(), view.strides_.end());
  return view;
}

std::optional<WeightView> WeightView::of(const Value& value) {
  if (const Tensor* tensor = value.tensor()) {
    if (!is_readable(tensor->dtype())) return std::nullopt;
    return WeightView(*tensor);
  }
  const Node* node = value.producer();
  if (node == nullptr || !node->domain().empty() || node->input(0) == nullptr) return std::nullopt;
  // Looking at the operator first keeps this from walking whole graphs.
  static const std::vector<std::string> kOps = {"Identity",  "Transpose", "Slice",   "Split", "Squeeze",
                                                "Unsqueeze", "Reshape",   "Flatten", "Cast"};
  if (std::find(kOps.begin(), kOps.end(), node->op()) == kOps.end()) return std::nullopt;
  const std::optional<WeightView> input = of(*node->input(0));
  return input ? input->apply(*node, value.output_index()) : std::nullopt;
}

std::optional<WeightView> WeightView::apply(const Node& node, int output) const {
  const std::string& op = node.op();
  if (op == "Identity") return *this;
  if (op == "Cast") return cast(node);
  if (op == "Transpose") return transposed(node);
  if (op == "Slice") return sliced(node);
  if (op == "Split") return split(node, output);
  return reshaped(node);
}

std::optional<WeightView> WeightView::cast(const Node& node) const {
  const DType to = node.output()->dtype();
  if (widens(precision_, to)) return *this;
  // Two roundings, one after the other, are not one.
  if (precision_ != storage_.dtype() || (to != DType::F16 && to != DType::BF16)) return std::nullopt;
  WeightView view = *this;
  view.precision_ = to;
  return view;
}

std::optional<WeightView> WeightView::transposed(const Node& node) const {
  std::vector<int64_t> perm(shape_.size());
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = node.ints_attribute("perm", perm);
  WeightView view = *this;
  for (size_t i = 0; i < perm.size(); ++i) {
    view.shape_[i] = shape_[static_cast<size_t>(perm[i])];
    view.strides_[i] = strides_[static_cast<size_t>(perm[i])];
  }
  return view;
}

std::optional<WeightView> WeightView::sliced(const Node& node) const {
  const IntsParameter starts = ints_parameter(node, 1, "starts");
  const IntsParameter ends = ints_parameter(node, 2, "ends");
  IntsParameter axes = ints_parameter(node, 3, "axes");
  const IntsParameter steps = ints_parameter(node, 4, "steps");
  if (!starts.values || !ends.values || (axes.present && !axes.values) || (steps.present && !steps.values)) {
    return std::nullopt;
  }
  if (!axes.present) {
    axes.values = std::vector<int64_t>(starts.values->size());
    std::iota(axes.values->begin(), axes.values->end(), 0);
  }
  WeightView view = *this;
  for (size_t i = 0; i < axes.values->size(); ++i) {
    if (steps.present && (*steps.values)[i] != 1) return std::nullopt;
    const auto axis = static_cast<size_t>(wrap_axis((*axes.values)[i], shape_.size()));
    const int64_t size = shape_[axis];
    const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    const int64_t begin = clamp((*starts.values)[i]);
    view.offset_ += begin * strides_[axis];
    view.shape_[axis] = std::max<int64_t>(0, clamp((*ends.values)[i]) - begin);
  }
  return view;
}

std::optional<WeightView> WeightView::split(const Node& node, int output) const {
  const auto axis = static_cast<size_t>(wrap_axis(node.int_attribute("axis", 0), shape_.size()));
  WeightView view = *this;
  // The sizes as inference knows them, whichever way the node states them.
  for (int i = 0; i <= output; ++i) {
    const Value* part = node.output(static_cast<size_t>(i));
    const auto shape = part && part->has_shape() ? as_constant(part->shape()) : std::nullopt;
    if (!shape) return std::nullopt;
    view.shape_[axis] = (*shape)[axis];
    if (i < output) view.offset_ += (*shape)[axis] * strides_[axis];
  }
  return view;
}

std::optional<WeightView> WeightView::reshaped(const Node& node) const {
  const auto shape = node.output()->has_shape() ? as_constant(node.output()->shape()) : std::nullopt;
  if (!shape || element_count(*shape) != element_count(shape_)) return std::nullopt;
  const auto strides = strides_for(shape_, strides_, *shape);
  if (!strides) return std::nullopt;
  WeightView view = *this;
  view.shape_ = *shape;
  view.strides_ = *strides;
  return view;
}

namespace {

// load(element) -> float for the storage's type, so that loops over elements do not ask for it each time.
template <class Body>
auto with_loader(const Tensor& storage, const Body& body) {
  const std::byte* bytes = storage.bytes();
  switch (storage.dtype()) {
    case DType::F32:
      return body([from = reinterpret_cast<const float*>(bytes)](int64_t i) { return from[i]; });
    case DType::F16:
      return body(
          [from = reinterpret_cast<const uint16_t*>(bytes)](int64_t i) { return f16_to_f32(from[i]); });
    case DType::BF16:
      return body(
          [from = reinterpret_cast<const uint16_t*>(bytes)](int64_t i) { return bf16_to_f32(from[i]); });
    default:
      return body([from = reinterpret_cast<const uint8_t*>(bytes), dtype = storage.dtype()](int64_t i) {
        return narrow_to_f32(from[i], dtype);
      });
  }
}

}  // namespace

WeightView WeightView::without_rounding() const {
  WeightView view = *this;
  view.precision_ = storage_.dtype();
  return view;
}

void WeightView::round(std::span<float> values) const {
  if (precision_ == storage_.dtype()) return;
  if (precision_ == DType::F16) {
    for (float& value : values) value = f16_to_f32(f32_to_f16(value));
  } else {
    for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
  }
}

float WeightView::at(int64_t row, int64_t col) const {
  const int64_t element = offset_ + row * strides_[0] + col * strides_[1];
  float value = with_loader(storage_, [&](const auto& load) { return load(element); });
  round({&value, 1});
  return value;
}

// In square tiles, so that a transposed matrix is read and written in whole cache lines.
template <class Load>
void WeightView::read_tiles(int64_t first, int64_t count, float* out, const Load& load) const {
  constexpr int64_t kTile = 32;
  const int64_t columns = cols();
  for (int64_t row = 0; row < count; row += kTile) {
    for (int64_t col = 0; col < columns; col += kTile) {
      for (int64_t r = row; r < std::min(count, row + kTile); ++r) {
        const int64_t from = offset_ + (first + r) * strides_[0];
        for (int64_t c = col; c < std::min(columns, col + kTile); ++c) {
          out[r * columns + c] = load(from + c * strides_[1]);
        }
      }
    }
  }
}

void WeightView::read_block(int64_t first, int64_t count, float* out) const {
  const int64_t columns = cols();
  if (storage_.dtype() == DType::F32 && strides_[1] == 1) {
    for (int64_t row = 0; row < count; ++row) {
      const float* from =
          reinterpret_cast<const float*>(storage_.bytes()) + offset_ + (first + row) * strides_[0];
      std::copy(from, from + columns, out + row * columns);
    }
  } else {
    with_loader(storage_, [&](const auto& load) { read_tiles(first, count, out, load); });
  }
  round({out, static_cast<size_t>(count * columns)});
}

void WeightView::read_rows(int64_t first, int64_t count, std::span<float> out) const {
  if (shape_.size() != 2 || first < 0 || count < 0 || first + count > rows() ||
      static_cast<int64_t>(out.size()) != count * cols()) {
    throw_error(ErrorCode::Internal, "reading rows ", first, " to ", first + count, " of a weight of shape ",
                to_string(shape_), " into ", out.size(), " elements");
  }
  constexpr int64_t kWorthAThread = 1 << 18;
  parallel_for(
      count, {.grain = 32, .least = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, cols()))},
      [&](int64_t begin, int64_t length) { read_block(first + begin, length, out.data() + begin * cols()); });
}

}  // namespace quern::passes
