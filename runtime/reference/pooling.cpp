// Pooling over windows, over whole planes, and over regions of interest.
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/reference/register.h"
#include "runtime/reference/values.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::reference {
namespace {

Shape pooled_shape(const Tensor& x, const Shape& spatial) {
  Shape shape{x.dim(0), x.dim(1)};
  shape.insert(shape.end(), spatial.begin(), spatial.end());
  return shape;
}

// The flat index of a spatial offset in column-major order.
int64_t column_major(int64_t offset, const Shape& dims) {
  int64_t index = 0;
  int64_t stride = element_count(dims);
  for (size_t axis = dims.size(); axis-- > 0;) {
    stride /= dims[axis];
    index += offset % dims[axis] * stride;
    offset /= dims[axis];
  }
  return index;
}

void run_max_pool(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Node& node = context.node();
  const Windows w =
      windows_of(context, spatial_dims(context, x), node.ints_attribute("kernel_shape", {}), true);
  const bool by_columns = node.int_attribute("storage_order", 0) != 0;
  const Shape shape = pooled_shape(x, w.output);
  const int64_t plane = element_count(w.input);
  const int64_t positions = w.positions();
  std::vector<int64_t> sources;
  with_computing_type(x.dtype(), [&]<class C>() {
    const Elements<C> in(x);
    std::vector<C> out = make_buffer<C>(context, shape);
    std::vector<int64_t> indices = make_buffer<int64_t>(context, shape);
    for (size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int64_t base = at / positions * plane;
      int64_t best = -1;
      w.collect_sources(at % positions, sources);
      for (const int64_t source : sources) {
        if (best < 0 || in[base + source] > in[base + best] || in[base + source] != in[base + source]) {
          best = source;
        }
      }
      out[i] = best >= 0 ? in[base + best] : C{std::numeric_limits<C>::lowest()};
      indices[i] = best < 0 ? 0 : base + (by_columns ? column_major(best, w.input) : best);
    }
    context.set_output(0, to_tensor(x.dtype(), shape, out));
    context.set_output(1, Tensor::from<int64_t>(shape, indices));
  });
}

// What a window of AveragePool or LpPool comes to.
template <class Sum>
void run_window_sum(KernelContext& context, Sum sum) {
  const Tensor& x = context.input(0);
  const Windows w =
      windows_of(context, spatial_dims(context, x), context.node().ints_attribute("kernel_shape", {}), true);
  const Shape shape = pooled_shape(x, w.output);
  const int64_t plane = element_count(w.input);
  const int64_t positions = w.positions();
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, shape);
  std::vector<double> values;
  std::vector<int64_t> sources;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    values.clear();
    w.collect_sources(at % positions, sources);
    for (const int64_t source : sources) values.push_back(in[at / positions * plane + source]);
    out[i] = sum(values, w.taps_in_padded(at % positions) - static_cast<int64_t>(values.size()));
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

double lp_norm(const double* values, int64_t count, int64_t p) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::pow(std::fabs(values[i]), static_cast<double>(p));
  return std::pow(sum, 1.0 / static_cast<double>(p));
}

void run_average_pool(KernelContext& context) {
  const bool count_padding = context.node().int_attribute("count_include_pad", 0) != 0;
  run_window_sum(context, [&](const std::vector<double>& values, int64_t padded) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(static_cast<int64_t>(values.size()) + (count_padding ? padded : 0));
  });
}

void run_lp_pool(KernelContext& context) {
  const int64_t p = context.node().int_attribute("p", 2);
  run_window_sum(context, [&](const std::vector<double>& values, int64_t) {
    return lp_norm(values.data(), static_cast<int64_t>(values.size()), p);
  });
}

template <class Reduce>
void run_global(KernelContext& context, Reduce reduce) {
  const Tensor& x = context.input(0);
  if (x.rank() < 2) context.fail("the input has the shape ", to_string(x.shape()));
  Shape shape = x.shape();
  std::fill(shape.begin() + 2, shape.end(), 1);
  const int64_t planes = element_count(shape);
  const int64_t plane = planes == 0 ? 0 : x.size() / planes;
  if (plane == 0 && planes != 0) context.fail("the input has no elements to pool");
  const Elements<double> in(x);
  std::vector<double> out;
  for (int64_t i = 0; i < planes; ++i) out.push_back(reduce(in.data() + i * plane, plane));
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

void run_global_average_pool(KernelContext& context) {
  run_global(context, [](const double* values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += values[i];
    return sum / static_cast<double>(count);
  });
}

void run_global_max_pool(KernelContext& context) {
  run_global(context,
             [](const double* values, int64_t count) { return *std::max_element(values, values + count); });
}

void run_global_lp_pool(KernelContext& context) {
  const int64_t p = context.node().int_attribute("p", 2);
  run_global(context, [&](const double* values, int64_t count) { return lp_norm(values, count, p); });
}

// Values go back to where MaxPool's indices say; all else is zero. The indices count in the tensor that
// pooling started from, which may be smaller than a given output shape.
void run_max_unpool(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& indices = context.input(1);
  const Shape spatial = spatial_dims(context, x);
  const Shape kernel = context.node().ints_attribute("kernel_shape", {});
  if (kernel.size() != spatial.size() || indices.size() != x.size())
    context.fail("kernel or indices do not fit");
  const Shape strides = spatial_attribute(context, "strides", spatial.size(), 1, 1);
  const Shape pads = spatial_attribute(context, "pads", 2 * spatial.size(), 0, 0);
  Shape inferred{x.dim(0), x.dim(1)};
  for (size_t i = 0; i < spatial.size(); ++i) {
    inferred.push_back((spatial[i] - 1) * strides[i] + kernel[i] - pads[i] - pads[i + spatial.size()]);
  }
  const Shape shape = context.has_input(2) ? int_values(context.input(2)) : inferred;
  if (shape.size() != inferred.size()) context.fail("the output shape is ", to_string(shape));
  Tensor out = context.make(x.dtype(), shape);
  const Shape from = strides_of(inferred);
  const Shape to = strides_of(shape);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t index = indices.int_at(i);
    if (index < 0 || index >= element_count(inferred))
      context.fail("index ", index, " is outside the output");
    int64_t offset = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t at = index / from[axis] % inferred[axis];
      if (at >= shape[axis]) context.fail("index ", index, " is outside the output");
      offset += at * to[axis];
    }
    out.set(offset, x.at(i));
  }
  context.set_output(0, std::move(out));
}

// Bilinear interpolation in a plane; 0 more than one pixel outside.
double bilinear(const double* plane, int64_t height, int64_t width, double y, double x) {
  const bool is_near =
      y >= -1 && y <= static_cast<double>(height) && x >= -1 && x <= static_cast<double>(width);
  if (!is_near) return 0;  // or not a number
  y = std::max(y, 0.0);
  x = std::max(x, 0.0);
  auto y0 = static_cast<int64_t>(y);
  auto x0 = static_cast<int64_t>(x);
  int64_t y1 = y0 + 1;
  int64_t x1 = x0 + 1;
  if (y0 >= height - 1) y = static_cast<double>(y0 = y1 = height - 1);
  if (x0 >= width - 1) x = static_cast<double>(x0 = x1 = width - 1);
  const double dy = y - static_cast<double>(y0);
  const double dx = x - static_cast<double>(x0);
  return (1 - dy) * ((1 - dx) * plane[y0 * width + x0] + dx * plane[y0 * width + x1]) +
         dy * ((1 - dx) * plane[y1 * width + x0] + dx * plane[y1 * width + x1]);
}

// The four weighted corners one by one, of which mode "max" takes the greatest.
double bilinear_max(const double* plane, int64_t height, int64_t width, double y, double x) {
  const bool is_near =
      y >= -1 && y <= static_cast<double>(height) && x >= -1 && x <= static_cast<double>(width);
  if (!is_near) return 0;  // or not a number
  y = std::max(y, 0.0);
  x = std::max(x, 0.0);
  auto y0 = static_cast<int64_t>(y);
  auto x0 = static_cast<int64_t>(x);
  int64_t y1 = y0 + 1;
  int64_t x1 = x0 + 1;
  if (y0 >= height - 1) y = static_cast<double>(y0 = y1 = height - 1);
  if (x0 >= width - 1) x = static_cast<double>(x0 = x1 = width - 1);
  const double dy = y - static_cast<double>(y0);
  const double dx = x - static_cast<double>(x0);
  return std::max({(1 - dy) * (1 - dx) * plane[y0 * width + x0], (1 - dy) * dx * plane[y0 * width + x1],
                   dy * (1 - dx) * plane[y1 * width + x0], dy * dx * plane[y1 * width + x1]});
}

// Mask R-CNN's pooling (He et al., arXiv 1703.06870): each region is cut into bins, each bin sampled on a
// grid.
void run_roi_align(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& rois = context.input(1);
  const std::vector<int64_t> batch = int_values(context.input(2));
  if (x.rank() != 4 || rois.rank() != 2 || rois.dim(1) != 4 ||
      static_cast<int64_t>(batch.size()) != rois.dim(0)) {
    context.fail("inputs of shapes ", to_string(x.shape()), " and ", to_string(rois.shape()));
  }
  // half_pixel came with version 16, and is the default from then on.
  const bool half_pixel =
      node.string_attribute("coordinate_transformation_mode",
                            context.opset() >= 16 ? "half_pixel" : "output_half_pixel") == "half_pixel";
  const bool take_max = node.string_attribute("mode", "avg") == "max";
  const int64_t height = node.int_attribute("output_height", 1);
  const int64_t width = node.int_attribute("output_width", 1);
  const int64_t ratio = node.int_attribute("sampling_ratio", 0);
  const double scale = node.float_attribute("spatial_scale", 1.0F);
  if (height < 1 || width < 1 || ratio < 0 || ratio > 1000) context.fail("output size or sampling_ratio");
  const Shape shape{rois.dim(0), x.dim(1), height, width};
  const Elements<double> in(x), boxes(rois);
  std::vector<double> out = make_buffer<double>(context, shape);
  const int64_t plane = x.dim(2) * x.dim(3);
  if (plane == 0) context.fail("images of shape ", to_string(x.shape()));
  const double shift = half_pixel ? 0.5 : 0.0;
  size_t at = 0;
  for (int64_t r = 0; r < rois.dim(0); ++r) {
    if (batch[static_cast<size_t>(r)] < 0 || batch[static_cast<size_t>(r)] >= x.dim(0)) {
      context.fail("batch index ", batch[static_cast<size_t>(r)], " is outside the input");
    }
    const double x0 = boxes[r * 4] * scale - shift;
    const double y0 = boxes[r * 4 + 1] * scale - shift;
    double roi_width = boxes[r * 4 + 2] * scale - shift - x0;
    double roi_height = boxes[r * 4 + 3] * scale - shift - y0;
    if (!half_pixel) {
      roi_width = std::max(roi_width, 1.0);
      roi_height = std::max(roi_height, 1.0);
    }
    const double bin_height = roi_height / static_cast<double>(height);
    const double bin_width = roi_width / static_cast<double>(width);
    const auto samples = [&](double bin) {
      const double count = ratio > 0 ? static_cast<double>(ratio) : std::ceil(bin);
      if (!(count <= 10'000)) context.fail("a region is too large");
      return std::max<int64_t>(0, static_cast<int64_t>(count));
    };
    const int64_t rows = samples(bin_height);
    const int64_t columns = samples(bin_width);
    for (int64_t c = 0; c < x.dim(1); ++c) {
      const double* image = in.data() + (batch[static_cast<size_t>(r)] * x.dim(1) + c) * plane;
      for (int64_t bin = 0; bin < height * width; ++bin, ++at) {
        double sum = 0;
        double most = -std::numeric_limits<double>::infinity();
        for (int64_t s = 0; s < rows * columns; ++s) {
          const double sy = (static_cast<double>(s / columns) + 0.5) / static_cast<double>(rows);
          const double sx = (static_cast<double>(s % columns) + 0.5) / static_cast<double>(columns);
          const double y = y0 + (static_cast<double>(bin / width) + sy) * bin_height;
          const double px = x0 + (static_cast<double>(bin % width) + sx) * bin_width;
          if (take_max) {
            most = std::max(most, bilinear_max(image, x.dim(2), x.dim(3), y, px));
          } else {
            sum += bilinear(image, x.dim(2), x.dim(3), y, px);
          }
        }
        const auto count = static_cast<double>(std::max<int64_t>(1, rows * columns));
        out[at] = take_max ? (rows * columns == 0 ? 0 : most) : sum / count;
      }
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// Fast R-CNN's pooling: the maximum of each bin, with rounded borders.
void run_max_roi_pool(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  const Tensor& rois = context.input(1);
  const std::vector<int64_t> pooled = node.ints_attribute("pooled_shape", {});
  if (x.rank() != 4 || rois.rank() != 2 || rois.dim(1) != 5 || pooled.size() != 2 || pooled[0] < 1 ||
      pooled[1] < 1) {
    context.fail("inputs of shapes ", to_string(x.shape()), " and ", to_string(rois.shape()));
  }
  const double scale = node.float_attribute("spatial_scale", 1.0F);
  const Shape shape{rois.dim(0), x.dim(1), pooled[0], pooled[1]};
  const Elements<double> in(x), boxes(rois);
  std::vector<double> out = make_buffer<double>(context, shape);
  const int64_t rows = x.dim(2), columns = x.dim(3);
  size_t at = 0;
  for (int64_t r = 0; r < rois.dim(0); ++r) {
    const auto batch = static_cast<int64_t>(boxes[r * 5]);
    if (batch < 0 || batch >= x.dim(0)) context.fail("batch index ", batch, " is outside the input");
    const double x0 = std::round(boxes[r * 5 + 1] * scale), y0 = std::round(boxes[r * 5 + 2] * scale);
    const double bin_width =
        std::max(std::round(boxes[r * 5 + 3] * scale) - x0 + 1, 1.0) / static_cast<double>(pooled[1]);
    const double bin_height =
        std::max(std::round(boxes[r * 5 + 4] * scale) - y0 + 1, 1.0) / static_cast<double>(pooled[0]);
    const auto clip = [](double value, int64_t limit) {
      return static_cast<int64_t>(std::clamp(value, 0.0, static_cast<double>(limit)));
    };
    for (int64_t c = 0; c < x.dim(1); ++c) {
      const double* image = in.data() + (batch * x.dim(1) + c) * rows * columns;
      for (int64_t bin = 0; bin < pooled[0] * pooled[1]; ++bin, ++at) {
        const auto by = static_cast<double>(bin / pooled[1]), bx = static_cast<double>(bin % pooled[1]);
        const int64_t top = clip(y0 + std::floor(by * bin_height), rows);
        const int64_t bottom = clip(y0 + std::ceil((by + 1) * bin_height), rows);
        const int64_t left = clip(x0 + std::floor(bx * bin_width), columns);
        const int64_t right = clip(x0 + std::ceil((bx + 1) * bin_width), columns);
        if (top >= bottom || left >= right) continue;
        out[at] = -std::numeric_limits<double>::infinity();
        for (int64_t y = top; y < bottom; ++y) {
          out[at] =
              std::max(out[at], *std::max_element(image + y * columns + left, image + y * columns + right));
        }
      }
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

}  // namespace

void register_pooling(KernelTable& table) {
  add_reference(table, {"MaxPool"}, run_max_pool);
  add_reference(table, {"AveragePool"}, run_average_pool);
  add_reference(table, {"LpPool"}, run_lp_pool);
  add_reference(table, {"GlobalAveragePool"}, run_global_average_pool);
  add_reference(table, {"GlobalMaxPool"}, run_global_max_pool);
  add_reference(table, {"GlobalLpPool"}, run_global_lp_pool);
  add_reference(table, {"MaxUnpool"}, run_max_unpool);
  add_reference(table, {"RoiAlign"}, run_roi_align);
  add_reference(table, {"MaxRoiPool"}, run_max_roi_pool);
}

}  // namespace quern::runtime::reference
