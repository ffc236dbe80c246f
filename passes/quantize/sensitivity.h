// What each weight's number format costs the whole model, and which formats to choose for a size.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "calibrate/samples.h"
#include "ir/graph.h"
#include "passes/quantize/weight_settings.h"

namespace quern::passes {

// One weight in one format, all others as they are.
struct FormatCost {
  std::string weights;             // "int4": WeightSettings::weights
  int64_t bytes = 0;               // packed, scales and padding included
  double kl = 0;                   // mean KL divergence from the original's distribution, nats
  double perplexity_increase = 0;  // a share
};

struct TensorSensitivity {
  std::string name;
  int64_t parameters = 0;
  std::vector<FormatCost> costs;  // by ascending bytes
};

struct SensitivityOptions {
  WeightSettings settings;  // all but `weights`
  std::vector<std::string> formats = {"int2", "int3", "int4", "int8"};
  int threads = 0;
  std::function<void(const std::string& what, double fraction)> progress = {};
};

// `decoder`: canonical, with plain constants for weights (passes::prepare_for_execution). Each weight is
// rounded alone in each format, by a method that needs no data of its own, and the model run on the samples:
// as many runs as there are weights times formats. Throws Error{Unsupported} for plain graphs,
// Error{InvalidArgument} for unknown formats.
std::vector<TensorSensitivity> measure_sensitivity(const Graph& decoder, const calibrate::Samples& samples,
                                                   const SensitivityOptions& options);

// For each tensor the index of its format, so that the sum of KL divergences is small and the bytes stay
// within `bytes`: from the smallest formats upwards, always the step that gains most per byte. Throws
// Error{InvalidArgument} where the smallest formats take more, saying how much they take.
std::vector<size_t> assign_formats(const std::vector<TensorSensitivity>& tensors, int64_t bytes);

// The option "overrides" of quantize-weights that says so.
nlohmann::json overrides_of(const std::vector<TensorSensitivity>& tensors, const std::vector<size_t>& choice);

}  // namespace quern::passes
