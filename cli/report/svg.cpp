#include "cli/report/svg.h"

#include <algorithm>
#include <cmath>

#include "cli/format.h"
#include "cli/report/svg_frame.h"
#include "ir/error.h"

namespace quern::cli::report {
namespace {

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
