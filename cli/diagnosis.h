// --layers and --find-culprit of `quern validate`: where the error is, and what it is down to.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "calibrate/dataset.h"
#include "cli/console.h"
#include "cli/loaded_model.h"
#include "cli/options.h"
#include "cli/validation.h"

namespace quern::cli {

void declare_diagnosis_options(OptionSet& options);

// Fills validation.layers and validation.culprits as asked for, on the first windows of the data. Throws
// UsageError where the models are no decoders, or no threshold says what is to be met.
void diagnose(const Arguments& arguments, const LoadedModel& reference, const LoadedModel& candidate,
              const calibrate::TokenData& data, Validation& validation, Console& console);

// Adds a warning where `data_digest` is that of the data which the candidate was calibrated with.
void warn_of_calibration_data(const LoadedModel& candidate, Validation& validation);

// Empty without a diagnosis.
std::string diagnosis_text(const Validation& validation);
std::string diagnosis_html(const Validation& validation);
// "layers": [{"name", "reader", "sqnr_db", "cosine"}], "culprits": {"met_already", "found", "names", "nodes",
// "kl", "perplexity_increase"}; keys that were not asked for are absent.
void add_diagnosis(nlohmann::ordered_json& object, const Validation& validation);

}  // namespace quern::cli
