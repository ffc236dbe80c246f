#include "runtime/generate/generate.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "ir/error.h"
#include "runtime/generate/strategy.h"
#include "runtime/generate/text_writer.h"
#include "runtime/prefix/prefix_cache.h"

namespace quern::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A prompt that begins like another one by fewer tokens than this does not wait for it.
constexpr int64_t kWorthWaitingFor = 32;

class Generation {
 public:
  Generation(Session& session, std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
             const GenerateCallback& callback)
      : session_(session), prompts_(prompts), options_(options), sampler_(options.sampling) {
    check();
    output_.results.resize(prompts.size());
    streams_.resize(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      streams_[i].prompt = i;
      streams_[i].random = RandomStream(options.sampling.seed, i);
      writers_.emplace_back(i, prompts[i], options, callback, output_.results[i]);
      output_.timing.prompt_tokens += static_cast<int64_t>(prompts[i].size());
    }
    chunk_ = options.prefill_chunk > 0 ? options.prefill_chunk : session.options().max_rows;
  }

  GenerateOutput run() {
    start_ = Clock::now();
    if (options_.max_new_tokens == 0) {
      for (TextWriter& writer : writers_) writer.finish(FinishReason::Length);
      return std::move(output_);
    }
    strategy_ = options_.strategy ? options_.strategy(session_, sampler_)
                                  : std::make_unique<PlainDecoding>(session_, sampler_);
    while (!cancel_all()) {
      admit();
      plan_prefill();
      collect_active();
      if (company_.empty() && active_.empty()) {
        if (next_ == prompts_.size()) break;
        continue;
      }
      if (active_.empty() || (options_.parallel == 0 && !company_.empty())) {
        prefill();
      } else {
        decode();
      }
    }
    if (const SpeculationStatistics* statistics = strategy_->statistics()) output_.speculation = *statistics;
    for (const GenerateResult& result : output_.results) {
      output_.timing.generated_tokens += static_cast<int64_t>(result.ids.size());
    }
    output_.timing.seconds = seconds_since(start_);
    return std::move(output_);
  }

 private:
  // A prompt that is being computed.
  struct Prefill {
    size_t prompt = 0;
    size_t done = 0;  // tokens
    bool begun = false;
  };

  void check() const {
    if (options_.max_new_tokens < 0) {
      throw_error(ErrorCode::InvalidArgument, "max_new_tokens is ", options_.max_new_tokens);
    }
    if (options_.prefill_chunk < 0)
      throw_error(ErrorCode::InvalidArgument, "prefill_chunk is ", options_.prefill_chunk);
    if (options_.parallel < 0) throw_error(ErrorCode::InvalidArgument, "parallel is ", options_.parallel);
    if (!options_.stop.empty() && !options_.decoder) {
      throw_error(ErrorCode::InvalidArgument, "stop strings need a tokenizer that makes text of the ids");
    }
    const int64_t context = session_.options().context;
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const auto size = static_cast<int64_t>(prompts_[i].size());
      if (size == 0)
        throw_error(ErrorCode::BadData, "prompt ", i, " is empty: a text begins with one token at least");
      if (context > 0 && size > context) {
        throw_error(ErrorCode::BadData, "prompt ", i, " has ", size, " tokens, more than the context of ",
                    context);
      }
    }
  }

  bool cancel_all() {
    if (options_.cancel == nullptr || !options_.cancel->load(std::memory_order_relaxed)) return false;
    for (TextWriter& writer : writers_) {
      if (!writer.finished()) writer.finish(FinishReason::Cancelled);
    }
    return true;
  }

  void admit() {
    const auto most = static_cast<size_t>(options_.parallel);
    while (next_ < prompts_.size() && (most == 0 || decoding_.size() + prefills_.size() < most)) {
      prefills_.push_back({.prompt = next_++});
    }
  }

  // Whether a prompt begins like one that is being computed before it, and so had better wait for it.
  bool shares_with_earlier(size_t place) const {
    const std::vector<int64_t>& mine = prompts_[prefills_[place].prompt];
    for (size_t i = 0; i < place; ++i) {
      const std::vector<int64_t>& other = prompts_[prefills_[i].prompt];
      const auto most = static_cast<int64_t>(std::min(mine.size(), other.size()));
      const auto at = std::mismatch(mine.begin(), mine.begin() + most, other.begin()).first;
      if (at - mine.begin() >= kWorthWaitingFor) return true;
    }
    return false;
  }

  void begin(Prefill& prefill) {
    prefill.begun = true;
    GenerationStream& stream = streams_[prefill.prompt];
    stream.tokens = prompts_[prefill.prompt];
    stream.sequence = options_.prefix_cache != nullptr ? options_.prefix_cache->take(stream.tokens)
                                                       : session_.new_sequence();
    prefill.done = static_cast<size_t>(stream.sequence.size());
    output_.timing.cached_tokens += stream.sequence.size();
  }

  // The next pieces of prompts, in pieces that keep a run short enough to be cancelled.
  void plan_prefill() {
    company_.clear();
    size_t room = static_cast<size_t>(chunk_);
    for (size_t i = 0; i < prefills_.size() && room > 0; ++i) {
      Prefill& prefill = prefills_[i];
      if (!prefill.begun) {
        if (options_.prefix_cache != nullptr && shares_with_earlier(i)) break;
        begin(prefill);
      }
      const std::span<const int64_t> left = std::span(prompts_[prefill.prompt]).subspan(prefill.done);
      const size_t count = std::min(room, left.size());
      company_.push_back({.sequence = &streams_[prefill.prompt].sequence,
                          .tokens = left.first(count),
                          .logits = count == left.size() ? LogitsFor::Last : LogitsFor::None});
      room -= count;
    }
  }

  // The streams that go on; ends those that can't.
  void collect_active() {
    active_.clear();
    const int64_t context = session_.options().context;
    for (const size_t i : decoding_) {
      GenerationStream& stream = streams_[i];
      const auto size = static_cast<int64_t>(stream.tokens.size());
      if (context > 0 && size > context) {
        // The last token has no place in the cache: nothing can follow it.
        writers_[i].finish(FinishReason::Context);
        continue;
      }
      const int64_t generated = size - static_cast<int64_t>(prompts_[i].size());
      stream.most_new = options_.max_new_tokens - generated;
      if (context > 0) stream.most_new = std::min(stream.most_new, context + 1 - size);
      active_.push_back(&stream);
    }
    retire();
  }

  // Runs what leaves all sequences as they were where it fails, again with the room that kept prefixes took.
  template <class Body>
  void with_room(Body&& body) {
    while (true) {
      try {
        return body();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::OutOfMemory || options_.prefix_cache == nullptr) throw;
        if (!options_.prefix_cache->evict()) throw;
      }
    }
  }

  void prefill() {
    const Clock::time_point start = Clock::now();
    with_room([&] { session_.run(company_); });
    complete_prefills();
    output_.timing.prefill_seconds += seconds_since(start);
    retire();
  }

  void decode() {
    const Clock::time_point start = Clock::now();
    with_room([&] { strategy_->advance(active_, company_); });
    complete_prefills();
    for (GenerationStream* stream : active_) {
      output_.timing.decode_tokens += static_cast<int64_t>(stream->found.size());
      writers_[stream->prompt].accept(stream->found);
    }
    output_.timing.decode_seconds += seconds_since(start);
    retire();
  }

  // Of the run: books the pieces of prompts, and lets those that are complete go on to decoding.
  void complete_prefills() {
    for (size_t i = 0; i < company_.size(); ++i) {
      Prefill& prefill = prefills_[i];
      prefill.done += company_[i].tokens.size();
      if (prefill.done == prompts_[prefill.prompt].size()) first_token(prefill.prompt, session_.logits(i));
    }
    std::erase_if(prefills_, [&](const Prefill& p) { return p.done == prompts_[p.prompt].size(); });
  }

  void first_token(size_t i, std::span<const float> logits) {
    GenerationStream& stream = streams_[i];
    if (options_.prefix_cache != nullptr) {
      options_.prefix_cache->keep(stream.sequence, stream.sequence.size());
    }
    const int64_t token = sampler_.next(logits, stream.tokens, stream.random);
    stream.tokens.push_back(token);
    if (output_.timing.first_token_seconds == 0) output_.timing.first_token_seconds = seconds_since(start_);
    writers_[i].accept({&token, 1});
    decoding_.push_back(i);
  }

  // Lets go of what has ended; its tokens, all of them verified, may be what another prompt begins with.
  void retire() {
    std::erase_if(decoding_, [&](size_t i) {
      if (!writers_[i].finished()) return false;
      GenerationStream& stream = streams_[i];
      strategy_->forget(stream);
      if (options_.prefix_cache != nullptr) {
        const auto written = static_cast<int64_t>(prompts_[i].size() + output_.results[i].ids.size());
        options_.prefix_cache->keep(stream.sequence, std::min(stream.sequence.size(), written));
      }
      stream.sequence = Sequence();
      return true;
    });
  }

  Session& session_;
  std::span<const std::vector<int64_t>> prompts_;
  const GenerateOptions& options_;
  Sampler sampler_;
  std::unique_ptr<DecodingStrategy> strategy_;
  int64_t chunk_ = 0;
  GenerateOutput output_;
  std::vector<GenerationStream> streams_;
  std::vector<TextWriter> writers_;
  size_t next_ = 0;                    // prompt to be admitted
  std::deque<Prefill> prefills_;       // admitted, first come first served
  std::vector<size_t> decoding_;       // prompts whose texts are being decoded
  std::vector<SequenceStep> company_;  // of the run: pieces of the first prompts of prefills_
  std::vector<GenerationStream*> active_;
  Clock::time_point start_;
};

}  // namespace

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
