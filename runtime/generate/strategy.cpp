#include "runtime/generate/strategy.h"

namespace quern::runtime {

SpeculationStatistics& SpeculationStatistics::operator+=(const SpeculationStatistics& other) {
  rounds += other.rounds;
  speculative_rounds += other.speculative_rounds;
  tokens += other.tokens;
  proposed += other.proposed;
  verified += other.verified;
  evaluated += other.evaluated;
  accepted += other.accepted;
  draft_seconds += other.draft_seconds;
  seconds += other.seconds;
  plain_tokens += other.plain_tokens;
  plain_seconds += other.plain_seconds;
  return *this;
}

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
