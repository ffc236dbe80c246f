// A decoder with early exits as a model to be scored.
#pragma once

#include <memory>

#include "calibrate/scored_model.h"
#include "runtime/layers/early_exit.h"

namespace quern::calibrate {

// Token by token, so that what a token skipped is what the next ones see. `session` and `decoder` must
// outlive it.
std::unique_ptr<ScoredModel> make_exit_model(runtime::Session& session, runtime::EarlyExitDecoder& decoder);

}  // namespace quern::calibrate
