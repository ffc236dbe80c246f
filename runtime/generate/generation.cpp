#include "runtime/generate/generation.h"

#include <algorithm>

#include "ir/error.h"
#include "runtime/generate/prompt_queue.h"
#include "runtime/prefix/prefix_cache.h"

namespace quern::runtime {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Generation::Generation(Session& session, std::span<const std::vector<int64_t>> prompts,
                       const GenerateOptions& options, const GenerateCallback& callback)
    : session_(session),
      prompts_(prompts),
      options_(options),
      callback_(callback),
      sampler_(options.sampling) {
  if (options.shift_keep) shift_.emplace(session, *options.shift_keep);
  check();
  output_.results.resize(prompts.size());
  streams_.resize(prompts.size());
  writers_.resize(prompts.size());
  chunk_ = options.prefill_chunk > 0 ? options.prefill_chunk : session.options().max_rows;
}

void Generation::check() const {
  if (options_.max_new_tokens < 0)
    throw_error(ErrorCode::InvalidArgument, "max_new_tokens is ", options_.max_new_tokens);
  if (options_.prefill_chunk < 0)
    throw_error(ErrorCode::InvalidArgument, "prefill_chunk is ", options_.prefill_chunk);
  if (options_.parallel < 0) throw_error(ErrorCode::InvalidArgument, "parallel is ", options_.parallel);
  if (!options_.stop.empty() && !options_.decoder) {
    throw_error(ErrorCode::InvalidArgument, "stop strings need a tokenizer that makes text of the ids");
  }
  const int64_t context = shift_ ? 0 : session_.options().context;
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

GenerateOutput Generation::run() {
  start_ = Clock::now();
  if (options_.max_new_tokens == 0) {
    while (const std::optional<size_t> prompt = take_prompt()) writer(*prompt).finish(FinishReason::Length);
    return std::move(output_);
  }
  strategy_ = options_.strategy ? options_.strategy(session_, sampler_)
                                : std::make_unique<PlainDecoding>(session_, sampler_);
  while (!cancel_all()) {
    admit();
    if (!plan_prefill() || !collect_active()) continue;
    if (company_.empty() && active_.empty()) {
      if (prefills_.empty() && waiting_.empty() && !more_) break;
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
    output_.timing.context_shifts += result.context_shifts;
  }
  output_.timing.seconds = seconds_since(start_);
  return std::move(output_);
}

TextWriter& Generation::writer(size_t prompt) {
  std::unique_ptr<TextWriter>& made = writers_[prompt];
  if (made == nullptr) {
    made =
        std::make_unique<TextWriter>(prompt, prompts_[prompt], options_, callback_, output_.results[prompt]);
  }
  return *made;
}

bool Generation::cancel_all() {
  const bool asked = options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  if (!asked && (options_.queue == nullptr || !options_.queue->closed())) return false;
  while (take_prompt()) {
  }
  for (const size_t prompt : output_.prompts) {
    if (!writer(prompt).finished()) writer(prompt).finish(FinishReason::Cancelled);
  }
  return true;
}

// The streams that go on; ends those that can't. False where one had to be put back.
bool Generation::collect_active() {
  active_.clear();
  const int64_t context = session_.options().context;
  for (size_t place = 0; place < decoding_.size();) {
    const size_t i = decoding_[place];
    GenerationStream& stream = streams_[i];
    if (shift_ && shift_->is_full(stream.sequence)) {
      bool complete = true;
      if (!shift(stream, complete)) return false;
      if (!complete) {
        decoding_.erase(decoding_.begin() + static_cast<int64_t>(place));
        prefills_.push_front({.prompt = i, .begun = true, .resumed = true});
        return false;
      }
    }
    ++place;
    const auto size = static_cast<int64_t>(stream.tokens.size());
    if (context > 0 && size > context) {
      // The last token has no place in the cache: nothing can follow it.
      writer(i).finish(FinishReason::Context);
      continue;
    }
    stream.most_new = options_.max_new_tokens - static_cast<int64_t>(output_.results[i].ids.size());
    if (context > 0) stream.most_new = std::min(stream.most_new, context + 1 - size);
    active_.push_back(&stream);
  }
  retire();
  return true;
}

// Makes room in a sequence that fills the context. False where a text was put back instead.
bool Generation::shift(GenerationStream& stream, bool& complete) {
  const Clock::time_point start = Clock::now();
  if (!attempt([&] { complete = shift_->shift(stream) == ShiftWay::Move; })) return false;
  ++output_.results[stream.prompt].context_shifts;
  strategy_->renumbered(stream);
  output_.timing.decode_seconds += seconds_since(start);
  return true;
}

// Runs what leaves all sequences as they were where it fails: again with the room that kept prefixes took,
// and if that does not do, not at all; then a text was put back, and what is to be run must be planned anew.
template <class Body>
bool Generation::attempt(Body&& body) {
  while (true) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::OutOfMemory) throw;
      if (options_.prefix_cache != nullptr && options_.prefix_cache->evict()) continue;
      if (!put_back()) throw;
      return false;
    }
  }
}

// Lets the text that was begun last wait until another one has ended. False where there is but one, or none
// that could be computed anew.
bool Generation::put_back() {
  size_t holding = decoding_.size();
  for (const Prefill& prefill : prefills_) holding += prefill.begun ? 1 : 0;
  if (holding < 2) return false;
  const auto release = [&](size_t prompt) {
    GenerationStream& stream = streams_[prompt];
    strategy_->renumbered(stream);
    stream.sequence = Sequence();
    waiting_.push_front(prompt);
    ++output_.timing.put_back;
    full_ = true;
  };
  for (size_t place = prefills_.size(); place-- > 0;) {
    const Prefill& prefill = prefills_[place];
    if (!prefill.begun || !can_restart(prefill.prompt)) continue;
    release(prefill.prompt);
    prefills_.erase(prefills_.begin() + static_cast<int64_t>(place));
    return true;
  }
  for (size_t place = decoding_.size(); place-- > 0;) {
    if (!can_restart(decoding_[place])) continue;
    release(decoding_[place]);
    decoding_.erase(decoding_.begin() + static_cast<int64_t>(place));
    return true;
  }
  return false;
}

void Generation::prefill() {
  const Clock::time_point start = Clock::now();
  if (attempt([&] { session_.run(company_); })) complete_prefills();
  output_.timing.prefill_seconds += seconds_since(start);
  retire();
}

void Generation::decode() {
  const Clock::time_point start = Clock::now();
  if (attempt([&] { strategy_->advance(active_, company_); })) {
    complete_prefills();
    for (GenerationStream* stream : active_) {
      output_.timing.decode_tokens += static_cast<int64_t>(stream->found.size());
      writer(stream->prompt).accept(stream->found);
    }
  }
  output_.timing.decode_seconds += seconds_since(start);
  retire();
}

// Lets go of what has ended; its tokens, all of them verified, may be what another prompt begins with.
void Generation::retire() {
  std::erase_if(decoding_, [&](size_t i) {
    if (!writer(i).finished()) return false;
    GenerationStream& stream = streams_[i];
    strategy_->forget(stream);
    if (options_.prefix_cache != nullptr && output_.results[i].context_shifts == 0) {
      const auto written = static_cast<int64_t>(prompts_[i].size() + output_.results[i].ids.size());
      options_.prefix_cache->keep(stream.sequence, std::min(stream.sequence.size(), written));
    }
    stream.sequence = Sequence();
    full_ = false;
    return true;
  });
}

}  // namespace quern::runtime
