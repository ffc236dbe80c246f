#include "calibrate/decoder_model.h"

#include <vector>

#include "ir/error.h"

namespace quern::calibrate {
namespace {

class DecoderModel : public ScoredModel {
 public:
  explicit DecoderModel(runtime::Session& session) : session_(session) {}

  Kind kind() const override { return Kind::NextToken; }
  int64_t width() const override { return traits().vocabulary; }
  int64_t vocabulary() const override { return traits().vocabulary; }
  int64_t context() const override {
    return session_.options().context > 0 ? session_.options().context : traits().context;
  }

  void start(std::span<const int64_t> ids, int64_t first) override {
    ids_.assign(ids.begin(), ids.end());
    sequence_ = session_.new_sequence();
    if (first > 0) append(0, first, runtime::LogitsFor::None);
  }

  std::span<const float* const> logits(int64_t first, int64_t count) override {
    if (first != sequence_.size()) {
      throw_error(ErrorCode::Internal, "logits of position ", first, " asked for after position ",
                  sequence_.size());
    }
    append(first, count, runtime::LogitsFor::All);
    rows_.clear();
    for (int64_t i = 0; i < count; ++i) rows_.push_back(session_.logits(0, i).data());
    return rows_;
  }

 private:
  const runtime::DecoderTraits& traits() const { return session_.program().traits(); }

  void append(int64_t first, int64_t count, runtime::LogitsFor logits) {
    const std::span<const int64_t> tokens =
        std::span<const int64_t>(ids_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const runtime::SequenceStep step{.sequence = &sequence_, .tokens = tokens, .logits = logits};
    session_.run(std::span(&step, 1));
  }

  runtime::Session& session_;
  runtime::Sequence sequence_;
  std::vector<int64_t> ids_;
  std::vector<const float*> rows_;
};

}  // namespace

std::unique_ptr<ScoredModel> make_decoder_model(runtime::Session& session) {
  return std::make_unique<DecoderModel>(session);
}

}  // namespace quern::calibrate
