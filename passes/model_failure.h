// Errors on which a pass may go on without what it tried.
#pragma once

#include "ir/error.h"
#include "runtime/limit_exceeded.h"

namespace quern::passes {

// Inside the handler of `error`, which came from evaluating a part of a model. Throws it on where it tells
// nothing about the model: a lack of memory, a failing disk, a bug. A pass that took those for a property of
// the model would write other bytes on a machine with less memory, and hide bugs. A tensor beyond the limit
// that the pass itself has set is the model's.
inline void rethrow_unless_of_model(const Error& error) {
  if (dynamic_cast<const runtime::LimitExceeded*>(&error) != nullptr) return;
  switch (error.code()) {
    case ErrorCode::OutOfMemory:
    case ErrorCode::Internal:
    case ErrorCode::Io:
      throw;
    default:
      return;
  }
}

}  // namespace quern::passes
