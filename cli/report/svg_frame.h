// The drawing area of a plot with its scales: for the files that draw plots.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/format.h"
#include "cli/report/svg.h"
#include "ir/error.h"

namespace quern::cli::report {

inline constexpr double kLeft = 60;
inline constexpr double kRight = 14;
inline constexpr double kTop = 12;
inline constexpr double kBottom = 42;

inline std::string number(double value) {
  std::string text = format_fixed(value, 2);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// All labels of an axis are of one kind, by the distance of its ticks.
inline std::string tick_label(double value, double step) {
  if (std::abs(value) < step * 1e-6) return "0";
  if (step < 1e-3 || step >= 1e5) {
    const int exponent = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
    return number(value / std::pow(10, exponent)) + "e" + std::to_string(exponent);
  }
  int decimals = 0;
  for (double rest = step; decimals < 6 && std::abs(rest - std::round(rest)) > 1e-6; rest *= 10) ++decimals;
  return format_fixed(value, decimals);
}

// The drawing area with its scales.
class Frame {
 public:
  Frame(const Axes& axes, double x_low, double x_high, double y_low, double y_high) : axes_(axes) {
    if (x_high <= x_low) x_high = x_low + 1;
    if (axes.y_from_zero && !axes.log_y) y_low = std::min(0.0, y_low);
    if (y_high <= y_low) y_high = y_low + 1;
    if (axes.log_y) {
      for (double t = std::floor(y_low + 1e-9); t <= std::ceil(y_high - 1e-9) + 1e-9; ++t)
        y_ticks_.push_back(t);
      if (y_ticks_.size() < 2) y_ticks_.push_back(y_ticks_.front() + 1);
    } else {
      y_ticks_ = nice_ticks(y_low, y_high, 5);
    }
    y_low_ = y_ticks_.front();
    y_high_ = y_ticks_.back();
    x_low_ = x_low;
    x_high_ = x_high;
  }

  double x(double value) const {
    return kLeft + (value - x_low_) / (x_high_ - x_low_) * (axes_.width - kLeft - kRight);
  }
  double y(double value) const {
    return axes_.height - kBottom - (value - y_low_) / (y_high_ - y_low_) * (axes_.height - kTop - kBottom);
  }
  double bottom() const { return axes_.height - kBottom; }
  // Where the axis of x lies.
  double base() const { return axes_.log_y ? bottom() : y(std::max(0.0, y_low_)); }

  std::string wrap(const std::string& inside) const {
    return concat("<svg viewBox=\"0 0 ", axes_.width, " ", axes_.height, "\" role=\"img\">", grid(), inside,
                  labels(), "</svg>\n");
  }

 private:
  std::string grid() const {
    std::string text;
    const double step = y_ticks_.size() > 1 ? y_ticks_[1] - y_ticks_[0] : 1;
    for (const double tick : y_ticks_) {
      text += concat("<line class=\"grid\" x1=\"", number(kLeft), "\" x2=\"", number(axes_.width - kRight),
                     "\" y1=\"", number(y(tick)), "\" y2=\"", number(y(tick)),
                     "\"/><text class=\"tick\" text-anchor=\"end\" x=\"", number(kLeft - 6), "\" y=\"",
                     number(y(tick) + 3.5), "\">", axes_.log_y ? power_label(tick) : tick_label(tick, step),
                     "</text>");
    }
    std::vector<double> x_ticks;
    if (axes_.log_x) {
      const double stride = std::max(1.0, std::ceil((x_high_ - x_low_) / 7));
      for (double t = std::ceil(x_low_); t <= x_high_ + 1e-9; t += stride) x_ticks.push_back(t);
    } else {
      for (const double t : nice_ticks(x_low_, x_high_, 6)) {
        if (t >= x_low_ - 1e-9 && t <= x_high_ + 1e-9) x_ticks.push_back(t);
      }
    }
    const double x_step = x_ticks.size() > 1 ? x_ticks[1] - x_ticks[0] : 1;
    for (const double tick : x_ticks) {
      const std::string label = axes_.log_x ? power_label(tick) : tick_label(tick, x_step);
      text += concat("<line class=\"axis\" x1=\"", number(x(tick)), "\" x2=\"", number(x(tick)), "\" y1=\"",
                     number(bottom()), "\" y2=\"", number(bottom() + 4),
                     "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"", number(x(tick)), "\" y=\"",
                     number(bottom() + 16), "\">", label, "</text>");
    }
    return text;
  }

  static std::string power_label(double exponent) {
    const auto whole = static_cast<int>(std::lround(exponent));
    if (whole >= -2 && whole <= 3) return number(std::pow(10, whole));
    return concat("10<tspan dy=\"-4\" font-size=\"8\">", whole < 0 ? "−" : "", std::abs(whole), "</tspan>");
  }

  std::string labels() const {
    const double middle = (kTop + axes_.height - kBottom) / 2;
    return concat("<line class=\"axis\" x1=\"", number(kLeft), "\" x2=\"", number(axes_.width - kRight),
                  "\" y1=\"", number(base()), "\" y2=\"", number(base()), "\"/>",
                  "<text class=\"label\" text-anchor=\"middle\" x=\"",
                  number((kLeft + axes_.width - kRight) / 2), "\" y=\"", axes_.height - 6, "\">",
                  escape(axes_.x_label), "</text>",
                  "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(11 ", number(middle),
                  ") rotate(-90)\">", escape(axes_.y_label), "</text>");
  }

  const Axes& axes_;
  double x_low_;
  double x_high_;
  double y_low_;
  double y_high_;
  std::vector<double> y_ticks_;
};

}  // namespace quern::cli::report
