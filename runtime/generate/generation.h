// One call of generate(): which texts are computed by which run.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/generate/context_shift.h"
#include "runtime/generate/generate.h"
#include "runtime/generate/strategy.h"
#include "runtime/generate/text_writer.h"

namespace quern::runtime {

class Generation {
 public:
  Generation(Session& session, std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
             const GenerateCallback& callback);
  GenerateOutput run();

 private:
  using Clock = std::chrono::steady_clock;

  // A stream whose tokens are being computed: a prompt, or a text that goes on after it was put back or had
  // to be computed anew.
  struct Prefill {
    size_t prompt = 0;
    bool begun = false;
    bool resumed = false;  // the logits of its last token are known: that one is not computed
    bool again = false;    // it was put back
    bool complete = false;
  };

  // generation.cpp
  void check() const;
  TextWriter& writer(size_t prompt);
  bool cancel_all();
  bool collect_active();
  void prefill();
  void decode();
  void retire();
  bool shift(GenerationStream& stream, bool& complete);
  template <class Body>
  bool attempt(Body&& body);
  bool put_back();
  bool can_restart(size_t prompt) const;

  // generation_prompts.cpp
  std::optional<size_t> take_prompt();
  void admit();
  bool shares_with_earlier(size_t place) const;
  void begin(Prefill& prefill);
  int64_t left_of(const Prefill& prefill) const;
  bool plan_prefill();
  void complete_prefills();
  void complete(const Prefill& prefill, std::span<const float> logits);

  Session& session_;
  std::span<const std::vector<int64_t>> prompts_;
  const GenerateOptions& options_;
  const GenerateCallback& callback_;
  Sampler sampler_;
  std::unique_ptr<DecodingStrategy> strategy_;
  std::optional<ContextShift> shift_;
  int64_t chunk_ = 0;
  GenerateOutput output_;
  std::vector<GenerationStream> streams_;
  std::vector<std::unique_ptr<TextWriter>> writers_;
  size_t next_ = 0;                    // prompt to be admitted, where there is no queue
  bool more_ = true;                   // there may be further prompts
  bool full_ = false;                  // nothing is admitted before a text has ended
  std::deque<size_t> waiting_;         // prompts of texts that were put back
  std::deque<Prefill> prefills_;       // admitted, first come first served
  std::vector<size_t> decoding_;       // prompts whose texts are being decoded
  std::vector<SequenceStep> company_;  // of the run: pieces of the first prompts of prefills_
  std::vector<GenerationStream*> active_;
  Clock::time_point start_;
};

}  // namespace quern::runtime
