#include "ir/near_names.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace quern {
namespace {

// Longer names are compared by their ends alone: tensor names differ there, and the cost stays small.
constexpr size_t kLongest = 128;

std::string lower(std::string_view text) {
  if (text.size() > kLongest) text = text.substr(text.size() - kLongest);
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// Insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::vector<std::string> near_names(std::string_view wanted, std::span<const std::string> known,
                                    size_t limit) {
  struct Candidate {
    size_t distance;
    size_t index;
  };
  const std::string target = lower(wanted);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < known.size(); ++i) {
    const std::string name = lower(known[i]);
    const size_t allowed = 1 + std::min(target.size(), name.size()) / 4;
    const bool inside = target.size() >= 3 && name.find(target) != std::string::npos;
    const size_t gap = std::max(target.size(), name.size()) - std::min(target.size(), name.size());
    if (!inside && gap > allowed) continue;
    const size_t distance = edit_distance(target, name);
    // A name that contains the wanted one ranks after every plain slip, by how much longer it is.
    if (distance <= allowed) {
      candidates.push_back({distance, i});
    } else if (inside) {
      candidates.push_back({allowed + distance, i});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<std::string> result;
  for (const Candidate& candidate : candidates) {
    if (result.size() == limit) break;
    result.push_back(known[candidate.index]);
  }
  return result;
}

std::string did_you_mean(std::string_view wanted, std::span<const std::string> known, size_t limit) {
  const std::vector<std::string> names = near_names(wanted, known, limit);
  if (names.empty()) return "";
  std::string text = "; did you mean ";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " or " : ", ";
    text += "'" + names[i] + "'";
  }
  return text + "?";
}

}  // namespace quern
