#include "cli/report/svg.h"

#include <algorithm>
#include <cmath>

#include "cli/format.h"
#include "ir/error.h"

namespace quern::cli::report {
namespace {

constexpr double kLeft = 60;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 42;

std::string number(double value) {
  std::string text = format_fixed(value, 2);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text;
}

// All labels of an axis are of one kind, by the distance of its ticks.
std::string tick_label(double value, double step) {
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
    if (axes.y_from_zero) y_low = std::min(0.0, y_low);
    if (y_high <= y_low) y_high = y_low + 1;
    y_ticks_ = nice_ticks(y_low, y_high, 5);
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
                     number(y(tick) + 3.5), "\">", tick_label(tick, step), "</text>");
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
                  "\" y1=\"", number(y(std::max(0.0, y_low_))), "\" y2=\"", number(y(std::max(0.0, y_low_))),
                  "\"/>", "<text class=\"label\" text-anchor=\"middle\" x=\"",
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

std::string mark_lines(const Frame& frame, const std::vector<Mark>& marks) {
  std::string text;
  double label_y = kTop + 9;
  for (const Mark& mark : marks) {
    text += concat("<line class=\"mark\" x1=\"", number(frame.x(mark.x)), "\" x2=\"", number(frame.x(mark.x)),
                   "\" y1=\"", number(kTop), "\" y2=\"", number(frame.bottom()),
                   "\"/><text class=\"tick over\" x=\"", number(frame.x(mark.x) + 4), "\" y=\"",
                   number(label_y), "\">", escape(mark.label), "</text>");
    label_y += 12;  // marks may stand close to each other
  }
  return text;
}

}  // namespace

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0) || !std::isfinite(raw)) return {low, low + 1};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string bar_plot(const Axes& axes, const std::vector<Bar>& bars, const std::vector<Mark>& marks) {
  if (bars.empty()) return "";
  double y_low = 0;
  double y_high = 0;
  for (const Bar& bar : bars) {
    y_low = std::min(y_low, bar.value);
    y_high = std::max(y_high, bar.value);
  }
  const Frame frame(axes, bars.front().low, bars.back().high, y_low, y_high);
  std::string text;
  for (const Bar& bar : bars) {
    const double top = frame.y(std::max(0.0, bar.value));
    const double height = std::abs(frame.y(0) - frame.y(bar.value));
    const double gap = std::min(0.5, 0.1 * (frame.x(bar.high) - frame.x(bar.low)));
    text +=
        concat("<rect class=\"", bar.value < 0 ? "a" : "b", "\" x=\"", number(frame.x(bar.low) + gap),
               "\" y=\"", number(top), "\" width=\"", number(frame.x(bar.high) - frame.x(bar.low) - 2 * gap),
               "\" height=\"", number(height), "\"><title>", escape(bar.hint), "</title></rect>");
  }
  return frame.wrap(text + mark_lines(frame, marks));
}

std::string line_plot(const Axes& axes, const std::vector<Line>& lines) {
  double x_low = INFINITY, x_high = -INFINITY, y_low = INFINITY, y_high = -INFINITY;
  for (const Line& line : lines) {
    for (const auto& [x, y] : line.points) {
      if (!std::isfinite(y)) continue;
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    }
  }
  if (!std::isfinite(x_low)) return "";
  const Frame frame(axes, x_low, x_high, y_low, y_high);
  std::string text;
  for (const Line& line : lines) {
    std::string path;
    for (const auto& [x, y] : line.points) {
      if (std::isfinite(y))
        path += concat(path.empty() ? "M" : "L", number(frame.x(x)), " ", number(frame.y(y)));
    }
    text += concat("<path class=\"line ", line.style, "\" d=\"", path, "\"><title>", escape(line.name),
                   "</title></path>");
  }
  return frame.wrap(text);
}

std::string stacked_plot(const std::vector<Stack>& stacks, int width) {
  constexpr double kRow = 30;
  constexpr double kNames = 76;
  constexpr double kNotes = 70;
  double longest = 0;
  std::vector<std::string> names;
  for (const Stack& stack : stacks) {
    double total = 0;
    for (const Segment& segment : stack.segments) {
      total += segment.value;
      if (std::find(names.begin(), names.end(), segment.name) == names.end()) names.push_back(segment.name);
    }
    longest = std::max(longest, total);
  }
  if (longest <= 0) return "";
  const auto colour = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) - names.begin();
  };
  std::string text;
  double y = 6;
  for (const Stack& stack : stacks) {
    double x = kNames;
    text += concat("<text class=\"label\" text-anchor=\"end\" x=\"", number(kNames - 8), "\" y=\"",
                   number(y + 15), "\">", escape(stack.name), "</text>");
    for (const Segment& segment : stack.segments) {
      const double length = segment.value / longest * (width - kNames - kNotes);
      text += concat("<rect class=\"s", colour(segment.name) % 8, "\" x=\"", number(x), "\" y=\"", number(y),
                     "\" width=\"", number(length), "\" height=\"", number(kRow - 8), "\"><title>",
                     escape(segment.hint), "</title></rect>");
      x += length;
    }
    text += concat("<text class=\"tick\" x=\"", number(x + 6), "\" y=\"", number(y + 15), "\">",
                   escape(stack.note), "</text>");
    y += kRow;
  }
  if (names.size() == 1) names.clear();  // nothing to tell apart
  double x = kNames;
  y += 10;
  for (const std::string& name : names) {
    const double needed = 24 + 6.2 * static_cast<double>(name.size());
    if (x + needed > width && x > kNames) {
      x = kNames;
      y += 17;
    }
    text += concat("<rect class=\"s", colour(name) % 8, "\" x=\"", number(x), "\" y=\"", number(y - 9),
                   "\" width=\"10\" height=\"10\"/><text class=\"tick\" x=\"", number(x + 14), "\" y=\"",
                   number(y), "\">", escape(name), "</text>");
    x += needed;
  }
  return concat("<svg viewBox=\"0 0 ", width, " ", number(y + 10), "\" role=\"img\">", text, "</svg>\n");
}

}  // namespace quern::cli::report
