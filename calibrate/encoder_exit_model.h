// An encoder with early exits as a model to be scored.
#pragma once

#include <memory>

#include "calibrate/scored_model.h"
#include "runtime/layers/encoder_exit.h"
#include "runtime/layers/hash_exit.h"

namespace quern::calibrate {

// Texts of one length that it may expect() run as one batch, out of which those leave that are sure.
// `encoder` must outlive it. Throws Error{Unsupported} where token ids alone don't fill the graph's inputs.
std::unique_ptr<ScoredModel> make_encoder_exit_model(runtime::EarlyExitEncoder& encoder);
// Where tokens leave by themselves.
std::unique_ptr<ScoredModel> make_encoder_exit_model(runtime::HashExitEncoder& encoder);

}  // namespace quern::calibrate
