#include "passes/quantize/channel_scales.h"

#include <algorithm>
#include <cmath>

#include "ir/parallel_for.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

constexpr float kLeast = 1e-5F;

// The largest weight of each column over all products.
std::vector<float> column_maxima(const std::vector<ScaledProduct>& products, int64_t cols) {
  std::vector<float> maxima(static_cast<size_t>(cols));
  for (const ScaledProduct& product : products) {
    for (size_t i = 0; i < product.weight.size(); ++i) {
      float& most = maxima[i % maxima.size()];
      most = std::max(most, std::abs(product.weight[i]));
    }
  }
  return maxima;
}

// Channels that one channel of the source feeds share their factor: the largest (mean) of theirs.
std::vector<float> by_source(const ChannelGroup& group, const std::vector<float>& values) {
  std::vector<float> out(static_cast<size_t>(group.source_channels));
  for (size_t i = 0; i < values.size(); ++i) {
    float& most = out[static_cast<size_t>(group.source_channel[i])];
    most = std::max(most, values[i]);
  }
  return out;
}

// A row as 8-bit codes stand for it, each block with a scale.
void round_row(float* row, int64_t cols, int64_t block) {
  for (int64_t first = 0; first < cols; first += block) {
    const int64_t count = std::min(block, cols - first);
    float most = 0;
    for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(row[first + i]));
    const float scale = most / 127;
    if (scale == 0) continue;
    for (int64_t i = 0; i < count; ++i) row[first + i] = std::nearbyint(row[first + i] / scale) * scale;
  }
}

int64_t activation_block(const ScaledProduct& product, int64_t cols) {
  const bool grouped = product.input == ScaledProduct::Input::TokenAndGroup &&
                       product.options.scheme.granularity == Granularity::Group;
  return grouped ? product.options.scheme.group_size : cols;
}

class ErrorOfScales {
 public:
  ErrorOfScales(const ChannelGroup& group, const std::vector<ScaledProduct>& products,
                const ChannelFacts& facts)
      : group_(group), products_(products), facts_(facts) {}

  // Sums over all products; without scales where `scales` is empty.
  double noise(const std::vector<float>& scales) const {
    double sum = 0;
    for (const ScaledProduct& product : products_) sum += noise_of(product, scales);
    return sum;
  }
  double signal() const {
    double sum = 0;
    for (const ScaledProduct& product : products_) {
      const std::vector<float> none(product.weight.size());
      sum += facts_.rows.empty() ? weighted_square(product.weight, none)
                                 : difference(product.weight, facts_.rows, none, facts_.rows);
    }
    return sum;
  }

 private:
  float scale_of(const std::vector<float>& scales, size_t column) const {
    return scales.empty() ? 1.0F : scales[static_cast<size_t>(group_.source_channel[column])];
  }

  double noise_of(const ScaledProduct& product, const std::vector<float>& scales) const {
    const auto cols = static_cast<size_t>(facts_.cols);
    std::vector<float> scaled = product.weight;
    for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= scale_of(scales, i % cols);
    // The range of a segment is what scales change; finer searches come when the weight is quantized.
    QuantizeOptions options = product.options;
    options.method = ScaleMethod::Range;
    options.importance = {};
    const Tensor tensor =
        Tensor::from<float>({static_cast<int64_t>(scaled.size() / cols), facts_.cols}, scaled);
    std::vector<float> rounded = dequantize(quantize(tensor, options)).to_floats();
    for (size_t i = 0; i < rounded.size(); ++i) rounded[i] /= scale_of(scales, i % cols);
    if (facts_.rows.empty())
      return weighted_square(product.weight, rounded) + activation_noise(product, scales);
    if (product.input == ScaledProduct::Input::Float)
      return difference(product.weight, facts_.rows, rounded, facts_.rows);
    std::vector<float> rows = facts_.rows;
    for (size_t i = 0; i < rows.size(); ++i) rows[i] /= scale_of(scales, i % cols);
    for (size_t r = 0; r < rows.size(); r += cols)
      round_row(rows.data() + r, facts_.cols, activation_block(product, facts_.cols));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] *= scale_of(scales, i % cols);
    return difference(product.weight, facts_.rows, rounded, rows);
  }

  // Sum over rows and outputs of (w x - v y)^2.
  double difference(const std::vector<float>& w, const std::vector<float>& x, const std::vector<float>& v,
                    const std::vector<float>& y) const {
    const auto cols = static_cast<size_t>(facts_.cols);
    const size_t outputs = w.size() / cols, count = x.size() / cols;
    std::vector<double> sums(outputs);
    parallel_for(static_cast<int64_t>(outputs), {.least = 16}, [&](int64_t first, int64_t length) {
      for (auto n = static_cast<size_t>(first); n < static_cast<size_t>(first + length); ++n) {
        for (size_t r = 0; r < count; ++r) {
          float sum = 0;
          for (size_t k = 0; k < cols; ++k)
            sum += w[n * cols + k] * x[r * cols + k] - v[n * cols + k] * y[r * cols + k];
          sums[n] += static_cast<double>(sum) * static_cast<double>(sum);
        }
      }
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  }

  // Sum over outputs and inputs of (w - v)^2 E[x^2].
  double weighted_square(const std::vector<float>& w, const std::vector<float>& v) const {
    double total = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double error = static_cast<double>(w[i]) - static_cast<double>(v[i]);
      total += error * error * static_cast<double>(facts_.mean_square[i % facts_.mean_square.size()]);
    }
    return total;
  }

  // Of codes whose step is what the block's largest channel asks for.
  double activation_noise(const ScaledProduct& product, const std::vector<float>& scales) const {
    if (product.input == ScaledProduct::Input::Float) return 0;
    const auto cols = static_cast<size_t>(facts_.cols);
    const auto block = static_cast<size_t>(activation_block(product, facts_.cols));
    std::vector<double> variance(cols);
    for (size_t first = 0; first < cols; first += block) {
      const size_t last = std::min(cols, first + block);
      double most = 0;
      for (size_t k = first; k < last; ++k)
        most = std::max(most, static_cast<double>(facts_.absmax[k] / scale_of(scales, k)));
      for (size_t k = first; k < last; ++k)
        variance[k] = std::pow(most / 127 * static_cast<double>(scale_of(scales, k)), 2) / 12;
    }
    double total = 0;
    for (size_t i = 0; i < product.weight.size(); ++i)
      total += std::pow(static_cast<double>(product.weight[i]), 2) * variance[i % cols];
    return total;
  }

  const ChannelGroup& group_;
  const std::vector<ScaledProduct>& products_;
  const ChannelFacts& facts_;
};

// The family's factors, around 1 (the root of the largest times the least).
std::vector<float> factors(const std::vector<float>& activations, const std::vector<float>& weights,
                           double strength, ScaleFamily family) {
  std::vector<float> scales(activations.size(), 1.0F);
  float least = 0, most = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    // A channel that is always 0, or that no weight reads, may have any factor: 1 harms nothing.
    if (activations[i] <= 0 || weights[i] <= 0) continue;
    const double x = std::max(activations[i], kLeast), w = std::max(weights[i], kLeast);
    scales[i] =
        static_cast<float>(family == ScaleFamily::Smooth ? std::pow(x, strength) / std::pow(w, 1 - strength)
                                                         : std::pow(x, strength));
    least = least == 0 ? scales[i] : std::min(least, scales[i]);
    most = std::max(most, scales[i]);
  }
  if (most == 0) return {};
  const float middle = std::sqrt(least * most);
  // Far beyond that nothing is gained, and numbers get out of hand.
  constexpr float kMost = 1e4F;
  for (size_t i = 0; i < scales.size(); ++i) {
    if (activations[i] > 0 && weights[i] > 0) scales[i] = std::clamp(scales[i] / middle, 1 / kMost, kMost);
  }
  return scales;
}

}  // namespace

ChannelChoice choose_channel_scales(const ChannelGroup& group, const std::vector<ScaledProduct>& products,
                                    const ChannelFacts& facts, ScaleFamily family) {
  const std::vector<float> activations =
      by_source(group, family == ScaleFamily::Smooth ? facts.absmax : facts.mean_abs);
  const std::vector<float> weights = by_source(group, column_maxima(products, facts.cols));
  const ErrorOfScales error(group, products, facts);
  const double signal = error.signal();
  ChannelChoice best;
  best.before = best.after = error.noise({});
  constexpr int kSteps = 20;
  for (int i = 0; i <= kSteps; ++i) {
    const double strength = static_cast<double>(i) / kSteps;
    std::vector<float> scales = factors(activations, weights, strength, family);
    if (scales.empty()) break;
    const double noise = error.noise(scales);
    if (!(noise < best.after)) continue;
    best.after = noise;
    best.strength = strength;
    best.scales = std::move(scales);
  }
  if (signal > 0) {
    best.before /= signal;
    best.after /= signal;
  }
  return best;
}

}  // namespace quern::passes
