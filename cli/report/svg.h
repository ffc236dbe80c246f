// Plots as inline SVG. Colours come from the page's style sheet, by class: "a" and "b" for the two models.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace quern::cli::report {

struct Axes {
  std::string x_label;
  std::string y_label;
  int width = 460;
  int height = 240;
  bool log_x = false;  // x values are powers of ten: 2 is shown as 100
  bool log_y = false;  // likewise
  bool y_from_zero = true;
};

struct Bar {
  double low;  // on the x axis
  double high;
  double value;
  std::string hint;  // shown under the pointer
};
struct Mark {
  double x;
  std::string label;
};
// Bars beside each other, with marked places on the x axis.
std::string bar_plot(const Axes& axes, const std::vector<Bar>& bars, const std::vector<Mark>& marks = {});

struct Line {
  std::string name;
  std::string style;  // class: "a", "b"
  std::vector<std::pair<double, double>> points;
};
std::string line_plot(const Axes& axes, const std::vector<Line>& lines);

struct Point {
  double x;
  double y;
  std::string label;  // beside the point
  std::string hint;   // shown under the pointer
};
// Points, joined by a line where none is below and to the left of them: what is worth choosing.
std::string scatter_plot(const Axes& axes, const std::vector<Point>& points);

struct Segment {
  std::string name;
  double value;
  std::string hint;
};
struct Stack {
  std::string name;
  std::string note;  // behind the bar
  std::vector<Segment> segments;
};
// Horizontal bars of segments on one scale, with a legend; equal names have equal colours.
std::string stacked_plot(const std::vector<Stack>& stacks, int width = 460);

// Text for HTML and attributes.
std::string escape(const std::string& text);

// About `count` round numbers from at or below `low` to at or above `high`; the outermost enclose both.
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace quern::cli::report
