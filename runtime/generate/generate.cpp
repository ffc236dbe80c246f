#include "runtime/generate/generate.h"

#include <algorithm>
#include <chrono>

#include "ir/error.h"
#include "runtime/generate/stop_strings.h"
#include "runtime/generate/strategy.h"

namespace quern::runtime {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One prompt's text, its end conditions, and its output.
class Writer {
 public:
  Writer(size_t prompt, const GenerateOptions& options, const GenerateCallback& callback,
         GenerateResult& result)
      : prompt_(prompt), options_(options), callback_(callback), result_(result), stop_(options.stop) {
    if (options.decoder) decoder_ = options.decoder();
  }

  bool finished() const { return finished_; }

  // Takes over found tokens in order until one of them ends the text.
  void accept(std::span<const int64_t> ids) {
    for (const int64_t id : ids) {
      if (finished_) return;
      accept(id);
    }
  }

  void finish(FinishReason reason) {
    std::string text;
    if (decoder_ != nullptr && !stop_.stopped()) {
      text = stop_.push(decoder_->finish());
      // The very end of the text may complete a stop string.
      if (!stop_.stopped()) text += stop_.finish();
    }
    end(stop_.stopped() ? FinishReason::StopString : reason, {}, text);
  }

 private:
  void accept(int64_t id) {
    const auto& ends = options_.end_ids;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) return finish(FinishReason::EndOfSequence);
    result_.ids.push_back(id);
    const std::string text = decoder_ != nullptr ? stop_.push(decoder_->push(id)) : std::string();
    if (stop_.stopped()) return end(FinishReason::StopString, {&id, 1}, text);
    emit({&id, 1}, text, false);
    if (static_cast<int64_t>(result_.ids.size()) >= options_.max_new_tokens) finish(FinishReason::Length);
  }

  void end(FinishReason reason, std::span<const int64_t> ids, std::string_view text) {
    finished_ = true;
    result_.finish = reason;
    result_.stop = stop_.met();
    emit(ids, text, true);
  }

  void emit(std::span<const int64_t> ids, std::string_view text, bool last) {
    result_.text += text;
    if (callback_) callback_({.prompt = prompt_, .ids = ids, .text = text, .finished = last});
  }

  size_t prompt_;
  const GenerateOptions& options_;
  const GenerateCallback& callback_;
  GenerateResult& result_;
  StopStrings stop_;
  std::unique_ptr<TextDecoder> decoder_;
  bool finished_ = false;
};

class Generation {
 public:
  Generation(Session& session, std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
             const GenerateCallback& callback)
      : session_(session), prompts_(prompts), options_(options), sampler_(options.sampling) {
    check();
    output_.results.resize(prompts.size());
    streams_.resize(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      GenerationStream& stream = streams_[i];
      stream.prompt = i;
      stream.sequence = session.new_sequence();
      stream.tokens = prompts[i];
      stream.random = RandomStream(options.sampling.seed, i);
      writers_.emplace_back(i, options, callback, output_.results[i]);
      output_.timing.prompt_tokens += static_cast<int64_t>(prompts[i].size());
    }
  }

  GenerateOutput run() {
    start_ = Clock::now();
    if (options_.max_new_tokens == 0) {
      for (Writer& writer : writers_) writer.finish(FinishReason::Length);
      return std::move(output_);
    }
    prefill();
    output_.timing.prefill_seconds = seconds_since(start_);
    const Clock::time_point decoding = Clock::now();
    const std::unique_ptr<DecodingStrategy> strategy = make_strategy();
    for (collect_active(); !active_.empty(); collect_active()) {
      strategy->advance(active_);
      for (GenerationStream* stream : active_) {
        output_.timing.decode_tokens += static_cast<int64_t>(stream->found.size());
        writers_[stream->prompt].accept(stream->found);
        if (writers_[stream->prompt].finished()) strategy->forget(*stream);
      }
    }
    if (const SpeculationStatistics* statistics = strategy->statistics()) output_.speculation = *statistics;
    if (output_.timing.decode_tokens > 0) output_.timing.decode_seconds = seconds_since(decoding);
    for (const GenerateResult& result : output_.results) {
      output_.timing.generated_tokens += static_cast<int64_t>(result.ids.size());
    }
    return std::move(output_);
  }

 private:
  void check() const {
    if (options_.max_new_tokens < 0) {
      throw_error(ErrorCode::InvalidArgument, "max_new_tokens is ", options_.max_new_tokens);
    }
    if (options_.prefill_chunk < 0)
      throw_error(ErrorCode::InvalidArgument, "prefill_chunk is ", options_.prefill_chunk);
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

  std::unique_ptr<DecodingStrategy> make_strategy() {
    if (options_.strategy) return options_.strategy(session_, sampler_);
    return std::make_unique<PlainDecoding>(session_, sampler_);
  }

  bool cancelled() const {
    return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  }

  // All prompts, in pieces that keep a run short enough to be cancelled; then the first token of each.
  void prefill() {
    const int64_t chunk = options_.prefill_chunk > 0 ? options_.prefill_chunk : session_.options().max_rows;
    std::vector<size_t> done(prompts_.size());
    for (size_t next = 0; next < prompts_.size();) {
      if (cancelled()) return;
      std::vector<SequenceStep> steps;
      std::vector<size_t> completed;
      for (size_t room = static_cast<size_t>(chunk); room > 0 && next < prompts_.size();) {
        const std::span<const int64_t> left = std::span(prompts_[next]).subspan(done[next]);
        const size_t count = std::min(room, left.size());
        const bool last = count == left.size();
        steps.push_back({.sequence = &streams_[next].sequence,
                         .tokens = left.first(count),
                         .logits = last ? LogitsFor::Last : LogitsFor::None});
        completed.push_back(last ? next : prompts_.size());
        done[next] += count;
        room -= count;
        if (last) ++next;
      }
      session_.run(steps);
      for (size_t s = 0; s < steps.size(); ++s) {
        if (completed[s] < prompts_.size()) first_token(completed[s], session_.logits(s));
      }
    }
  }

  void first_token(size_t i, std::span<const float> logits) {
    GenerationStream& stream = streams_[i];
    const int64_t token = sampler_.next(logits, stream.tokens, stream.random);
    stream.tokens.push_back(token);
    if (output_.timing.first_token_seconds == 0) output_.timing.first_token_seconds = seconds_since(start_);
    writers_[i].accept({&token, 1});
  }

  // The streams that go on; ends those that can't.
  void collect_active() {
    active_.clear();
    const int64_t context = session_.options().context;
    for (size_t i = 0; i < streams_.size(); ++i) {
      if (writers_[i].finished()) continue;
      GenerationStream& stream = streams_[i];
      const auto size = static_cast<int64_t>(stream.tokens.size());
      if (cancelled()) {
        writers_[i].finish(FinishReason::Cancelled);
      } else if (context > 0 && size > context) {
        // The last token has no place in the cache: nothing can follow it.
        writers_[i].finish(FinishReason::Context);
      } else {
        const int64_t generated = size - static_cast<int64_t>(prompts_[i].size());
        stream.most_new = options_.max_new_tokens - generated;
        if (context > 0) stream.most_new = std::min(stream.most_new, context + 1 - size);
        active_.push_back(&stream);
      }
    }
  }

  Session& session_;
  std::span<const std::vector<int64_t>> prompts_;
  const GenerateOptions& options_;
  Sampler sampler_;
  GenerateOutput output_;
  std::vector<GenerationStream> streams_;
  std::vector<Writer> writers_;
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
