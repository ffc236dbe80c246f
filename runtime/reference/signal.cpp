// Signal processing: windows, Fourier transforms, mel filters.
#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <numbers>

#include "runtime/reference/axis.h"
#include "runtime/reference/register.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

using Complex = std::complex<double>;

// a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N)
void run_window(KernelContext& context, double a0, double a1, double a2) {
  const int64_t size = int_scalar(context, 0);
  const DType dtype = dtype_from_onnx_number(context.node().int_attribute("output_datatype", 1));
  const bool periodic = context.node().int_attribute("periodic", 1) != 0;
  std::vector<double> out = make_buffer<double>(context, {size});
  const auto period = static_cast<double>(periodic ? size : size - 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const double angle = period == 0 ? 0 : 2 * std::numbers::pi * static_cast<double>(i) / period;
    out[i] = a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle);
  }
  context.set_output(0, to_tensor(dtype, {size}, out));
}

void run_hann_window(KernelContext& context) {
  run_window(context, 0.5, 0.5, 0);
}
void run_hamming_window(KernelContext& context) {
  run_window(context, 25.0 / 46.0, 21.0 / 46.0, 0);
}
void run_blackman_window(KernelContext& context) {
  run_window(context, 0.42, 0.5, 0.08);
}

Complex unit_root(int64_t numerator, int64_t denominator) {
  const double angle =
      2 * std::numbers::pi * static_cast<double>(numerator) / static_cast<double>(denominator);
  return {std::cos(angle), std::sin(angle)};
}

// In place, of a power of two elements, with exp(-2 pi i k n / N) (Cooley and Tukey 1965).
void fast_transform(std::vector<Complex>& x) {
  const size_t count = x.size();
  for (size_t i = 1, j = 0; i < count; ++i) {
    size_t bit = count >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(x[i], x[j]);
  }
  std::vector<Complex> factors(count / 2);
  for (size_t i = 0; i < factors.size(); ++i) {
    factors[i] = std::conj(unit_root(static_cast<int64_t>(i), static_cast<int64_t>(count)));
  }
  for (size_t width = 2; width <= count; width *= 2) {
    for (size_t begin = 0; begin < count; begin += width) {
      for (size_t i = 0; i < width / 2; ++i) {
        const Complex even = x[begin + i];
        const Complex odd = x[begin + i + width / 2] * factors[i * (count / width)];
        x[begin + i] = even + odd;
        x[begin + i + width / 2] = even - odd;
      }
    }
  }
}

// Any length, as a convolution with a chirp (Bluestein 1970): kn = (k^2 + n^2 - (k - n)^2) / 2.
std::vector<Complex> chirp_transform(const std::vector<Complex>& x, int64_t length) {
  const size_t padded = std::bit_ceil(static_cast<size_t>(2 * length - 1));
  std::vector<Complex> chirp(static_cast<size_t>(length));
  std::vector<Complex> signal(padded), kernel(padded);
  uint64_t square = 0;  // i^2 modulo 2 length
  for (size_t i = 0; i < chirp.size(); ++i) {
    chirp[i] = std::conj(unit_root(static_cast<int64_t>(square), 2 * length));
    square = (square + 2 * i + 1) % static_cast<uint64_t>(2 * length);
    if (i < x.size()) signal[i] = x[i] * chirp[i];
    kernel[i] = kernel[(padded - i) % padded] = std::conj(chirp[i]);
  }
  fast_transform(signal);
  fast_transform(kernel);
  // The inverse transform is the conjugate of the transform of the conjugate.
  for (size_t i = 0; i < padded; ++i) signal[i] = std::conj(signal[i] * kernel[i]);
  fast_transform(signal);
  for (size_t i = 0; i < chirp.size(); ++i) {
    chirp[i] *= std::conj(signal[i]) / static_cast<double>(padded);
  }
  return chirp;
}

std::vector<Complex> direct_transform(const std::vector<Complex>& x, int64_t length) {
  std::vector<Complex> factors(static_cast<size_t>(length)), out(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) factors[static_cast<size_t>(i)] = std::conj(unit_root(i, length));
  for (int64_t k = 0; k < length; ++k) {
    for (size_t n = 0; n < x.size(); ++n) {
      out[static_cast<size_t>(k)] += x[n] * factors[static_cast<size_t>(k) * n % factors.size()];
    }
  }
  return out;
}

// The sum of x_n exp(-+ 2 pi i k n / N), where the signal counts as zero beyond its end and what is beyond
// the length is left out. By the definition while that is quick: the length is a number in the file, and its
// square may be a lifetime.
std::vector<Complex> transform(std::vector<Complex> x, int64_t length, bool inverse) {
  constexpr int64_t kDirectly = 256;
  if (static_cast<int64_t>(x.size()) > length) x.resize(static_cast<size_t>(length));
  if (inverse) {
    for (Complex& value : x) value = std::conj(value);
  }
  std::vector<Complex> out = length <= kDirectly ? direct_transform(x, length) : chirp_transform(x, length);
  if (inverse) {
    for (Complex& value : out) value = std::conj(value) / static_cast<double>(length);
  }
  return out;
}

// Of a real signal's spectrum the first half is given; the rest mirrors it.
void complete_spectrum(std::vector<Complex>& x, int64_t length) {
  const auto half = static_cast<size_t>(length / 2 + 1);
  x.resize(half);
  for (int64_t k = static_cast<int64_t>(half); k < length; ++k) {
    x.push_back(std::conj(x[static_cast<size_t>(length - k)]));
  }
}

void run_dft(KernelContext& context) {
  const Node& node = context.node();
  const Tensor& x = context.input(0);
  if (x.rank() < 2 || (x.dim(-1) != 1 && x.dim(-1) != 2))
    context.fail("the input has the shape ", to_string(x.shape()));
  const int64_t given = context.opset() < 20   ? node.int_attribute("axis", 1)
                        : context.has_input(2) ? int_scalar(context, 2)
                                               : -2;
  const int64_t axis = normalize_axis(context, given, x.rank());
  if (axis == x.rank() - 1) context.fail("the axis is that of real and imaginary parts");
  const bool inverse = node.int_attribute("inverse", 0) != 0;
  const bool onesided = node.int_attribute("onesided", 0) != 0;
  const bool real_result = inverse && onesided;
  const int64_t own = x.shape()[static_cast<size_t>(axis)];
  const int64_t length = context.has_input(1) ? int_scalar(context, 1) : real_result ? 2 * (own - 1) : own;
  if (length < 1) context.fail("the length is ", length);
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = onesided && !inverse ? length / 2 + 1 : length;
  shape.back() = real_result ? 1 : 2;
  context.checked_count(DType::F64, {length, 2});
  const bool has_imaginary = x.dim(-1) == 2;
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, shape);
  const AxisLayout from = axis_layout(Shape(x.shape().begin(), x.shape().end() - 1), axis);
  const AxisLayout to = axis_layout(Shape(shape.begin(), shape.end() - 1), axis);
  for (int64_t row = 0; row < from.rows(); ++row) {
    std::vector<Complex> signal;
    for (int64_t i = 0; i < from.length; ++i) {
      const int64_t at = from.at(row, i) * (has_imaginary ? 2 : 1);
      signal.emplace_back(in[at], has_imaginary ? in[at + 1] : 0.0);
    }
    if (real_result) complete_spectrum(signal, length);
    const std::vector<Complex> result = transform(signal, length, inverse);
    for (int64_t i = 0; i < to.length; ++i) {
      const auto at = static_cast<size_t>(to.at(row, i) * (real_result ? 1 : 2));
      out[at] = result[static_cast<size_t>(i)].real();
      if (!real_result) out[at + 1] = result[static_cast<size_t>(i)].imag();
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

void run_stft(KernelContext& context) {
  const Tensor& x = context.input(0);
  const int64_t step = int_scalar(context, 1);
  const Tensor* window = context.optional_input(2);
  if (x.rank() != 3 && x.rank() != 2) context.fail("the signal has the shape ", to_string(x.shape()));
  const int64_t samples = x.dim(1);
  const int64_t length = context.has_input(3) ? int_scalar(context, 3)
                         : window != nullptr  ? window->size()
                                              : samples;
  if (step < 1 || length < 1 || length > samples) context.fail("frame step ", step, " and length ", length);
  if (window != nullptr && window->size() != length)
    context.fail("the window has ", window->size(), " elements");
  const bool has_imaginary = x.rank() == 3 && x.dim(2) == 2;
  const int64_t frames = (samples - length) / step + 1;
  const int64_t bins = context.node().int_attribute("onesided", 1) != 0 ? length / 2 + 1 : length;
  const Shape shape{x.dim(0), frames, bins, 2};
  const Elements<double> in(x);
  std::vector<double> out = make_buffer<double>(context, shape);
  for (int64_t f = 0; f < x.dim(0) * frames; ++f) {
    std::vector<Complex> frame;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t at = (f / frames * samples + f % frames * step + i) * (has_imaginary ? 2 : 1);
      const double weight = window != nullptr ? window->at(i) : 1;
      frame.emplace_back(in[at] * weight, has_imaginary ? in[at + 1] * weight : 0.0);
    }
    const std::vector<Complex> result = transform(frame, length, false);
    for (int64_t k = 0; k < bins; ++k) {
      out[static_cast<size_t>((f * bins + k) * 2)] = result[static_cast<size_t>(k)].real();
      out[static_cast<size_t>((f * bins + k) * 2 + 1)] = result[static_cast<size_t>(k)].imag();
    }
  }
  context.set_output(0, to_tensor(x.dtype(), shape, out));
}

// (num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz): triangles on the mel scale.
void run_mel_weight_matrix(KernelContext& context) {
  const int64_t bins = int_scalar(context, 0);
  const int64_t length = int_scalar(context, 1);
  const int64_t rate = int_scalar(context, 2);
  const double low = context.input(3).at(0);
  const double high = context.input(4).at(0);
  if (bins < 0 || length < 0 || rate < 1) context.fail("bins ", bins, ", length ", length, ", rate ", rate);
  const Shape shape{length / 2 + 1, bins};
  context.checked_count(DType::F64, {bins + 2});
  std::vector<double> out = make_buffer<double>(context, shape);
  const double low_mel = 2595 * std::log10(1 + low / 700);
  const double high_mel = 2595 * std::log10(1 + high / 700);
  const double step = (high_mel - low_mel) / static_cast<double>(bins + 2);
  std::vector<int64_t> edges;
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double hertz = 700 * (std::pow(10.0, (static_cast<double>(i) * step + low_mel) / 2595) - 1);
    const double edge = std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate));
    if (!(edge >= 0 && edge < static_cast<double>(shape[0])))
      context.fail("a frequency is outside the spectrum");
    edges.push_back(static_cast<int64_t>(edge));
  }
  for (int64_t i = 0; i < bins; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t left = edges[at], centre = edges[at + 1], right = edges[at + 2];
    const auto put = [&](int64_t row, double value) { out[static_cast<size_t>(row * bins + i)] = value; };
    if (centre == left) put(centre, 1);
    for (int64_t j = left; centre != left && j <= centre; ++j) {
      put(j, static_cast<double>(j - left) / static_cast<double>(centre - left));
    }
    for (int64_t j = centre; j < right; ++j)
      put(j, static_cast<double>(right - j) / static_cast<double>(right - centre));
  }
  const DType dtype = dtype_from_onnx_number(context.node().int_attribute("output_datatype", 1));
  context.set_output(0, to_tensor(dtype, shape, out));
}

}  // namespace

void register_signal(KernelTable& table) {
  add_reference(table, {"HannWindow"}, run_hann_window);
  add_reference(table, {"HammingWindow"}, run_hamming_window);
  add_reference(table, {"BlackmanWindow"}, run_blackman_window);
  add_reference(table, {"DFT"}, run_dft);
  add_reference(table, {"STFT"}, run_stft);
  add_reference(table, {"MelWeightMatrix"}, run_mel_weight_matrix);
}

}  // namespace quern::runtime::reference
