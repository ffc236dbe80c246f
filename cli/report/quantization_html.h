// What codes make of weights and activations, as parts of a report.
#pragma once

#include <string>

#include "calibrate/table.h"
#include "ir/graph.h"

namespace quern::cli::report {

// Histograms of the weights that codes stand for worst (by SQNR), in steps of their scales, so that what is
// cut off and which codes are used is seen. Weights are matched by name; empty where none is quantized.
std::string weight_histograms(const Graph& original, const Graph& candidate);

// Histograms of the inputs of products with the limits of each rule for clipping, and the one that a static
// scale of `candidate` has chosen: of those whose outliers reach farthest.
std::string activation_histograms(const calibrate::CalibrationTable& table, const Graph& candidate);

// The figures of `quern sensitivity -o`, as a table of the weights that cost most. Throws Error{BadData}
// naming `path` where they are none.
std::string sensitivity_section(const std::string& json, const std::string& path);

}  // namespace quern::cli::report
