#include "calibrate/magnitude_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "ir/segment_quantizer.h"

namespace quern::calibrate {
namespace {

constexpr int kLeastExponent = -MagnitudeHistogram::kOctaves / 2;

}  // namespace

void MagnitudeHistogram::add(const MagnitudeHistogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
}

std::map<int, int64_t> MagnitudeHistogram::counts() const {
  std::map<int, int64_t> filled;
  for (int bin = -kBins; bin <= kBins; ++bin) {
    const int64_t count = counts_[static_cast<size_t>(kBins + bin)];
    if (count != 0) filled[bin] = count;
  }
  return filled;
}

int64_t MagnitudeHistogram::total() const {
  int64_t sum = 0;
  for (const int64_t count : counts_) sum += count;
  return sum;
}

int MagnitudeHistogram::bin_of(float value) {
  // The exponent and the first six bits of the significand are the number of a bin already.
  static_assert(kPerOctave == 64);
  constexpr int kBias = 127;
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto leading = static_cast<int>((bits >> 17) & 0x3FFF);
  const int bin = leading - (kBias + kLeastExponent) * kPerOctave + 1;
  if (bin < 1) return 0;
  return std::min(bin, kBins) * (value < 0 ? -1 : 1);
}

double MagnitudeHistogram::upper(int bin) {
  const int index = std::abs(bin);
  if (index == 0) return 0;
  const int octave = (index - 1) / kPerOctave;
  const int part = (index - 1) % kPerOctave;
  return std::ldexp(1.0 + static_cast<double>(part + 1) / kPerOctave, octave + kLeastExponent);
}

double MagnitudeHistogram::middle(int bin) {
  const int index = std::abs(bin);
  if (index == 0) return 0;
  const int octave = (index - 1) / kPerOctave;
  const int part = (index - 1) % kPerOctave;
  const double magnitude = std::ldexp(1.0 + (part + 0.5) / kPerOctave, octave + kLeastExponent);
  return bin < 0 ? -magnitude : magnitude;
}

double MagnitudeHistogram::magnitude_at(double share) const {
  std::map<int, int64_t> magnitudes;
  for (const auto& [bin, count] : counts()) magnitudes[std::abs(bin)] += count;
  const double wanted = share * static_cast<double>(total()) - 1e-9;
  double seen = 0;
  double limit = 0;
  for (const auto& [bin, count] : magnitudes) {
    limit = upper(bin);
    seen += static_cast<double>(count);
    if (seen >= wanted) break;
  }
  return limit;
}

double MagnitudeHistogram::value_at(double share) const {
  const double wanted = share * static_cast<double>(total()) - 1e-9;
  double seen = 0;
  double value = 0;
  for (const auto& [bin, count] : counts()) {
    value = middle(bin);
    seen += static_cast<double>(count);
    if (seen >= wanted) break;
  }
  return value;
}

double MagnitudeHistogram::entropy_limit(int bits) const {
  constexpr int64_t kEvenBins = 2048;
  const double largest = magnitude_at(1);
  if (largest == 0) return 0;
  std::vector<double> even(kEvenBins);
  for (const auto& [bin, count] : counts()) {
    if (bin == 0) continue;
    // A bin may be wider than an even one: its numbers are spread over those that it covers.
    const double high = upper(bin) / largest * kEvenBins;
    const double low = std::max(0.0, (2 * std::fabs(middle(bin)) - upper(bin)) / largest * kEvenBins);
    const auto first = std::min<int64_t>(static_cast<int64_t>(low), kEvenBins - 1);
    const auto last = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(high)) - 1, first, kEvenBins - 1);
    for (int64_t i = first; i <= last; ++i)
      even[static_cast<size_t>(i)] += static_cast<double>(count) / static_cast<double>(last - first + 1);
  }
  const int64_t cut = least_divergence_cut(even, int64_t{1} << (bits - 1));
  return largest * static_cast<double>(cut) / kEvenBins;
}

double MagnitudeHistogram::least_error_limit(int bits) const {
  const double largest = magnitude_at(1);
  const double steps = static_cast<double>((int64_t{1} << (bits - 1)) - 1);
  double best = largest;
  double least = INFINITY;
  const std::map<int, int64_t> filled = counts();
  for (int i = 100; i >= 1; --i) {
    const double limit = largest * i / 100;
    const double scale = limit / steps;
    double error = 0;
    for (const auto& [bin, count] : filled) {
      if (bin == 0) continue;
      const double value = std::fabs(middle(bin));
      // Inside: a step's noise, for bins are as wide as steps or wider; outside: what is cut off.
      const double off = value <= limit ? 0 : value - limit;
      error += static_cast<double>(count) * (off * off + std::min(scale * scale / 12, value * value));
    }
    if (error < least) {
      least = error;
      best = limit;
    }
  }
  return best;
}

}  // namespace quern::calibrate
