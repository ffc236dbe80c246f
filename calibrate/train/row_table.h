// Rows that were computed once: one of a text, for heads that read whole texts.
#pragma once

#include "calibrate/train/trainer.h"

namespace quern::calibrate::train {

// Its windows are numbers of rows: {7} is row 7.
class RowTable final : public RowSource {
 public:
  struct Rows {
    int64_t width = 0;
    std::vector<float> values;  // [rows, width]
  };
  // `sources`: what Head::source numbers; `labels`: the target of each row, or empty.
  RowTable(std::vector<Rows> sources, std::vector<int64_t> labels)
      : sources_(std::move(sources)), labels_(std::move(labels)), taken_(sources_.size()) {}

  void compute(WindowList windows) override;
  std::span<const float> states(int source) const override { return taken_[static_cast<size_t>(source)]; }
  std::vector<int64_t> targets(WindowList windows, int64_t ahead) const override;

 private:
  std::vector<Rows> sources_;
  std::vector<int64_t> labels_;
  std::vector<std::vector<float>> taken_;
};

}  // namespace quern::calibrate::train
