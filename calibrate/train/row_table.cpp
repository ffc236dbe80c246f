#include "calibrate/train/row_table.h"

namespace quern::calibrate::train {

void RowTable::compute(WindowList windows) {
  for (size_t s = 0; s < sources_.size(); ++s) {
    const auto width = static_cast<std::ptrdiff_t>(sources_[s].width);
    taken_[s].clear();
    for (const std::vector<int64_t>* window : windows) {
      for (const int64_t row : *window) {
        const auto first = sources_[s].values.begin() + row * width;
        taken_[s].insert(taken_[s].end(), first, first + width);
      }
    }
  }
}

std::vector<int64_t> RowTable::targets(WindowList windows, int64_t) const {
  std::vector<int64_t> targets;
  for (const std::vector<int64_t>* window : windows) {
    for (const int64_t row : *window)
      targets.push_back(labels_.empty() ? 0 : labels_[static_cast<size_t>(row)]);
  }
  return targets;
}

}  // namespace quern::calibrate::train
