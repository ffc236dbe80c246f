// How prompts, and texts that are computed anew, come into a generation.
#include <algorithm>

#include "runtime/generate/generation.h"
#include "runtime/generate/prompt_queue.h"
#include "runtime/prefix/prefix_cache.h"

namespace quern::runtime {
namespace {

// A prompt that begins like another one by fewer tokens than this does not wait for it.
constexpr int64_t kWorthWaitingFor = 32;

}  // namespace

std::optional<size_t> Generation::take_prompt() {
  std::optional<size_t> prompt;
  if (options_.queue != nullptr) {
    prompt = options_.queue->take();
  } else if (next_ < prompts_.size()) {
    prompt = next_++;
  }
  more_ = prompt.has_value();
  if (!prompt) return {};
  output_.prompts.push_back(*prompt);
  output_.timing.prompt_tokens += static_cast<int64_t>(prompts_[*prompt].size());
  GenerationStream& stream = streams_[*prompt];
  stream.prompt = *prompt;
  stream.random = RandomStream(options_.sampling.seed, *prompt);
  stream.tokens = prompts_[*prompt];
  return prompt;
}

void Generation::admit() {
  const auto most = static_cast<size_t>(options_.parallel);
  while (!full_ && (most == 0 || decoding_.size() + prefills_.size() < most)) {
    if (!waiting_.empty()) {
      const size_t prompt = waiting_.front();
      waiting_.pop_front();
      // From its first token on: a text that was shifted is shifted again, at the same places.
      GenerateResult& result = output_.results[prompt];
      std::vector<int64_t>& tokens = streams_[prompt].tokens;
      tokens = prompts_[prompt];
      tokens.insert(tokens.end(), result.ids.begin(), result.ids.end());
      result.context_shifts = 0;
      prefills_.push_back({.prompt = prompt, .resumed = !result.ids.empty(), .again = true});
      continue;
    }
    const std::optional<size_t> prompt = more_ ? take_prompt() : std::nullopt;
    if (!prompt) return;
    prefills_.push_back({.prompt = *prompt});
  }
}

// Whether a sequence can be had again by computing the stream's tokens.
bool Generation::can_restart(size_t prompt) const {
  return output_.results[prompt].ids.empty() || strategy_->is_like_prefill();
}

// Whether a prompt begins like one that is being computed before it, and so had better wait for it: by more
// than what is known already.
bool Generation::shares_with_earlier(size_t place) const {
  const std::vector<int64_t>& mine = streams_[prefills_[place].prompt].tokens;
  const int64_t known = place > 0 ? options_.prefix_cache->known(mine) : 0;
  for (size_t i = 0; i < place; ++i) {
    const std::vector<int64_t>& other = prompts_[prefills_[i].prompt];
    const auto most = static_cast<int64_t>(std::min(mine.size(), other.size()));
    const auto at = std::mismatch(mine.begin(), mine.begin() + most, other.begin()).first;
    if (at - mine.begin() >= known + kWorthWaitingFor) return true;
  }
  return false;
}

void Generation::begin(Prefill& prefill) {
  prefill.begun = true;
  GenerationStream& stream = streams_[prefill.prompt];
  stream.sequence =
      options_.prefix_cache != nullptr ? options_.prefix_cache->take(stream.tokens) : session_.new_sequence();
  if (!prefill.again) output_.timing.cached_tokens += stream.sequence.size();
}

int64_t Generation::left_of(const Prefill& prefill) const {
  const GenerationStream& stream = streams_[prefill.prompt];
  return static_cast<int64_t>(stream.tokens.size()) - (prefill.resumed ? 1 : 0) - stream.sequence.size();
}

// The next pieces of prompts, in pieces that keep a run short enough to be cancelled. False where a text had
// to be put back.
bool Generation::plan_prefill() {
  company_.clear();
  const int64_t context = session_.options().context;
  int64_t room = chunk_;
  for (size_t i = 0; i < prefills_.size() && room > 0; ++i) {
    if (!prefills_[i].begun) {
      if (options_.prefix_cache != nullptr && shares_with_earlier(i)) break;
      begin(prefills_[i]);
    }
    const Prefill prefill = prefills_[i];
    GenerationStream& stream = streams_[prefill.prompt];
    bool complete = false;
    if (shift_ && shift_->is_full(stream.sequence) && left_of(prefill) > 0 && !shift(stream, complete))
      return false;
    const int64_t left = left_of(prefill);
    int64_t count = std::min(room, left);
    if (context > 0) count = std::min(count, context - stream.sequence.size());
    const bool last = count == left && !prefill.resumed;
    company_.push_back(
        {.sequence = &stream.sequence,
         .tokens = std::span(stream.tokens)
                       .subspan(static_cast<size_t>(stream.sequence.size()), static_cast<size_t>(count)),
         .logits = last ? LogitsFor::Last : LogitsFor::None});
    room -= count;
  }
  return true;
}

// Of the run: lets the streams that are complete go on to decoding.
void Generation::complete_prefills() {
  for (size_t i = 0; i < company_.size(); ++i) {
    if (left_of(prefills_[i]) > 0) continue;
    complete(prefills_[i], prefills_[i].resumed ? std::span<const float>() : session_.logits(i));
    prefills_[i].complete = true;
  }
  std::erase_if(prefills_, [](const Prefill& prefill) { return prefill.complete; });
}

void Generation::complete(const Prefill& prefill, std::span<const float> logits) {
  GenerationStream& stream = streams_[prefill.prompt];
  decoding_.push_back(prefill.prompt);
  if (prefill.resumed) return;
  if (options_.prefix_cache != nullptr && output_.results[prefill.prompt].context_shifts == 0) {
    options_.prefix_cache->keep(stream.sequence, stream.sequence.size());
  }
  const int64_t token = sampler_.next(logits, stream.tokens, stream.random);
  stream.tokens.push_back(token);
  if (output_.timing.first_token_seconds == 0) {
    output_.timing.first_token_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  }
  writer(prefill.prompt).accept({&token, 1});
}

}  // namespace quern::runtime
