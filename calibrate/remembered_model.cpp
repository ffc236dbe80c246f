#include "calibrate/remembered_model.h"

#include <algorithm>

namespace quern::calibrate {

RememberedModel::RememberedModel(ScoredModel& model, int64_t most_bytes)
    : model_(model), most_bytes_(most_bytes) {}

void RememberedModel::start(std::span<const int64_t> ids, int64_t first) {
  begun_ = first;
  const Key key{{ids.begin(), ids.end()}, first};
  const auto known = logits_.find(key);
  if (known != logits_.end()) {
    current_ = &known->second;
    return;
  }
  model_.start(ids, first);
  const int64_t count = kind() == Kind::Classifier ? 1 : static_cast<int64_t>(ids.size()) - first;
  const int64_t bytes = count * width() * static_cast<int64_t>(sizeof(float));
  if (bytes_ + bytes > most_bytes_) {
    current_ = nullptr;
    return;
  }
  bytes_ += bytes;
  std::vector<float>& all = logits_[key];
  all.reserve(static_cast<size_t>(count * width()));
  constexpr int64_t kChunk = 64;
  for (int64_t i = 0; i < count; i += kChunk) {
    for (const float* row : model_.logits(first + i, std::min(kChunk, count - i)))
      all.insert(all.end(), row, row + width());
  }
  current_ = &all;
}

std::span<const float* const> RememberedModel::logits(int64_t first, int64_t count) {
  if (current_ == nullptr) return model_.logits(first, count);
  rows_.clear();
  for (int64_t i = 0; i < count; ++i) rows_.push_back(current_->data() + (first - begun_ + i) * width());
  return rows_;
}

}  // namespace quern::calibrate
