// Sampling at places that the data gives: GridSample, AffineGrid, DeformConv; and NonMaxSuppression.
#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/reference/register.h"
#include "runtime/reference/values.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::reference {
namespace {

struct Sampling {
  std::string mode;     // nearest, linear, cubic
  std::string padding;  // zeros, border, reflection
  bool align_corners = false;
};

// Folds x back into [low, high].
double reflect(double x, double low, double high) {
  const double range = high - low;
  if (range <= 0) return low;
  if (x >= low && x <= high) return x;
  const double distance = x < low ? low - x : x - high;
  const double turns = std::floor(distance / range);
  const double rest = distance - turns * range;
  const bool even = std::fmod(turns, 2.0) == 0;
  return (x < low) == even ? low + rest : high - rest;
}

// The element of a plane at an integer place, which may lie outside.
double pixel(const double* plane, const Shape& dims, const std::vector<int64_t>& at, const Sampling& how) {
  int64_t offset = 0;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    int64_t i = at[axis];
    const int64_t n = dims[axis];
    if (how.padding == "zeros") {
      if (i < 0 || i >= n) return 0;
    } else if (how.padding == "border") {
      i = std::clamp<int64_t>(i, 0, n - 1);
    } else {
      const double low = how.align_corners ? 0.0 : -0.5;
      const double high = how.align_corners ? static_cast<double>(n - 1) : static_cast<double>(n) - 0.5;
      i = std::clamp<int64_t>(static_cast<int64_t>(reflect(static_cast<double>(i), low, high)), 0, n - 1);
    }
    offset = offset * n + i;
  }
  return plane[offset];
}

double cubic_weight(double x) {
  constexpr double a = -0.75;
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return a * (((x - 5) * x + 8) * x - 4);
  return 0;
}

// The sum over the neighbourhood of x, axis by axis.
double interpolate(const double* plane, const Shape& dims, const std::vector<double>& x,
                   const Sampling& how) {
  const int64_t width = how.mode == "cubic" ? 4 : 2;
  int64_t count = 1;
  for (size_t i = 0; i < dims.size(); ++i) count *= width;
  std::vector<int64_t> at(dims.size());
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    double weight = 1;
    int64_t rest = k;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      const double floor = std::floor(x[axis]);
      const int64_t step = rest % width - (width == 4 ? 1 : 0);
      rest /= width;
      at[axis] = static_cast<int64_t>(floor) + step;
      const double distance = x[axis] - floor - static_cast<double>(step);
      weight *= width == 4 ? cubic_weight(distance) : 1 - std::fabs(distance);
    }
    if (weight != 0) sum += weight * pixel(plane, dims, at, how);
  }
  return sum;
}

void run_grid_sample(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& grid = context.input(1);
  const Shape dims = spatial_dims(context, x);
  Sampling how;
  how.mode = node.string_attribute("mode", "linear");
  if (how.mode == "bilinear") how.mode = "linear";  // the names of version 16
  if (how.mode == "bicubic") how.mode = "cubic";
  how.padding = node.string_attribute("padding_mode", "zeros");
  how.align_corners = node.int_attribute("align_corners", 0) != 0;
  const auto n = static_cast<int64_t>(dims.size());
  if (n > 4) context.unsupported(n, " spatial dimensions");  // the neighbours of a place are 4^n
  if (grid.rank() != x.rank() || grid.dim(-1) != n || grid.dim(0) != x.dim(0)) {
    context.fail("a grid of shape ", to_string(grid.shape()), " for an input of shape ",
                 to_string(x.shape()));
  }
  Shape shape{x.dim(0), x.dim(1)};
  shape.insert(shape.end(), grid.shape().begin() + 1, grid.shape().end() - 1);
  const int64_t places = element_count(Shape(grid.shape().begin() + 1, grid.shape().end() - 1));
  const int64_t plane = element_count(dims);
  if (plane == 0) context.fail("the input has no elements to sample");
  const Elements<double> in(x), coordinates(grid);
  std::vector<double> out = make_buffer<double>(context, shape);
  std::vector<double> at(dims.size());
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const int64_t batch = i / (places * x.dim(1));
    for (int64_t axis = 0; axis < n; ++axis) {
      // The last axis comes first in the grid.
      const double normal = coordinates[(batch * places + i % places) * n + (n - 1 - axis)];
      const auto length = static_cast<double>(dims[static_cast<size_t>(axis)]);
      double place = how.align_corners ? (normal + 1) / 2 * (length - 1) : ((normal + 1) * length - 1) / 2;
      if (!(std::fabs(place) < 1e15)) place = how.padding == "zeros" ? -10 : 0;
      if (how.mode == "nearest") place = std::nearbyint(place);
      const double low = how.align_corners ? 0 : -0.5;
      const double high = how.align_corners ? length - 1 : length - 0.5;
      if (place < low || place > high) {
        if (how.padding == "border") place = std::clamp(place, 0.0, length - 1);
        if (how.padding == "reflection") place = reflect(place, low, high);
      }
      at[static_cast<size_t>(axis)] = place;
    }
    const double* image = in.data() + i / places * plane;
    if (how.mode == "nearest") {
      std::vector<int64_t> whole;
      for (const double place : at) whole.push_back(static_cast<int64_t>(place));
      out[static_cast<size_t>(i)] = pixel(image, dims, whole, how);
    } else {
      out[static_cast<size_t>(i)] = interpolate(image, dims, at, how);
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// theta [N, rank, rank + 1] applied to a regular grid over [-1, 1], x first.
void run_affine_grid(KernelContext& context) {
  const Tensor& theta = context.input(0);
  const std::vector<int64_t> size = int_values(context.input(1));
  const auto rank = static_cast<int64_t>(size.size()) - 2;
  const bool align = context.node().int_attribute("align_corners", 0) != 0;
  if (rank < 1 || theta.shape() != Shape{size[0], rank, rank + 1}) {
    context.fail("theta of shape ", to_string(theta.shape()), " for a grid of ", size.size(), " dimensions");
  }
  const Shape dims(size.begin() + 2, size.end());
  Shape shape{size[0]};
  shape.insert(shape.end(), dims.begin(), dims.end());
  shape.push_back(rank);
  const Elements<double> matrix(theta);
  std::vector<double> out = make_buffer<double>(context, shape);
  const Shape strides = strides_of(dims);
  const int64_t places = element_count(dims);
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const int64_t batch = i / (places * rank);
    const int64_t place = i / rank % places;
    const double* row = matrix.data() + (batch * rank + i % rank) * (rank + 1);
    double sum = row[rank];
    for (int64_t axis = 0; axis < rank; ++axis) {
      const auto a = static_cast<size_t>(axis);
      const auto at = static_cast<double>(place / strides[a] % dims[a]);
      const auto n = static_cast<double>(dims[a]);
      const double coordinate = align ? (dims[a] == 1 ? -1.0 : -1 + 2 * at / (n - 1)) : -1 + (2 * at + 1) / n;
      sum += row[rank - 1 - axis] * coordinate;
    }
    out[static_cast<size_t>(i)] = sum;
  }
  context.set_output(0, to_tensor(theta.dtype(), shape, out));
}

// Deformable convolution (Dai et al., arXiv 1703.06211; with masks: Zhu et al., arXiv 1811.11168) in two
// dimensions.
void run_deform_conv(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& w = context.input(1);
  const Tensor& offsets = context.input(2);
  if (x.rank() != 4 || w.rank() != 4) context.unsupported("only two spatial dimensions");
  const int64_t groups = node.int_attribute("group", 1);
  const int64_t offset_groups = node.int_attribute("offset_group", 1);
  const Windows windows =
      windows_of(context, spatial_dims(context, x), Shape(w.shape().begin() + 2, w.shape().end()));
  const int64_t taps = windows.taps(), positions = windows.positions();
  const int64_t channels = w.dim(1), out_channels = w.dim(0);
  if (groups < 1 || offset_groups < 1 || channels * groups != x.dim(1) || out_channels % groups != 0 ||
      x.dim(1) % offset_groups != 0 || offsets.size() != x.dim(0) * offset_groups * taps * 2 * positions) {
    context.fail("shapes or groups do not fit");
  }
  const Tensor* mask = context.optional_input(4);
  if (mask != nullptr && mask->size() * 2 != offsets.size())
    context.fail("the mask does not fit the offsets");
  const Shape shape{x.dim(0), out_channels, windows.output[0], windows.output[1]};
  const Elements<double> in(x), weights(w), moves(offsets);
  std::vector<double> out = make_buffer<double>(context, shape);
  const Shape dims{x.dim(2), x.dim(3)};
  const Sampling how{"linear", "zeros", true};
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const int64_t p = i % positions, m = i / positions % out_channels, n = i / (positions * out_channels);
    double sum = context.has_input(3) ? context.input(3).at(m) : 0.0;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t channel = m / (out_channels / groups) * channels + c;
      const int64_t group = n * offset_groups + channel / (x.dim(1) / offset_groups);
      for (int64_t t = 0; t < taps; ++t) {
        const int64_t row =
            p / windows.output[1] * windows.strides[0] + t / windows.kernel[1] * windows.dilations[0];
        const int64_t column =
            p % windows.output[1] * windows.strides[1] + t % windows.kernel[1] * windows.dilations[1];
        const double y = static_cast<double>(row - windows.pads_begin[0]) +
                         moves[((group * taps + t) * 2) * positions + p];
        const double px = static_cast<double>(column - windows.pads_begin[1]) +
                          moves[((group * taps + t) * 2 + 1) * positions + p];
        if (!(std::fabs(y) < 1e15) || !(std::fabs(px) < 1e15)) continue;
        const double value =
            interpolate(in.data() + (n * x.dim(1) + channel) * dims[0] * dims[1], dims, {y, px}, how);
        const double scale = mask != nullptr ? mask->at((group * taps + t) * positions + p) : 1.0;
        sum += value * scale * weights[(m * channels + c) * taps + t];
      }
    }
    out[static_cast<size_t>(i)] = sum;
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// (boxes [B, N, 4], scores [B, C, N], max_output_boxes_per_class?, iou_threshold?, score_threshold?) ->
// [kept, 3]
void run_non_max_suppression(KernelContext& context) {
  const Tensor& boxes = context.input(0);
  const Tensor& scores = context.input(1);
  if (boxes.rank() != 3 || scores.rank() != 3 || boxes.dim(2) != 4 || boxes.dim(0) != scores.dim(0) ||
      boxes.dim(1) != scores.dim(2)) {
    context.fail("boxes of shape ", to_string(boxes.shape()), " and scores of shape ",
                 to_string(scores.shape()));
  }
  const int64_t most = context.has_input(2) ? int_scalar(context, 2) : 0;
  const double iou_threshold = context.has_input(3) ? context.input(3).at(0) : 0.0;
  const bool has_threshold = context.has_input(4);
  const double score_threshold = has_threshold ? context.input(4).at(0) : 0.0;
  const bool centered = context.node().int_attribute("center_point_box", 0) != 0;
  const int64_t count = boxes.dim(1);
  const Elements<double> box(boxes), score(scores);
  // y0, x0, y1, x1 with y0 <= y1.
  const auto corners = [&](int64_t i) {
    const double* b = box.data() + i * 4;
    if (centered)
      return std::array<double, 4>{b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2};
    return std::array<double, 4>{std::min(b[0], b[2]), std::min(b[1], b[3]), std::max(b[0], b[2]),
                                 std::max(b[1], b[3])};
  };
  const auto overlap = [&](int64_t i, int64_t j) {
    const auto a = corners(i), b = corners(j);
    const double height = std::min(a[2], b[2]) - std::max(a[0], b[0]);
    const double width = std::min(a[3], b[3]) - std::max(a[1], b[1]);
    if (height <= 0 || width <= 0) return 0.0;
    const double area_a = (a[2] - a[0]) * (a[3] - a[1]), area_b = (b[2] - b[0]) * (b[3] - b[1]);
    return height * width / (area_a + area_b - height * width);
  };
  std::vector<int64_t> kept;
  for (int64_t plane = 0; plane < scores.dim(0) * scores.dim(1); ++plane) {
    const int64_t batch = plane / scores.dim(1);
    std::vector<int64_t> order;
    for (int64_t i = 0; i < count; ++i) {
      if (!has_threshold || score[plane * count + i] > score_threshold) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return score[plane * count + a] > score[plane * count + b];
    });
    std::vector<int64_t> chosen;
    for (const int64_t i : order) {
      if (static_cast<int64_t>(chosen.size()) >= most) break;
      const bool hidden = std::any_of(chosen.begin(), chosen.end(), [&](int64_t other) {
        return overlap(batch * count + i, batch * count + other) > iou_threshold;
      });
      if (hidden) continue;
      chosen.push_back(i);
      kept.insert(kept.end(), {batch, plane % scores.dim(1), i});
    }
  }
  context.set_output(0, Tensor::from<int64_t>({static_cast<int64_t>(kept.size()) / 3, 3}, kept));
}

}  // namespace

void register_grid(KernelTable& table) {
  add_reference(table, {"GridSample"}, run_grid_sample);
  add_reference(table, {"AffineGrid"}, run_affine_grid);
  add_reference(table, {"DeformConv"}, run_deform_conv);
  add_reference(table, {"NonMaxSuppression"}, run_non_max_suppression);
}

}  // namespace quern::runtime::reference
