// What is remembered of one activation while samples stream by.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "calibrate/activation_runner.h"
#include "calibrate/magnitude_histogram.h"

namespace quern::calibrate {

// A sum of numbers that is the same in whatever order they come: in units of 2^-60, each number rounded once.
class ExactSum {
 public:
  void add(double value);
  void add(const ExactSum& other) { units_ += other.units_; }
  double value() const;
  std::string to_string() const;
  // Throws Error{BadData} for what to_string() did not write.
  static ExactSum parse(const std::string& text);
  bool operator==(const ExactSum&) const = default;

 private:
  __int128 units_ = 0;
};

// An exponential moving average over windows (factor 0.01, as ONNX Runtime's), in a form that can be joined.
struct MovingAverage {
  int64_t windows = 0;
  double first = 0;
  double rest = 0;  // the average from a start of 0
  void add(double value);
  void append(const MovingAverage& later);
  double value() const;
};

// Memory: the histogram and three numbers per channel, however many samples there are. All but the moving
// averages (of which the last bits may differ) is the same for shards that are joined as for one run.
class Observer {
 public:
  // The rows of one window.
  void add(const ActivationRows& rows);
  // `later` saw windows after this one's.
  void append(const Observer& later);

  int64_t rows() const { return rows_; }
  int64_t width() const { return static_cast<int64_t>(absmax_.size()); }
  float min() const { return min_; }
  float max() const { return max_; }
  const MagnitudeHistogram& histogram() const { return histogram_; }
  const std::vector<float>& channel_absmax() const { return absmax_; }
  std::vector<double> channel_mean_abs() const { return means(absolute_); }
  std::vector<double> channel_mean_square() const { return means(squares_); }

  // Docs: docs/quantization.md, "The table".
  nlohmann::ordered_json to_json(const std::string& name) const;
  // Throws Error{BadData} naming `where` for what to_json() did not write.
  static Observer from_json(const nlohmann::ordered_json& object, const std::string& where);

 private:
  std::vector<double> means(const std::vector<ExactSum>& sums) const;

  int64_t rows_ = 0;
  float min_ = 0;
  float max_ = 0;
  MovingAverage average_min_;
  MovingAverage average_max_;
  MagnitudeHistogram histogram_;
  std::vector<float> absmax_;
  std::vector<ExactSum> absolute_;
  std::vector<ExactSum> squares_;
};

}  // namespace quern::calibrate
