// A histogram of numbers whose range nobody knows beforehand, and which adds up exactly.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace quern::calibrate {

// Bins are fixed for all data: each power of two is cut into 64, for either sign, from 2^-40 to 2^40; what is
// smaller counts as 0. So two histograms are added bin by bin, and shards give what one run gives. Memory: 80
// KB.
class MagnitudeHistogram {
 public:
  static constexpr int kPerOctave = 64;
  static constexpr int kOctaves = 80;
  static constexpr int kBins = kPerOctave * kOctaves;

  void add(float value) { ++counts_[static_cast<size_t>(kBins + bin_of(value))]; }
  void add(const MagnitudeHistogram& other);
  void add_count(int bin, int64_t count) { counts_[static_cast<size_t>(kBins + bin)] += count; }
  int64_t total() const;

  // Of the bins that are not empty. 0: zeros; b from 1 to kBins: positive numbers of the b-th bin; -b:
  // negative ones.
  std::map<int, int64_t> counts() const;
  static int bin_of(float value);
  static double middle(int bin);  // signed
  static double upper(int bin);   // of |x|

  // |x| that a share of the numbers does not exceed, at the upper end of a bin.
  double magnitude_at(double share) const;
  // The number that a share of the numbers does not exceed, by the middle of bins.
  double value_at(double share) const;
  // The limit of |x| by the entropy method (ir/segment_quantizer.h), over 2048 even bins up to the largest
  // |x|, for symmetric codes of so many bits.
  double entropy_limit(int bits) const;
  // The limit of |x| with the least squared error of symmetric codes of so many bits, of 100 shares of the
  // largest.
  double least_error_limit(int bits) const;

 private:
  std::vector<int64_t> counts_ = std::vector<int64_t>(2 * kBins + 1);
};

}  // namespace quern::calibrate
