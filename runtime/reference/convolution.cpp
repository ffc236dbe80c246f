// Convolutions, as products of the weights with the columns that their windows see.
#include <algorithm>
#include <cmath>

#include "runtime/reference/matmul.h"
#include "runtime/reference/quantization.h"
#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"
#include "runtime/reference/windows.h"

namespace quern::runtime::reference {
namespace {

struct Geometry {
  int64_t batch = 0;
  int64_t groups = 1;
  int64_t in_channels = 0;   // per group
  int64_t out_channels = 0;  // per group
  Windows windows;
  std::vector<int64_t> sources;  // [taps, positions]

  Shape output_shape() const {
    Shape shape{batch, groups * out_channels};
    shape.insert(shape.end(), windows.output.begin(), windows.output.end());
    return shape;
  }
};

std::vector<int64_t> source_table(const KernelContext& context, const Windows& windows) {
  const int64_t taps = windows.taps();
  const int64_t positions = windows.positions();
  std::vector<int64_t> sources = make_buffer<int64_t>(context, {taps, positions});
  for (int64_t t = 0; t < taps; ++t) {
    for (int64_t p = 0; p < positions; ++p)
      sources[static_cast<size_t>(t * positions + p)] = windows.source(p, t);
  }
  return sources;
}

// x [N, G*C, ...], w [G*M, C, kernel...]
Geometry geometry_of(const KernelContext& context, const Tensor& x, const Tensor& w) {
  const Shape spatial = spatial_dims(context, x);
  Geometry g;
  g.batch = x.dim(0);
  g.groups = context.node().int_attribute("group", 1);
  if (w.rank() != x.rank())
    context.fail("weights of shape ", to_string(w.shape()), " for ", to_string(x.shape()));
  g.in_channels = w.dim(1);
  if (g.groups < 1 || w.dim(0) % g.groups != 0 || g.groups * g.in_channels != x.dim(1)) {
    context.fail("weights of shape ", to_string(w.shape()), " in ", g.groups,
                 " groups for an input of shape ", to_string(x.shape()));
  }
  g.out_channels = w.dim(0) / g.groups;
  const Shape kernel(w.shape().begin() + 2, w.shape().end());
  if (context.node().ints_attribute("kernel_shape", kernel) != kernel) {
    context.fail("kernel_shape differs from the weights of shape ", to_string(w.shape()));
  }
  g.windows = windows_of(context, spatial, kernel);
  g.sources = source_table(context, g.windows);
  return g;
}

// The sums of products, [N, G*M, positions]; padding counts as zero.
template <class A, class C>
std::vector<A> convolve(const KernelContext& context, const Geometry& g, const Elements<C>& x,
                        const Elements<C>& w) {
  const int64_t positions = g.windows.positions();
  const int64_t taps = g.windows.taps();
  const int64_t plane = element_count(g.windows.input);
  const int64_t depth = g.in_channels * taps;
  std::vector<A> out = make_buffer<A>(context, g.output_shape());
  std::vector<C> columns = make_buffer<C>(context, {depth, positions});
  for (int64_t n = 0; n < g.batch * g.groups; ++n) {
    const C* image = x.data() + n * g.in_channels * plane;
    for (int64_t row = 0; row < depth; ++row) {
      const int64_t* sources = g.sources.data() + row % taps * positions;
      const C* channel = image + row / taps * plane;
      C* column = columns.data() + row * positions;
      for (int64_t p = 0; p < positions; ++p) column[p] = sources[p] < 0 ? C{0} : channel[sources[p]];
    }
    const C* weights = w.data() + n % g.groups * g.out_channels * depth;
    multiply(weights, columns.data(), out.data() + n * g.out_channels * positions, g.out_channels, depth,
             positions);
  }
  return out;
}

template <class A, class Add>
void add_per_channel(std::vector<A>& out, const Geometry& g, Add add) {
  const int64_t positions = g.windows.positions();
  const int64_t channels = g.groups * g.out_channels;
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    out[static_cast<size_t>(i)] += add(i / positions % channels);
  }
}

void check_bias(const KernelContext& context, const Tensor& bias, int64_t channels) {
  if (bias.size() != channels)
    context.fail("a bias of ", bias.size(), " elements for ", channels, " channels");
}

void run_conv(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& w = context.input(1);
  check_same_dtype(context, x, w);
  const Geometry g = geometry_of(context, x, w);
  with_computing_type(x.dtype(), [&]<class C>() {
    using A = std::conditional_t<std::is_floating_point_v<C>, double, uint64_t>;
    std::vector<A> out = convolve<A>(context, g, Elements<C>(x), Elements<C>(w));
    if (const Tensor* bias = context.optional_input(2)) {
      check_bias(context, *bias, g.groups * g.out_channels);
      const Elements<C> values(*bias);
      add_per_channel(out, g, [&](int64_t c) { return static_cast<A>(values[c]); });
    }
    context.set_output(0, to_tensor(x.dtype(), g.output_shape(), out));
  });
}

// Zero points are taken off first, so that padding is a real zero. That of the weights may be one per output
// channel.
std::vector<uint64_t> convolve_codes(KernelContext& context, const Tensor& x, const Tensor* x_zero,
                                     const Tensor& w, const Tensor* w_zero, Geometry& g) {
  g = geometry_of(context, x, w);
  const Tensor codes = minus_zero_point(context, x, x_zero, -1);
  Tensor w_zeros;
  if (w_zero != nullptr) {
    Shape shape(static_cast<size_t>(w.rank()), 1);
    if (w_zero->size() != 1) shape[0] = w.dim(0);
    w_zeros = w_zero->reshaped(shape);
  }
  const Tensor weights = minus_zero_point(context, w, w_zero != nullptr ? &w_zeros : nullptr, -1);
  return convolve<uint64_t>(context, g, Elements<int64_t>(codes), Elements<int64_t>(weights));
}

void run_conv_integer(KernelContext& context) {
  Geometry g;
  const std::vector<uint64_t> out = convolve_codes(context, context.input(0), context.optional_input(2),
                                                   context.input(1), context.optional_input(3), g);
  context.set_output(0, to_tensor(DType::I32, g.output_shape(), out));
}

// (x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias?)
void run_qlinear_conv(KernelContext& context) {
  Geometry g;
  std::vector<uint64_t> sums =
      convolve_codes(context, context.input(0), &context.input(2), context.input(3), &context.input(5), g);
  const int64_t channels = g.groups * g.out_channels;
  if (const Tensor* bias = context.optional_input(8)) {
    check_bias(context, *bias, channels);
    add_per_channel(sums, g, [&](int64_t c) { return static_cast<uint64_t>(bias->int_at(c)); });
  }
  const Elements<float> x_scale(context.input(1)), w_scale(context.input(4)), y_scale(context.input(6));
  if (w_scale.size() != 1) check_bias(context, context.input(4), channels);
  const Tensor& y_zero = context.input(7);
  Quantizer quantizer;
  quantizer.dtype = y_zero.dtype();
  Tensor out = context.make(y_zero.dtype(), g.output_shape());
  const int64_t positions = g.windows.positions();
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t channel = i / positions % channels;
    const double real = static_cast<double>(static_cast<int64_t>(sums[static_cast<size_t>(i)])) * x_scale[0] *
                        w_scale[w_scale.size() == 1 ? 0 : channel];
    quantizer.store(out, i, static_cast<float>(real), y_scale[0], y_zero.int_at(0));
  }
  context.set_output(0, std::move(out));
}

// x [N, G*C, ...], w [G*C, M, kernel...]: each input element adds a scaled kernel to the output.
void run_conv_transpose(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Tensor& w = context.input(1);
  check_same_dtype(context, x, w);
  const Shape spatial = spatial_dims(context, x);
  const int64_t groups = context.node().int_attribute("group", 1);
  if (w.rank() != x.rank() || groups < 1 || w.dim(0) != x.dim(1) || x.dim(1) % groups != 0) {
    context.fail("weights of shape ", to_string(w.shape()), " for an input of shape ", to_string(x.shape()));
  }
  const Windows windows = transposed_windows(context, spatial, Shape(w.shape().begin() + 2, w.shape().end()));
  Shape out_shape{x.dim(0), w.dim(1) * groups};
  out_shape.insert(out_shape.end(), windows.input.begin(), windows.input.end());
  const int64_t in_channels = x.dim(1) / groups;
  const int64_t out_channels = w.dim(1);
  const int64_t positions = windows.positions();
  const int64_t taps = windows.taps();
  const int64_t depth = out_channels * taps;
  context.checked_count(DType::F64, out_shape);
  const int64_t plane = element_count(windows.input);
  const std::vector<int64_t> sources = source_table(context, windows);
  const Elements<double> in(x), weights(w);
  std::vector<double> out = make_buffer<double>(context, out_shape);
  std::vector<double> columns = make_buffer<double>(context, {depth, positions});
  for (int64_t n = 0; n < x.dim(0) * groups; ++n) {
    std::fill(columns.begin(), columns.end(), 0.0);
    for (int64_t c = 0; c < in_channels; ++c) {
      const double* image = in.data() + (n * in_channels + c) * positions;
      const double* kernel = weights.data() + (n % groups * in_channels + c) * depth;
      for (int64_t row = 0; row < depth; ++row) {
        for (int64_t p = 0; p < positions; ++p)
          columns[static_cast<size_t>(row * positions + p)] += kernel[row] * image[p];
      }
    }
    for (int64_t row = 0; row < depth; ++row) {
      double* channel = out.data() + (n * out_channels + row / taps) * plane;
      for (int64_t p = 0; p < positions; ++p) {
        const int64_t to = sources[static_cast<size_t>(row % taps * positions + p)];
        if (to >= 0) channel[to] += columns[static_cast<size_t>(row * positions + p)];
      }
    }
  }
  if (const Tensor* bias = context.optional_input(2)) {
    check_bias(context, *bias, out_shape[1]);
    const Elements<double> values(*bias);
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      out[static_cast<size_t>(i)] += values[i / plane % out_shape[1]];
    }
  }
  context.set_output(0, to_tensor(x.dtype(), out_shape, out));
}

// The sum of columns at the places their windows see: the inverse arrangement of im2col.
void run_col2im(KernelContext& context) {
  const Tensor& x = context.input(0);
  const Shape image = int_values(context.input(1));
  const Shape block = int_values(context.input(2));
  if (x.rank() != 3) context.fail("the input has rank ", x.rank(), ", expected 3");
  for (const int64_t dim : image) {
    if (dim < 0) context.fail("the image is ", to_string(image));
  }
  context.checked_count(x.dtype(), image);
  const Windows windows = windows_of(context, image, block);
  const int64_t taps = windows.taps();
  const int64_t positions = windows.positions();
  if (x.dim(2) != positions || x.dim(1) % taps != 0) {
    context.fail("columns of shape ", to_string(x.shape()), " for ", positions, " blocks of ", taps);
  }
  const int64_t channels = x.dim(1) / taps;
  Shape shape{x.dim(0), channels};
  shape.insert(shape.end(), image.begin(), image.end());
  const int64_t plane = element_count(image);
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, shape);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t to = windows.source(i % positions, i / positions % taps);
    if (to >= 0) out[static_cast<size_t>(i / (positions * taps) * plane + to)] += in[i];
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

}  // namespace

void register_convolution(KernelTable& table) {
  add_reference(table, {"Conv"}, run_conv);
  add_reference(table, {"ConvInteger"}, run_conv_integer);
  add_reference(table, {"QLinearConv"}, run_qlinear_conv);
  add_reference(table, {"ConvTranspose"}, run_conv_transpose);
  add_reference(table, {"Col2Im"}, run_col2im);
}

}  // namespace quern::runtime::reference
