// Text generation: prompts in, tokens out, for one prompt or many side by side.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/decoder/session.h"
#include "runtime/generate/sampler.h"
#include "runtime/generate/strategy.h"

namespace quern::runtime {

class PrefixCache;
class PromptQueue;

// Text of generated ids, piece by piece: tokenizer::StreamDecoder is one.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  // What the ids go on; called once, before all else. The text of a token may depend on its being the first.
  virtual void begin(std::span<const int64_t> /*prompt*/) {}
  virtual std::string push(int64_t id) = 0;  // the text that `id` completes, often empty within a character
  virtual std::string finish() = 0;          // what is left at the end
};

enum class FinishReason : uint8_t { Length, EndOfSequence, StopString, Context, Cancelled };
// "length", "end_of_sequence", "stop_string", "context", "cancelled"
std::string_view to_string(FinishReason reason);

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  std::vector<int64_t> end_ids;   // tokens that end a text; they are in no output
  std::vector<std::string> stop;  // strings that end a text; they are in no output. Need `decoder`.
  SamplingOptions sampling;       // prompt i draws from stream i of the seed
  // Makes the text decoder of one prompt; without it there is no text, ids alone.
  std::function<std::unique_ptr<TextDecoder>()> decoder = {};
  // Set by any thread: generation ends after the token in work.
  const std::atomic<bool>* cancel = nullptr;
  int64_t prefill_chunk = 0;  // prompt tokens per call; 0: the session's max_rows
  // Texts decoded at once. A further prompt joins as soon as one has ended: its tokens are computed in the
  // runs that decode the others, prefill_chunk of them in each. 0: all, and all prompts are computed first.
  int64_t parallel = 0;
  // Texts that outgrow the context go on: their first tokens, as many as this, stay, and the older half of
  // the others is given up (runtime/generate/context_shift.h). Empty: texts end there, and longer prompts are
  // refused.
  std::optional<int64_t> shift_keep = {};
  // Where this call takes its prompts from, beside other calls with the same prompts; null: all are its own.
  PromptQueue* queue = nullptr;
  // Where prompts find what they begin with, and where they and the texts are kept; of the same session.
  PrefixCache* prefix_cache = nullptr;
  // Makes what finds the tokens, such as a SpeculativeDecoding; empty: PlainDecoding.
  std::function<std::unique_ptr<DecodingStrategy>(Session&, Sampler&)> strategy = {};
};

// A piece of output, on the calling thread, as soon as it can't be taken back: text that might be the start
// of a stop string is held until it is decided.
struct GenerateEvent {
  size_t prompt = 0;             // index of the prompt
  std::span<const int64_t> ids;  // new ids since the last event of this prompt
  std::string_view text;
  bool finished = false;
};

struct GenerateResult {
  std::vector<int64_t>
      ids;           // generated, without the end token; with a stop string, those before the text ends
  std::string text;  // up to the stop string
  FinishReason finish = FinishReason::Length;
  std::string stop;  // the stop string that was met
  int64_t context_shifts = 0;
};

struct GenerateTiming {
  int64_t prompt_tokens = 0;     // of all prompts
  int64_t generated_tokens = 0;  // of all prompts
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of the runs that decoded, prompts that joined them included
  double first_token_seconds = 0;
  // Per second; 0 where there was nothing to time. The first token of each prompt belongs to prefill.
  double prefill_rate() const;
  double decode_rate() const;
  int64_t decode_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompts, found in the prefix cache
  double seconds = 0;         // in all
  int64_t context_shifts = 0;
  // Texts that waited for another one's end since the cache memory did not hold both; they were computed
  // anew.
  int64_t put_back = 0;
};

using GenerateCallback = std::function<void(const GenerateEvent&)>;

struct GenerateOutput {
  std::vector<GenerateResult> results;  // one per prompt
  GenerateTiming timing;
  std::optional<SpeculationStatistics> speculation;  // of strategies that speculate
  std::vector<size_t> prompts;                       // those that were decoded here; all but with a queue
};

// Decodes all prompts side by side; each gives the same ids as it would alone. Stops a text at
// `max_new_tokens`, an end token, a stop string, or a full context. Where the session's cache memory is full,
// kept prefixes are given up, then the texts begun last are put back until others have ended. Throws
// Error{BadData} for an empty prompt, a prompt longer than the context (naming both lengths) or ids outside
// the vocabulary; Error{InvalidArgument} for options out of range; Error{OutOfMemory} where a single text
// outgrows the cache memory.
GenerateOutput generate(Session& session, std::span<const std::vector<int64_t>> prompts,
                        const GenerateOptions& options, const GenerateCallback& callback = {});

}  // namespace quern::runtime
