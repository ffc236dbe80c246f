// What a run throws for a tensor beyond RunLimits::max_tensor_bytes.
#pragma once

#include "ir/error.h"

namespace quern::runtime {

// An Error{OutOfMemory} that says nothing about the machine: only about the model and the limit that was set.
class LimitExceeded : public Error {
 public:
  explicit LimitExceeded(std::string message) : Error(ErrorCode::OutOfMemory, std::move(message)) {}
};

}  // namespace quern::runtime
