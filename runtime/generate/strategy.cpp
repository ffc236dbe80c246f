#include "runtime/generate/strategy.h"

namespace quern::runtime {

void PlainDecoding::advance(std::span<GenerationStream* const> streams,
                            std::span<const SequenceStep> company) {
  steps_.assign(company.begin(), company.end());
  for (GenerationStream* stream : streams) {
    steps_.push_back({.sequence = &stream->sequence, .tokens = std::span(stream->tokens).last(1)});
  }
  session_.run(steps_);
  for (size_t i = 0; i < streams.size(); ++i) {
    GenerationStream& stream = *streams[i];
    const int64_t token = sampler_.next(session_.logits(company.size() + i), stream.tokens, stream.random);
    stream.tokens.push_back(token);
    stream.found.assign(1, token);
  }
}

}  // namespace quern::runtime
