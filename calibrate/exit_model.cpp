#include "calibrate/exit_model.h"

#include <vector>

#include "ir/error.h"

namespace quern::calibrate {
namespace {

class ExitModel final : public ScoredModel {
 public:
  ExitModel(runtime::Session& session, runtime::EarlyExitDecoder& decoder)
      : session_(session), decoder_(decoder) {}

  Kind kind() const override { return Kind::NextToken; }
  int64_t width() const override { return session_.program().traits().vocabulary; }
  int64_t vocabulary() const override { return width(); }
  int64_t context() const override { return session_.options().context; }

  void start(std::span<const int64_t> ids, int64_t first) override {
    ids_.assign(ids.begin(), ids.end());
    sequence_ = session_.new_sequence();
    if (first == 0) return;
    const runtime::SequenceStep step{.sequence = &sequence_,
                                     .tokens = std::span(ids_).first(static_cast<size_t>(first)),
                                     .logits = runtime::LogitsFor::None};
    session_.run({&step, 1});
  }

  std::span<const float* const> logits(int64_t first, int64_t count) override {
    if (first != sequence_.size()) {
      throw_error(ErrorCode::Internal, "logits of position ", first, " asked for after position ",
                  sequence_.size());
    }
    rows_.resize(static_cast<size_t>(count));
    pointers_.clear();
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(first + i);
      const runtime::SequenceStep step{.sequence = &sequence_, .tokens = std::span(ids_).subspan(at, 1)};
      const double threshold = decoder_.rule().threshold_at(first + i, static_cast<int64_t>(ids_.size()));
      decoder_.run({&step, 1}, {&threshold, 1});
      std::vector<float>& row = rows_[static_cast<size_t>(i)];
      row.assign(decoder_.logits(0).begin(), decoder_.logits(0).end());
      pointers_.push_back(row.data());
    }
    return pointers_;
  }

 private:
  runtime::Session& session_;
  runtime::EarlyExitDecoder& decoder_;
  runtime::Sequence sequence_;
  std::vector<int64_t> ids_;
  std::vector<std::vector<float>> rows_;
  std::vector<const float*> pointers_;
};

}  // namespace

std::unique_ptr<ScoredModel> make_exit_model(runtime::Session& session, runtime::EarlyExitDecoder& decoder) {
  return std::make_unique<ExitModel>(session, decoder);
}

}  // namespace quern::calibrate
