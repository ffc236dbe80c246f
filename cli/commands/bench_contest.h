// Ways of decoding against one another: on the same prompts, in turns, in one run.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/loaded_model.h"
#include "runtime/generate/generate.h"

namespace quern::cli {

// --text and --prompts.
void declare_contest_options(OptionSet& options);

using BenchPrompts = std::vector<std::vector<int64_t>>;
// Pieces of --text of -p tokens, --prompts of them, spread over all of it. `what` is measured on them. Throws
// UsageError where there is no text or no tokenizer, Error{BadData} for a text shorter than a piece.
BenchPrompts bench_prompts(const Arguments& arguments, const LoadedModel& model, const char* what);

// One way of decoding, measured over all prompts.
struct Way {
  // Decodes these prompts.
  std::function<runtime::GenerateOutput(std::span<const std::vector<int64_t>> prompts)> decode;

  double seconds = 0;  // per repetition: the median
  int64_t tokens = 0;  // of a repetition
  std::vector<double> runs;
  BenchPrompts texts;  // of the first repetition, which does not count
  runtime::SpeculationStatistics statistics;

  double rate() const { return static_cast<double>(tokens) / seconds; }
  // Keys: tokens, seconds, tokens_per_second, runs_seconds.
  nlohmann::ordered_json to_json() const;
};

struct ContestOptions {
  int64_t repeat = 3;
  // All prompts in one call, timed as a whole; else one after the other, and only decoding is timed.
  bool together = false;
};

// The ways take turns, prompt by prompt, so that whatever else the machine does meets them alike.
void hold_contest(std::span<Way* const> ways, const BenchPrompts& prompts, const ContestOptions& options,
                  Console& console);

// Of all ids at the same place the share that are equal.
double agreement(const BenchPrompts& a, const BenchPrompts& b);

// Tokens that a prompt is gone on with: -n. Throws UsageError where nothing would be decoded.
int64_t bench_tokens(const Arguments& arguments);

}  // namespace quern::cli
