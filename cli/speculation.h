// Speculative decoding as the commands offer it.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/loaded_model.h"
#include "runtime/generate/generate.h"

namespace quern::cli {

// --speculate and what belongs to it.
void declare_speculation_options(OptionSet& options);

// What --speculate asks for, its models loaded: GenerateOptions::strategy. Empty where it is not given.
// Throws UsageError; Error{InvalidModel} for a draft whose tokenizer is another one.
using StrategyFactory =
    std::function<std::unique_ptr<runtime::DecodingStrategy>(runtime::Session&, runtime::Sampler&)>;
StrategyFactory speculation(const Arguments& arguments, const LoadedModel& model, Console& console);

// What a datastore remembers of its tokenizer.
std::string tokenizer_identity(const tokenizer::Tokenizer& tokenizer);

nlohmann::ordered_json speculation_json(const runtime::SpeculationStatistics& statistics);
std::string speculation_text(const runtime::SpeculationStatistics& statistics);

}  // namespace quern::cli
