// The output of one prompt.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "runtime/generate/generate.h"
#include "runtime/generate/stop_strings.h"

namespace quern::runtime {

// Takes over a text's tokens as they are found, finds where it ends, and hands it out. All that it is given
// must outlive it.
class TextWriter {
 public:
  TextWriter(size_t prompt, std::span<const int64_t> prompt_ids, const GenerateOptions& options,
             const GenerateCallback& callback, GenerateResult& result);

  bool finished() const { return finished_; }
  // In order, until one of them ends the text.
  void accept(std::span<const int64_t> ids);
  void finish(FinishReason reason);

 private:
  void accept(int64_t id);
  void end(FinishReason reason, std::span<const int64_t> ids, std::string_view text);
  void emit(std::span<const int64_t> ids, std::string_view text, bool last);

  size_t prompt_;
  const GenerateOptions& options_;
  const GenerateCallback& callback_;
  GenerateResult& result_;
  StopStrings stop_;
  std::unique_ptr<TextDecoder> decoder_;
  bool finished_ = false;
};

}  // namespace quern::runtime
