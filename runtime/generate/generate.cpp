#include "runtime/generate/generate.h"

#include "runtime/generate/generation.h"

namespace quern::runtime {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::Length:
      return "length";
    case FinishReason::EndOfSequence:
      return "end_of_sequence";
    case FinishReason::StopString:
      return "stop_string";
    case FinishReason::Context:
      return "context";
    case FinishReason::Cancelled:
      return "cancelled";
  }
  return "unknown";
}

double GenerateTiming::prefill_rate() const {
  return prefill_seconds > 0 ? static_cast<double>(prompt_tokens) / prefill_seconds : 0;
}

double GenerateTiming::decode_rate() const {
  return decode_seconds > 0 ? static_cast<double>(decode_tokens) / decode_seconds : 0;
}

GenerateOutput generate(Session& session, std::span<const std::vector<int64_t>> prompts,
                        const GenerateOptions& options, const GenerateCallback& callback) {
  return Generation(session, prompts, options, callback).run();
}

}  // namespace quern::runtime
