#include "passes/near_names.h"

#include <algorithm>

namespace quern::passes {

int edit_distance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int> table((a.size() + 1) * width);
  const auto cell = [&](size_t i, size_t j) -> int& { return table[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) cell(i, 0) = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) cell(0, j) = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitution = cell(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      int best = std::min({cell(i - 1, j) + 1, cell(i, j - 1) + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = std::min(best, cell(i - 2, j - 2) + 1);
      cell(i, j) = best;
    }
  }
  return cell(a.size(), b.size());
}

std::vector<std::string> near_names(std::string_view wanted, const std::vector<std::string>& names,
                                    size_t limit) {
  // Long inputs would make the table large for nothing: such a name is no misspelling.
  constexpr size_t kLongest = 256;
  if (wanted.empty() || wanted.size() > kLongest) return {};
  const int tolerance = std::max(1, static_cast<int>(wanted.size()) / 3);
  std::vector<std::pair<int, std::string>> found;
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kLongest) continue;
    const int distance = edit_distance(wanted, name);
    const bool contained =
        name.find(wanted) != std::string::npos || wanted.find(name) != std::string_view::npos;
    if (distance <= tolerance || contained) found.emplace_back(distance, name);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& x, const auto& y) { return x.first < y.first; });
  std::vector<std::string> result;
  for (const auto& [distance, name] : found) {
    if (result.size() == limit) break;
    if (std::find(result.begin(), result.end(), name) == result.end()) result.push_back(name);
  }
  return result;
}

std::string did_you_mean(std::string_view wanted, const std::vector<std::string>& names) {
  const std::vector<std::string> near = near_names(wanted, names);
  std::string text;
  for (size_t i = 0; i < near.size(); ++i) {
    text += i == 0 ? "; did you mean '" : i + 1 == near.size() ? "' or '" : "', '";
    text += near[i];
  }
  return near.empty() ? text : text + "'?";
}

}  // namespace quern::passes
