// Runs a program: appends tokens to sequences and gives logits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/sequence.h"

namespace quern::cpu {
class ThreadTeam;
}

namespace quern::runtime {

struct SessionOptions {
  int threads = 0;  // 0: one for each physical core that this process may use
  // Of keys and values: F32, F16, I8 or I4 (runtime/cpu/cached_codes.h); empty: the model's own.
  std::optional<DType> cache_dtype = {};
  int64_t cache_memory = 0;  // bytes for keys and values of all sequences together; 0: no limit
  int64_t context = 0;       // longest sequence; 0: the model's own. More than the model's is an error.
  int64_t max_rows = 512;    // tokens computed at once; longer prompts go through in pieces of this size
  // Passes of fewer multiply-adds than this are computed by the calling thread alone: others would cost more
  // to wait for than they save.
  int64_t serial_work = 200'000;
  // Threads of another session (Session::team()) instead of its own; `threads` then says nothing. Sessions
  // that share them must not run at the same time.
  std::shared_ptr<cpu::ThreadTeam> team = {};
};

enum class LogitsFor : uint8_t { None, Last, All };

// Tokens to append to one sequence.
struct SequenceStep {
  Sequence* sequence = nullptr;
  std::span<const int64_t> tokens = {};
  // Empty: each token follows the one before. Otherwise a tree of alternatives, one entry per token: the
  // index in `tokens` of the token that this one follows, or -1 for the last token of the sequence so far. A
  // parent comes before its children. A token attends to the sequence and its own ancestors only. See
  // Sequence::keep().
  std::span<const int32_t> parents = {};
  LogitsFor logits = LogitsFor::Last;
  // If not empty: the tokens, by ascending index, whose logits are wanted, instead of `logits`.
  std::span<const int32_t> logit_tokens = {};
};

// A value as an observer sees it: of the rows computed together, valid during the call only.
struct TapView {
  int tap = 0;            // index into ProgramOptions::taps
  std::string_view name;  // of the value
  int64_t rows = 0;
  int64_t width = 0;  // features of a row
  const float* data = nullptr;
  int64_t stride = 0;  // floats from one row to the next
  // For each row the index of its step, and of its token within the step.
  std::span<const int32_t> row_step;
  std::span<const int32_t> row_token;
};

struct DecodeRunOptions {
  int entry = 0;  // which of ProgramOptions::entries
  // Called for every tap of the program as soon as its value is computed, on the calling thread.
  std::function<void(const TapView&)> observer = {};
  // For an entry that goes on from a value (ProgramOptions::starts): its rows, one for each token of all
  // steps, in their order.
  std::span<const float> rows = {};
  // The steps' tokens are the last ones of their sequences already: an entry that ends after some layers has
  // appended them, and this one computes the others. No trees.
  bool continues = false;
};

// Where the time went, summed over the runs since profiling was switched on; one entry per step of the plan.
struct StepProfile {
  std::string name;  // of the graph's node, the first one of a fused group
  std::string kind;  // "linear", "attention", "norm", ...
  int64_t calls = 0;
  int64_t rows = 0;
  int64_t nanoseconds = 0;
  int64_t bytes = 0;  // of weights, keys and values read
};

// Not thread-safe: a session and its sequences serve one thread at a time (the session's own threads aside).
// Sessions on the same program share its weights.
//
// A token's logits depend on the tokens before it in its sequence and on nothing else: neither on how they
// were cut into steps, nor on what other sequences the same call computes, nor on the number of threads.
// Equal inputs give equal bits.
class Session {
 public:
  // Throws Error{InvalidArgument} for options that make no sense, Error{OutOfMemory}.
  explicit Session(std::shared_ptr<const Program> program, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const Program& program() const;
  const SessionOptions& options() const;  // with the defaults filled in
  int threads() const;
  std::shared_ptr<cpu::ThreadTeam> team() const;

  Sequence new_sequence();

  // Appends the tokens of every step to its sequence and computes them together. A sequence may occur once; a
  // step without tokens does nothing. Throws Error{BadData} where a sequence would outgrow the context,
  // naming both lengths, or for a token id outside the vocabulary; Error{OutOfMemory} where the cache would
  // outgrow its memory; Error{InvalidArgument} for nonsense. All sequences are then as they were.
  void run(std::span<const SequenceStep> steps, const DecodeRunOptions& options = {});
  // The logits of one sequence's tokens, for the common case.
  std::span<const float> run(Sequence& sequence, std::span<const int64_t> tokens);

  // Computes an entry that goes on from rows and keeps nothing of them, heads for one: no sequence is needed.
  // Afterwards logits(0, i, output) has the outputs of row i. Throws Error{InvalidArgument} for rows that are
  // no whole number of Program::start_width(entry), or an entry that appends to sequences.
  void run_rows(int entry, std::span<const float> rows);

  // Of the last run: how many tokens of the step have logits, and those of the `i`-th of them, in the order
  // of the tokens. `output` is an index into Program::outputs(entry). Valid until the next run.
  int64_t logit_rows(size_t step) const;
  std::span<const float> logits(size_t step, int64_t i = 0, int output = 0) const;

  // Bytes that keys and values take now, and took at most.
  int64_t cache_bytes() const;
  int64_t peak_cache_bytes() const;

  void set_profiling(bool on);  // switching on clears what was counted
  std::vector<StepProfile> profile() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quern::runtime
