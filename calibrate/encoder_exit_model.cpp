#include "calibrate/encoder_exit_model.h"

#include <algorithm>
#include <functional>

#include "calibrate/graph_model.h"
#include "calibrate/text_rows.h"
#include "ir/error.h"

namespace quern::calibrate {
namespace {

using Rows = std::vector<std::vector<float>>;
// The logits of each sequence of a batch.
using ClassifyBatch = std::function<Rows(const runtime::NamedValues&)>;

class EncoderExitModel final : public ScoredModel {
 public:
  EncoderExitModel(const Graph& graph, ClassifyBatch classify)
      : classify_(std::move(classify)),
        inputs_(graph),
        batches_(inputs_.takes_batches()),
        vocabulary_(table_rows(inputs_.ids())) {
    const Value& logits = *runtime::find_encoder_layers(graph).logits->value;
    const auto width = logits.shape().back().as_constant();
    if (!width) {
      throw_error(ErrorCode::Unsupported, "'", logits.name(), "' (", to_string(logits.type()),
                  ") does not state how many classes there are");
    }
    width_ = *width;
  }

  Kind kind() const override { return Kind::Classifier; }
  int64_t width() const override { return width_; }
  int64_t vocabulary() const override { return vocabulary_; }
  int64_t context() const override { return inputs_.fixed_length(); }

  void expect(std::span<const std::span<const int64_t>> sequences) override {
    expected_.assign(sequences.begin(), sequences.end());
    next_ = computed_ = 0;
  }

  void start(std::span<const int64_t> ids, int64_t) override {
    const bool announced = next_ < expected_.size() && expected_[next_].data() == ids.data() &&
                           expected_[next_].size() == ids.size();
    if (!announced) {
      compute(Texts{ids}, 0, 1);
      current_ = 0;
      computed_ = next_;
      return;
    }
    if (next_ >= computed_) computed_ = next_ + compute_expected();
    current_ = batch_.size() - (computed_ - next_);
    ++next_;
  }

  std::span<const float* const> logits(int64_t, int64_t) override {
    pointer_ = batch_[current_].data();
    return {&pointer_, 1};
  }

 private:
  size_t compute_expected() {
    const size_t count = batches_ ? batch_at(expected_, next_) : 1;
    try {
      compute(expected_, next_, count);
    } catch (const Error& error) {
      if (count == 1 || error.code() == ErrorCode::OutOfMemory || error.code() == ErrorCode::Internal) throw;
      batches_ = false;
      return compute_expected();
    }
    return count;
  }

  void compute(const Texts& texts, size_t first, size_t count) {
    batch_ = classify_(inputs_.fill(std::span(texts).subspan(first, count)));
    for (const std::vector<float>& logits : batch_) {
      if (static_cast<int64_t>(logits.size()) != width_)
        throw_error(ErrorCode::InvalidModel, "an exit gives ", logits.size(), " logits, not ", width_);
    }
  }

  ClassifyBatch classify_;
  TokenInputs inputs_;
  bool batches_;
  int64_t vocabulary_;
  int64_t width_ = 0;
  Texts expected_;
  size_t next_ = 0;      // of expected_, for start()
  size_t computed_ = 0;  // batch_ holds the last before this
  Rows batch_;
  size_t current_ = 0;
  const float* pointer_ = nullptr;
};

}  // namespace

std::unique_ptr<ScoredModel> make_encoder_exit_model(runtime::EarlyExitEncoder& encoder) {
  return std::make_unique<EncoderExitModel>(encoder.graph(), [&encoder](const runtime::NamedValues& inputs) {
    Rows rows;
    for (const auto& result : encoder.run(inputs)) rows.push_back(result.logits);
    return rows;
  });
}

std::unique_ptr<ScoredModel> make_encoder_exit_model(runtime::HashExitEncoder& encoder) {
  return std::make_unique<EncoderExitModel>(
      encoder.original(), [&encoder](const runtime::NamedValues& inputs) {
        const Tensor logits = encoder.run(inputs);
        const auto width = static_cast<size_t>(logits.dim(-1));
        Rows rows;
        for (size_t first = 0; first < static_cast<size_t>(logits.size()); first += width) {
          const auto row = logits.data<float>().subspan(first, width);
          rows.emplace_back(row.begin(), row.end());
        }
        return rows;
      });
}

}  // namespace quern::calibrate
