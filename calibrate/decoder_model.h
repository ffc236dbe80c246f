// A decoder with a cache as a model to be scored.
#pragma once

#include <memory>

#include "calibrate/scored_model.h"
#include "runtime/decoder/session.h"

namespace quern::calibrate {

// Scores by a sequence of `session`, which must outlive it and is used by nobody else meanwhile.
std::unique_ptr<ScoredModel> make_decoder_model(runtime::Session& session);

}  // namespace quern::calibrate
