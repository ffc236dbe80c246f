// Columns of text, aligned.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal.h"

namespace quern::cli {

enum class Align { Left, Right };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::Left;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells are empty.
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }

  // A line per row, each after `indent` spaces; titles first unless all are empty. No trailing spaces.
  std::string to_string(int indent = 0, Stream stream = Stream::Out) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Names and values, one pair a line, the values aligned.
std::string format_pairs(const std::vector<std::pair<std::string, std::string>>& pairs, int indent = 0,
                         Stream stream = Stream::Out);

// `text` broken at spaces so that no line is wider than `width`; lines after the first start with `indent`
// spaces, which count.
std::string wrap(const std::string& text, size_t width, size_t indent);

}  // namespace quern::cli
