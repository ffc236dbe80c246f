// --target-bits, --target-size, --max-ppl-increase of `quern convert`: formats chosen weight by weight.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/console.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "passes/quantize/sensitivity.h"

namespace quern::cli {

void declare_target_options(OptionSet& options);
// Whether one of them is given.
bool has_target(const Arguments& arguments);

// Chooses formats on the first half of `samples` and adds them to `weights`, the options of quantize-weights,
// as overrides in front of those that are there. With --max-ppl-increase the smallest size is found whose
// whole model, quantized by `weights` and `calibration`, keeps the limit on the second half. Says on the
// console what was chosen. Throws UsageError for options that contradict one another, and as
// measure_sensitivity() and assign_formats() do.
void choose_formats(const Arguments& arguments, const ModelFile& model, const calibrate::Samples& samples,
                    nlohmann::json& weights, const nlohmann::json& calibration, Console& console);

// "40MB", "1.5GB", "300KB", "5000000" bytes; powers of ten, and of two with Ki, Mi, Gi. Nothing where it is
// no size.
std::optional<int64_t> parse_size(const std::string& text);

}  // namespace quern::cli
