#include "calibrate/observer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ir/error.h"

namespace quern::calibrate {
namespace {

using nlohmann::ordered_json;

constexpr int kFraction = 60;        // bits
constexpr double kAveraging = 0.01;  // of a window

ordered_json average_json(const MovingAverage& average) {
  return {average.windows, average.first, average.rest};
}

MovingAverage read_average(const ordered_json& list) {
  return {list.at(0).get<int64_t>(), list.at(1).get<double>(), list.at(2).get<double>()};
}

ordered_json sums_json(const std::vector<ExactSum>& sums) {
  ordered_json list = ordered_json::array();
  for (const ExactSum& sum : sums) list.push_back(sum.to_string());
  return list;
}

std::vector<ExactSum> read_sums(const ordered_json& list) {
  std::vector<ExactSum> sums;
  for (const ordered_json& text : list) sums.push_back(ExactSum::parse(text.get<std::string>()));
  return sums;
}

// Seven digits: what a float holds, and stable against the last bits of a double.
double rounded(double value) {
  return static_cast<double>(static_cast<float>(value));
}

}  // namespace

void ExactSum::add(double value) {
  // 2^60 times anything below 2^66 fits; activations that large would have overflowed long before.
  constexpr double kMost = 0x1p66;
  units_ += static_cast<__int128>(std::ldexp(std::clamp(value, -kMost, kMost), kFraction));
}

double ExactSum::value() const {
  return std::ldexp(static_cast<double>(units_), -kFraction);
}

std::string ExactSum::to_string() const {
  std::string digits;
  const bool negative = units_ < 0;
  unsigned __int128 rest =
      negative ? -static_cast<unsigned __int128>(units_) : static_cast<unsigned __int128>(units_);
  constexpr const char* kDigits = "0123456789abcdef";
  do {
    digits += kDigits[static_cast<int>(rest & 15)];
    rest >>= 4;
  } while (rest != 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

ExactSum ExactSum::parse(const std::string& text) {
  const bool negative = text.starts_with('-');
  const std::string digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || digits.size() > 31) throw_error(ErrorCode::BadData, "'", text, "' is no sum");
  ExactSum sum;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) throw_error(ErrorCode::BadData, "'", text, "' is no sum");
    sum.units_ = sum.units_ * 16 + digit;
  }
  if (negative) sum.units_ = -sum.units_;
  return sum;
}

void MovingAverage::add(double value) {
  if (windows++ == 0) {
    first = value;
    rest = kAveraging * value;
    return;
  }
  rest = (1 - kAveraging) * rest + kAveraging * value;
}

void MovingAverage::append(const MovingAverage& later) {
  if (later.windows == 0) return;
  if (windows == 0) {
    *this = later;
    return;
  }
  rest = std::pow(1 - kAveraging, static_cast<double>(later.windows)) * rest + later.rest;
  windows += later.windows;
}

double MovingAverage::value() const {
  // The first window is where the average starts, not 0.
  return std::pow(1 - kAveraging, static_cast<double>(windows)) * first + rest;
}

void Observer::add(const ActivationRows& rows) {
  if (rows.rows == 0) return;
  const auto width = static_cast<size_t>(rows.width);
  if (absmax_.empty()) {
    absmax_.resize(width);
    absolute_.resize(width);
    squares_.resize(width);
  }
  std::vector<double> absolute(width);
  std::vector<double> squares(width);
  float low = rows.row(0)[0];
  float high = low;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::span<const float> row = rows.row(r);
    for (size_t i = 0; i < width; ++i) {
      const float value = row[i];
      const float magnitude = std::fabs(value);
      low = std::min(low, value);
      high = std::max(high, value);
      absmax_[i] = std::max(absmax_[i], magnitude);
      absolute[i] += static_cast<double>(magnitude);
      squares[i] += static_cast<double>(value) * static_cast<double>(value);
      histogram_.add(value);
    }
  }
  for (size_t i = 0; i < width; ++i) {
    absolute_[i].add(absolute[i]);
    squares_[i].add(squares[i]);
  }
  min_ = rows_ == 0 ? low : std::min(min_, low);
  max_ = rows_ == 0 ? high : std::max(max_, high);
  average_min_.add(static_cast<double>(low));
  average_max_.add(static_cast<double>(high));
  rows_ += rows.rows;
}

void Observer::append(const Observer& later) {
  if (later.rows_ == 0) return;
  if (rows_ == 0) {
    *this = later;
    return;
  }
  if (later.width() != width()) {
    throw_error(ErrorCode::BadData, "observations of ", width(), " and ", later.width(), " channels");
  }
  min_ = std::min(min_, later.min_);
  max_ = std::max(max_, later.max_);
  average_min_.append(later.average_min_);
  average_max_.append(later.average_max_);
  histogram_.add(later.histogram_);
  for (size_t i = 0; i < absmax_.size(); ++i) {
    absmax_[i] = std::max(absmax_[i], later.absmax_[i]);
    absolute_[i].add(later.absolute_[i]);
    squares_[i].add(later.squares_[i]);
  }
  rows_ += later.rows_;
}

std::vector<double> Observer::means(const std::vector<ExactSum>& sums) const {
  std::vector<double> out;
  for (const ExactSum& sum : sums) out.push_back(rows_ == 0 ? 0 : sum.value() / static_cast<double>(rows_));
  return out;
}

ordered_json Observer::to_json(const std::string& name) const {
  ordered_json object = {{"name", name}, {"width", width()}, {"rows", rows_}};
  if (rows_ == 0) return object;
  object["min"] = min_;
  object["max"] = max_;
  object["moving_average"] = {{"min", rounded(average_min_.value())}, {"max", rounded(average_max_.value())}};
  object["percentile_99.9"] = {{"magnitude", histogram_.magnitude_at(0.999)},
                               {"min", histogram_.value_at(0.0005)},
                               {"max", histogram_.value_at(0.9995)}};
  object["entropy"] = {{"magnitude", histogram_.entropy_limit(8)}};
  object["mse"] = {{"magnitude", histogram_.least_error_limit(8)}};
  ordered_json mean_abs = ordered_json::array();
  ordered_json mean_square = ordered_json::array();
  for (const double value : channel_mean_abs()) mean_abs.push_back(rounded(value));
  for (const double value : channel_mean_square()) mean_square.push_back(rounded(value));
  object["channels"] = {{"absmax", absmax_}, {"mean_abs", mean_abs}, {"mean_square", mean_square}};
  ordered_json bins = ordered_json::array();
  for (const auto& [bin, count] : histogram_.counts()) bins.push_back({bin, count});
  object["state"] = {{"histogram", bins},
                     {"sums_abs", sums_json(absolute_)},
                     {"sums_square", sums_json(squares_)},
                     {"average_min", average_json(average_min_)},
                     {"average_max", average_json(average_max_)}};
  return object;
}

Observer Observer::from_json(const ordered_json& object, const std::string& where) {
  Observer observer;
  try {
    observer.rows_ = object.at("rows").get<int64_t>();
    if (observer.rows_ == 0) return observer;
    observer.min_ = object.at("min").get<float>();
    observer.max_ = object.at("max").get<float>();
    observer.absmax_ = object.at("channels").at("absmax").get<std::vector<float>>();
    const ordered_json& state = object.at("state");
    observer.absolute_ = read_sums(state.at("sums_abs"));
    observer.squares_ = read_sums(state.at("sums_square"));
    observer.average_min_ = read_average(state.at("average_min"));
    observer.average_max_ = read_average(state.at("average_max"));
    for (const ordered_json& bin : state.at("histogram")) {
      const int index = bin.at(0).get<int>();
      if (std::abs(index) > MagnitudeHistogram::kBins) throw_error(ErrorCode::BadData, "bin ", index);
      observer.histogram_.add_count(index, bin.at(1).get<int64_t>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw_error(ErrorCode::BadData, where, ": ", error.what());
  }
  const size_t width = observer.absmax_.size();
  if (observer.rows_ < 0 || width == 0 || observer.absolute_.size() != width ||
      observer.squares_.size() != width) {
    throw_error(ErrorCode::BadData, where, ": the lists of channels differ in length");
  }
  return observer;
}

}  // namespace quern::calibrate
