// Operators that take tensors apart and put them together.
#include <algorithm>
#include <limits>

#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

void infer_concat(InferContext& context) {
  std::optional<SymShape> shape;
  int64_t axis = 0;
  Dim total(0);
  for (size_t i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) context.fail(concat("input ", i, " is missing"));
    if (!context.shape(i)) return infer_rank(context, std::nullopt);
    const SymShape& part = *context.shape(i);
    if (!shape) {
      shape = part;
      axis =
          normalize_axis(context, context.node().int_attribute("axis", 1), static_cast<int64_t>(part.size()));
    }
    if (part.size() != shape->size()) context.fail("inputs of different ranks");
    for (size_t k = 0; k < part.size(); ++k) {
      Dim& known = (*shape)[k];
      if (static_cast<int64_t>(k) == axis || known == part[k]) continue;
      if (known.is_constant() && part[k].is_constant()) {
        context.fail(concat("input ", i, " of shape ", to_string(part), " does not fit ", to_string(*shape)));
      }
      if (part[k].is_constant()) known = part[k];
    }
    total = total + part[static_cast<size_t>(axis)];
  }
  (*shape)[static_cast<size_t>(axis)] = total;
  const bool one_dimensional = shape->size() == 1;
  context.set_output(0, context.dtype(0), std::move(shape));
  if (!one_dimensional) return;
  std::vector<Dim> elements;
  for (size_t i = 0; i < context.input_count(); ++i) {
    const auto part = context.elements(i);
    if (!part || elements.size() > kMaxTrackedElements) return;
    elements.insert(elements.end(), part->begin(), part->end());
  }
  context.set_elements(0, std::move(elements));
}

void infer_split(InferContext& context) {
  const Node& node = context.node();
  const size_t count = node.outputs().size();
  if (!context.shape(0)) {
    for (size_t i = 0; i < count; ++i) context.set_output(i, context.dtype(0), std::nullopt);
    return;
  }
  const SymShape& shape = *context.shape(0);
  const auto axis = static_cast<size_t>(
      normalize_axis(context, node.int_attribute("axis", 0), static_cast<int64_t>(shape.size())));
  std::vector<Dim> sizes(count, Dim::fresh());
  const IntsParameter given = ints_parameter(context, "split", 1);
  if (given.values) {
    if (given.values->size() != count) {
      context.fail(concat(given.values->size(), " sizes for ", count, " outputs"));
    }
    std::copy(given.values->begin(), given.values->end(), sizes.begin());
  } else if (given.given) {
    if (const auto symbolic = context.elements(1); symbolic && symbolic->size() == count) {
      sizes = *symbolic;
    } else {
      for (Dim& size : sizes) size = Dim::fresh();
    }
  } else if (const std::optional<int64_t> length = shape[axis].as_constant()) {
    // Equal parts, the last one shorter where they do not come out even.
    const auto parts = static_cast<int64_t>(count);
    const int64_t chunk = (*length + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) {
      sizes[static_cast<size_t>(i)] = Dim(std::clamp<int64_t>(*length - i * chunk, 0, chunk));
    }
  } else {
    const std::optional<Dim> chunk = shape[axis].divided_by(Dim(static_cast<int64_t>(count)));
    for (Dim& size : sizes) size = chunk ? *chunk : Dim::fresh();
  }
  const auto elements = context.elements(0);
  int64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    SymShape part = shape;
    part[axis] = sizes[i];
    context.set_output(i, context.dtype(0), std::move(part));
    const std::optional<int64_t> size = sizes[i].as_constant();
    if (!elements || !size || *size < 0 || begin + *size > static_cast<int64_t>(elements->size())) continue;
    context.set_elements(i, {elements->begin() + begin, elements->begin() + begin + *size});
    begin += *size;
  }
}

struct SliceParameters {
  std::optional<std::vector<Dim>> starts;
  std::optional<std::vector<Dim>> ends;
  std::optional<std::vector<int64_t>> axes;
  std::optional<std::vector<int64_t>> steps;
};

// Attributes up to version 9, inputs from 10 on.
SliceParameters slice_parameters(const InferContext& context) {
  const Node& node = context.node();
  SliceParameters slice;
  if (!context.has_input(1)) {
    const auto dims = [&](const std::string& name) {
      std::vector<Dim> list;
      for (const int64_t value : node.ints_attribute(name, {})) list.emplace_back(value);
      return list;
    };
    slice.starts = dims("starts");
    slice.ends = dims("ends");
  } else {
    slice.starts = context.elements(1);
    slice.ends = context.elements(2);
  }
  size_t count = slice.starts ? slice.starts->size() : slice.ends ? slice.ends->size() : 0;
  const IntsParameter axes = ints_parameter(context, "axes", 3);
  if (axes.given) {
    slice.axes = axes.values;
  } else if (slice.starts || slice.ends) {
    slice.axes.emplace();
    for (size_t i = 0; i < count; ++i) slice.axes->push_back(static_cast<int64_t>(i));
  }
  if (context.has_input(4)) {
    slice.steps = context.constant_ints(4);
  } else {
    slice.steps = std::vector<int64_t>(slice.axes ? slice.axes->size() : count, 1);
  }
  return slice;
}

// A bound in [0, length] of a slice with step 1; nothing where it depends on the symbols.
std::optional<Dim> slice_bound(const Dim& bound, const Dim& length) {
  if (bound.is_constant() && bound.constant() >= std::numeric_limits<int32_t>::max()) return length;
  Dim at = bound;
  if (bound.is_constant() && bound.constant() < 0) {
    if (bound.constant() <= std::numeric_limits<int32_t>::min()) return Dim(0);
    at = length + bound;
  } else if (bound.lower_bound().value_or(-1) < 0) {
    return std::nullopt;  // could be negative
  }
  const std::optional<Dim> low = known_max(at, Dim(0));
  return low ? known_min(*low, length) : std::nullopt;
}

std::optional<Dim> slice_length(const Dim& start, const Dim& end, int64_t step, const Dim& length) {
  if (start.is_constant() && end.is_constant() && length.is_constant()) {
    const int64_t n = length.constant();
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? n : n - 1;
    const auto clamp = [&](int64_t at) { return std::clamp(at < 0 ? at + n : at, low, high); };
    const int64_t first =
        start.constant() == std::numeric_limits<int64_t>::min() ? low : clamp(start.constant());
    const int64_t last = end.constant() < -n ? low : clamp(end.constant());
    const int64_t distance = step > 0 ? last - first : first - last;
    if (distance <= 0 || step == 0) return Dim(0);
    const uint64_t stride =
        step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
    return Dim(static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride + 1));
  }
  if (step == -1 && start == Dim(-1) && end.is_constant() &&
      end.constant() < std::numeric_limits<int32_t>::min()) {
    return length;
  }
  if (step != 1) return std::nullopt;
  const std::optional<Dim> first = slice_bound(start, length);
  const std::optional<Dim> last = slice_bound(end, length);
  return first && last ? known_max(*last - *first, Dim(0)) : std::nullopt;
}

void track_slice(InferContext& context, const SliceParameters& slice) {
  const auto elements = context.elements(0);
  if (!elements || !slice.starts || !slice.ends || !slice.steps || slice.starts->size() != 1) return;
  const std::optional<int64_t> start = slice.starts->front().as_constant();
  const std::optional<int64_t> end = slice.ends->front().as_constant();
  const int64_t step = slice.steps->front();
  const auto count = static_cast<int64_t>(elements->size());
  if (!start || !end || step <= 0) return;
  const auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count); };
  std::vector<Dim> taken;
  const int64_t last = *end < -count ? 0 : clamp(*end);
  for (int64_t i = *start < -count ? 0 : clamp(*start); i < last; i += std::min(step, count)) {
    taken.push_back((*elements)[static_cast<size_t>(i)]);
  }
  context.set_elements(0, std::move(taken));
}

void infer_slice(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  const SliceParameters slice = slice_parameters(context);
  if (!slice.axes) return infer_rank(context, shape.size());
  for (size_t i = 0; i < slice.axes->size(); ++i) {
    const auto rank = static_cast<int64_t>(shape.size());
    Dim& dim = shape[static_cast<size_t>(normalize_axis(context, (*slice.axes)[i], rank))];
    const bool known = slice.starts && slice.ends && slice.steps && i < slice.starts->size() &&
                       i < slice.ends->size() && i < slice.steps->size();
    if (known && (*slice.steps)[i] == 0) context.fail("a step is 0");
    const std::optional<Dim> length =
        known ? slice_length((*slice.starts)[i], (*slice.ends)[i], (*slice.steps)[i], dim) : std::nullopt;
    dim = length ? *length : Dim::fresh();
  }
  context.set_output(0, context.dtype(0), std::move(shape));
  track_slice(context, slice);
}

void infer_gather(InferContext& context) {
  if (!context.shape(0) || !context.shape(1)) return infer_rank(context, std::nullopt);
  const SymShape& data = *context.shape(0);
  const SymShape& indices = *context.shape(1);
  const int64_t axis =
      normalize_axis(context, context.node().int_attribute("axis", 0), static_cast<int64_t>(data.size()));
  SymShape shape(data.begin(), data.begin() + axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  const bool tracked = shape.size() <= 1;
  context.set_output(0, context.dtype(0), std::move(shape));
  const auto elements = context.elements(0);
  const auto at = context.constant_ints(1);
  if (!elements || !at || !tracked) return;
  std::vector<Dim> taken;
  for (int64_t index : *at) {
    if (index < 0) index += static_cast<int64_t>(elements->size());
    if (index < 0 || index >= static_cast<int64_t>(elements->size())) {
      context.fail(concat("index ", index, " is outside ", elements->size(), " elements"));
    }
    taken.push_back((*elements)[static_cast<size_t>(index)]);
  }
  context.set_elements(0, std::move(taken));
}

void infer_gather_elements(InferContext& context) {
  context.set_output(0, context.dtype(0), context.shape(1));
}

void infer_gather_nd(InferContext& context) {
  if (!context.shape(0) || !context.shape(1) || context.shape(1)->empty())
    return infer_rank(context, std::nullopt);
  const SymShape& data = *context.shape(0);
  const SymShape& indices = *context.shape(1);
  const int64_t batch = context.node().int_attribute("batch_dims", 0);
  const std::optional<int64_t> depth = indices.back().as_constant();
  if (!depth) return infer_rank(context, std::nullopt);
  const auto rank = static_cast<int64_t>(data.size());
  if (*depth < 1 || batch < 0 || batch > rank || *depth > rank - batch) {
    context.fail(
        concat("indices of shape ", to_string(indices), " do not fit data of shape ", to_string(data)));
  }
  SymShape shape(indices.begin(), indices.end() - 1);
  shape.insert(shape.end(), data.begin() + batch + *depth, data.end());
  context.set_output(0, context.dtype(0), std::move(shape));
}

void infer_pad(InferContext& context) {
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  std::optional<std::vector<Dim>> pads;
  if (context.has_input(1)) {
    pads = context.elements(1);
  } else {
    pads.emplace();
    for (const int64_t pad : context.node().ints_attribute("pads", {})) pads->emplace_back(pad);
  }
  std::optional<std::vector<int64_t>> axes;
  if (context.has_input(3)) {
    axes = context.constant_ints(3);
  } else {
    axes.emplace();
    for (size_t i = 0; i < shape.size(); ++i) axes->push_back(static_cast<int64_t>(i));
  }
  if (!axes) return infer_rank(context, shape.size());
  if (pads && pads->size() != 2 * axes->size()) {
    context.fail(concat(pads->size(), " pads for ", axes->size(), " axes"));
  }
  for (size_t i = 0; i < axes->size(); ++i) {
    Dim& dim =
        shape[static_cast<size_t>(normalize_axis(context, (*axes)[i], static_cast<int64_t>(shape.size())))];
    dim = pads ? dim + (*pads)[i] + (*pads)[i + axes->size()] : Dim::fresh();
  }
  context.set_output(0, context.dtype(0), std::move(shape));
}

void infer_compress(InferContext& context) {
  if (!context.node().has_attribute("axis")) return infer_rank(context, 1);
  if (!context.shape(0)) return infer_rank(context, std::nullopt);
  SymShape shape = *context.shape(0);
  const int64_t axis =
      normalize_axis(context, context.node().int_attribute("axis", 0), static_cast<int64_t>(shape.size()));
  shape[static_cast<size_t>(axis)] = Dim::fresh();
  context.set_output(0, context.dtype(0), std::move(shape));
}

}  // namespace

void register_slicing_schemas(SchemaTable& table) {
  table.add({.op = "Concat", .min_inputs = 1, .max_inputs = kVariadic, .infer = infer_concat});
  // Sizes: an attribute up to version 12, an input from 13 on.
  table.add(
      {.op = "Split", .min_inputs = 1, .max_inputs = 2, .max_outputs = kVariadic, .infer = infer_split});
  table.add({.op = "Slice", .min_inputs = 1, .max_inputs = 5, .infer = infer_slice});
  table.add({.op = "Gather",
             .min_inputs = 2,
             .max_inputs = 2,
             .infer = infer_gather,
             .quantizable = {{.input = 0, .channel_axis = 0, .reduction_axis = 1}}});
  table.add({.op = "GatherElements", .min_inputs = 2, .max_inputs = 2, .infer = infer_gather_elements});
  table.add({.op = "GatherND", .min_inputs = 2, .max_inputs = 2, .infer = infer_gather_nd});
  for (const char* op : {"Scatter", "ScatterElements", "ScatterND"}) {
    table.add({.op = op, .min_inputs = 3, .max_inputs = 3, .infer = infer_same_as_input});
  }
  table.add({.op = "TensorScatter", .min_inputs = 2, .max_inputs = 3, .infer = infer_same_as_input});
  // pads and value: attributes up to version 10, inputs from 11 on.
  table.add({.op = "Pad", .min_inputs = 1, .max_inputs = 4, .infer = infer_pad});
  table.add({.op = "Compress", .min_inputs = 2, .max_inputs = 2, .infer = infer_compress});
}

}  // namespace quern
