// --calibration-data and what belongs to it, the same in every command that has it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "calibrate/samples.h"
#include "calibrate/table.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "formats/tokenizer/tokenizer.h"

namespace quern::cli {

void declare_calibration_options(OptionSet& options);

// Throws UsageError where one of them would change nothing by what the other options ask for. For commands
// that have declare_recipe_options() and declare_target_options(), too.
void refuse_idle_calibration(const Arguments& arguments);

// Throws UsageError where a method is asked for that needs --calibration-data or --calibration, before
// anything is read. For commands as above.
void require_calibration(const Arguments& arguments);

// Token windows, or rows of arrays, of the file `path` for `graph`. `tokenizer`, of the model, may be null.
// Throws as TokenData::load, TensorData::load and draw_samples do; Error{BadData} for arrays and a decoder.
calibrate::Samples load_samples(const std::string& path, const calibrate::SampleOptions& options,
                                const Graph& graph, const tokenizer::Tokenizer* tokenizer);

// What --calibration-data names; nothing where it is not given. Throws as load_samples does.
std::optional<calibrate::Samples> calibration_samples(const Arguments& arguments, const Graph& graph,
                                                      const tokenizer::Tokenizer* tokenizer);

// The table that --calibration names, if it is of this model; nothing where it is
// not given. Throws as CalibrationTable::parse and check_model do.
std::optional<calibrate::CalibrationTable> calibration_table(const Arguments& arguments,
                                                             const ModelFile& model);

// The options of the pass calibrate-weights that say which data and what was drawn from it.
nlohmann::json calibration_record(const Arguments& arguments);

}  // namespace quern::cli
