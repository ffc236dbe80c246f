#include "cli/context_shift.h"

#include <nlohmann/json.hpp>

#include "cli/format.h"
#include "ir/error.h"
#include "runtime/decoder/remove_tokens.h"
#include "runtime/generate/context_shift.h"

namespace quern::cli {
namespace {

bool moves(const runtime::ContextShift& shift) {
  return shift.way() == runtime::ShiftWay::Move;
}

}  // namespace

void declare_context_shift_options(OptionSet& options) {
  options
      .flag("context-shift",
            "where a text outgrows the context, go on: its first tokens (--keep) stay, and the older half of "
            "the others is forgotten; default: the text ends there, and longer prompts are refused")
      .integer("keep", "N", {0, 1e9}, "of --context-shift: so many first tokens stay", 4);
}

std::optional<int64_t> shift_keep(const Arguments& arguments) {
  if (!arguments.flag("context-shift")) {
    if (arguments.given("keep")) throw UsageError("--keep says nothing without --context-shift");
    return {};
  }
  if (arguments.given("speculate") && arguments.text_of("draft-rule") == "rejection") {
    throw UsageError(
        "--context-shift and --draft-rule rejection exclude one another: the draft's random numbers would "
        "begin "
        "anew with each shift; --draft-rule shared goes with it");
  }
  return arguments.integer_of("keep");
}

nlohmann::ordered_json shift_json(runtime::Session& session, int64_t keep, int64_t shifts) {
  const runtime::ContextShift shift(session, keep);
  nlohmann::ordered_json object = {{"keep", keep},
                                   {"shifts", shifts},
                                   {"dropped_tokens", shift.dropped()},
                                   {"way", moves(shift) ? "move" : "recompute"}};
  object["reason"] =
      moves(shift) ? nlohmann::ordered_json() : nlohmann::ordered_json(runtime::fixed_positions(session));
  return object;
}

std::string shift_text(runtime::Session& session, int64_t keep, int64_t shifts) {
  const runtime::ContextShift shift(session, keep);
  if (shifts == 0)
    return concat("the text fits the context of ", session.options().context, " tokens: no shift");
  return concat(
      shifts == 1 ? "1 context shift" : concat(format_grouped(shifts), " context shifts"), ": ", keep,
      " first tokens stayed, ", format_grouped(shift.dropped()), " were forgotten each time",
      moves(shift) ? "" : concat(", the others computed anew (", runtime::fixed_positions(session), ")"));
}

}  // namespace quern::cli
