#include "cli/table.h"

#include <algorithm>
#include <sstream>

namespace quern::cli {
namespace {

std::string pad(const std::string& cell, size_t width, Align align) {
  const std::string gap(width - std::min(width, display_width(cell)), ' ');
  return align == Align::Left ? cell + gap : gap + cell;
}

void end_line(std::string& text, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
}

}  // namespace

std::string Table::to_string(int indent, Stream stream) const {
  std::vector<size_t> widths;
  bool titled = false;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = display_width(columns_[c].title);
    titled = titled || width > 0;
    for (const auto& row : rows_) {
      if (c < row.size()) width = std::max(width, display_width(row[c]));
    }
    widths.push_back(width);
  }
  const std::string start(static_cast<size_t>(indent), ' ');
  std::string text;
  if (titled) {
    std::string line = start;
    for (size_t c = 0; c < columns_.size(); ++c) {
      line += (c > 0 ? "  " : "") +
              pad(styled(columns_[c].title, Style::Bold, stream), widths[c], columns_[c].align);
    }
    end_line(text, line);
  }
  for (const auto& row : rows_) {
    std::string line = start;
    for (size_t c = 0; c < columns_.size(); ++c) {
      line += (c > 0 ? "  " : "") + pad(c < row.size() ? row[c] : "", widths[c], columns_[c].align);
    }
    end_line(text, line);
  }
  return text;
}

std::string format_pairs(const std::vector<std::pair<std::string, std::string>>& pairs, int indent,
                         Stream stream) {
  Table table({{""}, {""}});
  for (const auto& [name, value] : pairs) table.add_row({styled(name, Style::Dim, stream), value});
  return table.to_string(indent, stream);
}

std::string wrap(const std::string& text, size_t width, size_t indent) {
  std::istringstream words(text);
  std::string result;
  size_t column = indent;
  for (std::string word; words >> word;) {
    const size_t length = display_width(word);
    if (column > indent && column + 1 + length > width) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += length;
  }
  return result;
}

}  // namespace quern::cli
