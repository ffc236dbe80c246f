// How `quern generate` chooses tokens: greedily, or by the options given, or as the model's makers suggest.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/options.h"
#include "formats/artifact/generation_config.h"
#include "runtime/generate/sampler.h"

namespace quern::cli {

struct Sampling {
  runtime::SamplingOptions options;
  bool as_suggested = false;  // --sample: values of the model's generation configuration, where not given
  bool suggested = false;     // greedy, but the model's makers suggest to sample
};

// --sample, --temperature, --top-k, --top-p, --min-p, --repetition-penalty, --seed.
void declare_sampling_options(OptionSet& options);
// Throws UsageError where they contradict one another, Error{BadData} where a suggested value is out of
// range.
Sampling read_sampling(const Arguments& arguments, const artifact::GenerationConfig& suggestions);

// "greedy", "sampled with temperature 0.7, top-p 0.9, seed 3": what is not as it would be without the option.
std::string sampling_text(const Sampling& sampling);
// Keys: sample, temperature, top_k, top_p, min_p, repetition_penalty, seed.
nlohmann::ordered_json sampling_json(const runtime::SamplingOptions& options);

}  // namespace quern::cli
