// What `quern train-heads exits` needs of an encoder.
#pragma once

#include <memory>
#include <vector>

#include "calibrate/train/trainer.h"
#include "cli/loaded_model.h"

namespace quern::cli {

// Heads, the rows they read, computed once, and which of those are held back.
struct EncoderTask {
  std::vector<calibrate::train::Head> heads;
  std::unique_ptr<calibrate::train::RowSource> source;
  calibrate::train::Windows training, validation;  // numbers of rows
};

// Of the options of train-heads. Runs the whole model on the data. Throws UsageError, or Error.
EncoderTask encoder_exits_task(const Arguments& arguments, const LoadedModel& model, Console& console);

}  // namespace quern::cli
