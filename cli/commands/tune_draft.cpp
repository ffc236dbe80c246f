// quern tune-draft: which layers guess best for a model.
#include <nlohmann/json.hpp>

#include "calibrate/dataset.h"
#include "calibrate/draft_search.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "cli/self_speculation.h"
#include "cli/table.h"
#include "formats/file/atomic_file.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

void declare(OptionSet& options) {
  options
      .positional({.name = "MODEL", .help = "a .quern artifact, an ONNX decoder, or a folder that holds one"})
      .text("data,d", "FILE", "text, or .jsonl rows, like what is to be written (required)")
      .text("tokenizer", "FILE", "a tokenizer.json for text; default: the model's own")
      .integer("positions", "N", {1, 1e9}, "places of the text that are guessed", 512)
      .integer("context", "N", {2, 1e9}, "tokens of a piece of text", 128)
      .number("row-cost", "SHARE", {0, 1},
              "what verifying one more guess costs, as a share of a run of the model", "0.1")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .section("Results")
      .text("output,o", "FILE.json", "write what was found, for --draft-layers")
      .example("quern tune-draft model.quern --data sample.txt -o draft.json", "searches")
      .example("quern generate model.quern -p \"Once\" --speculate self --draft-layers draft.json",
               "guesses with the layers found");
}

ordered_json to_json(const calibrate::DraftCandidate& candidate) {
  return {{"layers", candidate.draft.layers}, {"exit_head", candidate.draft.exit_head},
          {"agreement", candidate.agreement}, {"cost", candidate.cost},
          {"draft_length", candidate.length}, {"expected_speedup", candidate.speedup}};
}

ordered_json to_json(const calibrate::DraftSearchResult& result) {
  ordered_json object = to_json(result.candidates[result.best]);
  object["positions"] = result.positions;
  object["measured"] = result.measured;
  object["candidates"] = ordered_json::array();
  for (const auto& candidate : result.candidates) object["candidates"].push_back(to_json(candidate));
  return object;
}

void print(const calibrate::DraftSearchResult& result, Console& console) {
  Table table({{"layers"},
               {"agreement", Align::Right},
               {"cost", Align::Right},
               {"guesses", Align::Right},
               {"expected", Align::Right}});
  for (const calibrate::DraftCandidate& candidate : result.candidates) {
    table.add_row({to_text(candidate.draft), format_percent(candidate.agreement, 1),
                   format_percent(candidate.cost, 0), std::to_string(candidate.length),
                   format_fixed(candidate.speedup, 2) + "x"});
  }
  console.print(table.to_string());
  const calibrate::DraftCandidate& best = result.candidates[result.best];
  console.summary(concat("best: --speculate self --draft-layers ", to_text(best.draft), "\n"));
  if (best.speedup < 1) console.note("no draft is expected to pay; --speculate self would decode plainly");
}

ExitStatus run(const Arguments& arguments, Console& console) {
  check_outputs(arguments);
  const std::optional<std::string> path = arguments.text("data");
  if (!path) throw UsageError("missing --data FILE: text, or .jsonl rows");
  const LoadedModel model =
      load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console, "quern tune-draft");
  const calibrate::TokenData data =
      calibrate::TokenData::load(*path, {.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr});
  std::vector<int64_t> tokens;
  for (const calibrate::Document& document : data.documents)
    tokens.insert(tokens.end(), document.ids.begin(), document.ids.end());
  calibrate::DraftSearchOptions options{
      .context = arguments.integer_of("context"),
      .positions = arguments.integer_of("positions"),
      .row_cost = arguments.number_of("row-cost"),
      .session = {.threads = static_cast<int>(arguments.integer("threads").value_or(0))}};
  const calibrate::DraftSearchResult result = [&] {
    Progress progress(console, "measuring", 0, "drafts");
    options.progress = [&](int64_t done) { progress.update(done); };
    return calibrate::search_draft(*model.file.graph, tokens, options);
  }();
  const ordered_json object = to_json(result);
  if (const auto output = arguments.text("output")) write_file(*output, object.dump(1) + "\n");
  if (console.json()) {
    console.print_json(object);
  } else {
    print(result, console);
  }
  return ExitStatus::Ok;
}

}  // namespace

Command tune_draft_command() {
  return {.name = "tune-draft",
          .summary = "find the layers that guess best for the whole model",
          .group = "Run",
          .details =
              "Tries the first layers, exit heads where the model has them, and leaving out one layer after "
              "another, and counts how often their most likely token is the whole model's. The speed-up is "
              "what Leviathan's formula expects of that where decoding is bound by reading weights.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
