// What the process tells its caller. Documented in docs/cli.md; stable.
#pragma once

#include "ir/error.h"

namespace quern::cli {

enum class ExitStatus : int {
  Ok = 0,
  ThresholdMissed = 1,  // `validate`: the candidate is worse than was allowed
  Usage = 2,            // the command line makes no sense
  BadInput = 3,         // a model, artifact, tokenizer or data file is broken
  Unsupported = 4,      // well-formed, but quern does not do it
  Io = 5,               // the system refused: files, disk space, memory
  Internal = 70,        // a bug in quern (EX_SOFTWARE of sysexits.h)
  Interrupted = 130,    // by Ctrl-C (128 + SIGINT, as shells report it)
  BrokenPipe = 141,     // whoever read the output went away (128 + SIGPIPE, as shells report it)
};

// The one place where errors of the library become statuses.
ExitStatus exit_status_of(ErrorCode code);

}  // namespace quern::cli
