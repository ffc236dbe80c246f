#include "runtime/generate/text_writer.h"

#include <algorithm>
#include <string>

namespace quern::runtime {

TextWriter::TextWriter(size_t prompt, std::span<const int64_t> prompt_ids, const GenerateOptions& options,
                       const GenerateCallback& callback, GenerateResult& result)
    : prompt_(prompt), options_(options), callback_(callback), result_(result), stop_(options.stop) {
  if (!options.decoder) return;
  decoder_ = options.decoder();
  decoder_->begin(prompt_ids);
}

void TextWriter::accept(std::span<const int64_t> ids) {
  for (const int64_t id : ids) {
    if (finished_) return;
    accept(id);
  }
}

void TextWriter::finish(FinishReason reason) {
  std::string text;
  if (decoder_ != nullptr && !stop_.stopped()) {
    text = stop_.push(decoder_->finish());
    // The very end of the text may complete a stop string.
    if (!stop_.stopped()) text += stop_.finish();
  }
  end(stop_.stopped() ? FinishReason::StopString : reason, {}, text);
}

void TextWriter::accept(int64_t id) {
  const auto& ends = options_.end_ids;
  if (std::find(ends.begin(), ends.end(), id) != ends.end()) return finish(FinishReason::EndOfSequence);
  result_.ids.push_back(id);
  const std::string text = decoder_ != nullptr ? stop_.push(decoder_->push(id)) : std::string();
  if (stop_.stopped()) return end(FinishReason::StopString, {&id, 1}, text);
  emit({&id, 1}, text, false);
  if (static_cast<int64_t>(result_.ids.size()) >= options_.max_new_tokens) finish(FinishReason::Length);
}

void TextWriter::end(FinishReason reason, std::span<const int64_t> ids, std::string_view text) {
  finished_ = true;
  result_.finish = reason;
  result_.stop = stop_.met();
  emit(ids, text, true);
}

void TextWriter::emit(std::span<const int64_t> ids, std::string_view text, bool last) {
  result_.text += text;
  if (callback_) callback_({.prompt = prompt_, .ids = ids, .text = text, .finished = last});
}

}  // namespace quern::runtime
