// A model whose logits are computed once, for comparisons with many others.
#pragma once

#include <map>
#include <vector>

#include "calibrate/scored_model.h"

namespace quern::calibrate {

// Remembers the logits of each sequence of ids that it was asked for: 4 bytes times the vocabulary for each
// token.
class RememberedModel : public ScoredModel {
 public:
  // `model` is borrowed. Beyond `most_bytes` further sequences are computed anew each time.
  explicit RememberedModel(ScoredModel& model, int64_t most_bytes = int64_t{2} << 30);

  Kind kind() const override { return model_.kind(); }
  int64_t width() const override { return model_.width(); }
  int64_t vocabulary() const override { return model_.vocabulary(); }
  int64_t context() const override { return model_.context(); }
  void start(std::span<const int64_t> ids, int64_t first) override;
  std::span<const float* const> logits(int64_t first, int64_t count) override;

 private:
  struct Key {
    std::vector<int64_t> ids;
    int64_t first;
    auto operator<=>(const Key&) const = default;
  };

  ScoredModel& model_;
  int64_t most_bytes_;
  int64_t bytes_ = 0;
  std::map<Key, std::vector<float>> logits_;
  const std::vector<float>* current_ = nullptr;  // null: the model itself is asked
  int64_t begun_ = 0;
  std::vector<const float*> rows_;
};

}  // namespace quern::calibrate
