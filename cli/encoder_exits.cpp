#include "cli/encoder_exits.h"

#include "ir/error.h"

namespace quern::cli {

std::unique_ptr<runtime::EarlyExitEncoder> make_encoder_exits(const runtime::ExitRule& rule,
                                                              const ModelFile& model) {
  return with_context("early exits of '" + model.path.string() + "'",
                      [&] { return std::make_unique<runtime::EarlyExitEncoder>(model.graph, rule); });
}

}  // namespace quern::cli
