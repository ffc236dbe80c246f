#include <algorithm>
#include <cmath>

#include "cli/report/svg_frame.h"

namespace quern::cli::report {
namespace {

// Indices of the points that no other beats in both, from left to right.
std::vector<size_t> frontier(const std::vector<Point>& points) {
  std::vector<size_t> order(points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return points[a].x != points[b].x ? points[a].x < points[b].x : points[a].y < points[b].y;
  });
  std::vector<size_t> best;
  for (const size_t i : order) {
    if (best.empty() || points[i].y < points[best.back()].y) best.push_back(i);
  }
  return best;
}

}  // namespace

std::string scatter_plot(const Axes& axes, const std::vector<Point>& points) {
  if (points.empty()) return "";
  double x_low = points[0].x, x_high = x_low, y_low = points[0].y, y_high = y_low;
  for (const Point& point : points) {
    x_low = std::min(x_low, point.x);
    x_high = std::max(x_high, point.x);
    y_low = std::min(y_low, point.y);
    y_high = std::max(y_high, point.y);
  }
  // Room for the labels, which stand to the right.
  const double margin = std::max(1e-9, (x_high - x_low) * 0.06);
  const Frame frame(axes, x_low - margin, x_high + 5 * margin, y_low, y_high);
  std::string text, path;
  for (const size_t i : frontier(points)) {
    path += concat(path.empty() ? "M" : "L", number(frame.x(points[i].x)), " ", number(frame.y(points[i].y)));
  }
  text += concat("<path class=\"line a\" d=\"", path, "\"/>");
  // A label that would lie on another is left to the pointer.
  std::vector<std::pair<double, double>> taken;
  for (const Point& point : points) {
    const double x = frame.x(point.x), y = frame.y(point.y);
    text += concat("<circle class=\"b\" r=\"4\" cx=\"", number(x), "\" cy=\"", number(y), "\"><title>",
                   escape(point.hint), "</title></circle>");
    const bool free = std::none_of(taken.begin(), taken.end(), [&](const auto& other) {
      return std::abs(other.second - y) < 11 && std::abs(other.first - x) < 90;
    });
    if (!free) continue;
    taken.emplace_back(x, y);
    text += concat("<text class=\"tick over\" x=\"", number(x + 7), "\" y=\"", number(y + 4), "\">",
                   escape(point.label), "</text>");
  }
  return frame.wrap(text);
}

}  // namespace quern::cli::report
