#include "cli/exit_status.h"

namespace quern::cli {

ExitStatus exit_status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return ExitStatus::Usage;
    case ErrorCode::InvalidModel:
    case ErrorCode::BadData:
    case ErrorCode::Corrupt:
      return ExitStatus::BadInput;
    case ErrorCode::Unsupported:
      return ExitStatus::Unsupported;
    case ErrorCode::Io:
    case ErrorCode::OutOfMemory:
      return ExitStatus::Io;
    case ErrorCode::Internal:
      break;
  }
  return ExitStatus::Internal;
}

}  // namespace quern::cli
