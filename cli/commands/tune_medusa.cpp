// quern tune-medusa: which guesses of a model's Medusa heads to verify.
#include <nlohmann/json.hpp>

#include "calibrate/medusa_tuning.h"
#include "cli/commands/head_commands.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "formats/artifact/writer.h"
#include "formats/file/atomic_file.h"
#include "runtime/speculate/medusa_heads.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

void declare(OptionSet& options) {
  options
      .positional({.name = "MODEL", .help = "an artifact with Medusa heads (quern convert --medusa-heads)"})
      .text("text", "FILE", "text like that to be written: its pieces are prompts (required)")
      .text("output,o", "FILE.json", "where to write the tree, for --tree")
      .flag("store", "put the tree into the artifact, where --speculate medusa finds it")
      .text("tokenizer", "FILE", "a tokenizer.json; default: the artifact's own")
      .section("How")
      .integer("nodes", "N", {1, 256}, "guesses in the tree; default: as many as are expected to be fastest")
      .integer("prompts", "N", {1, 1e6}, "so many pieces of the text", 32)
      .integer("prompt,p", "N", {1, 65536}, "tokens of a prompt", 64)
      .integer("generate,n", "N", {8, 65536}, "tokens that the model writes behind each", 64)
      .integer("ranks", "N", {1, 64}, "choices of a head that are counted", 10);
  declare_session_options(options);
  options.example("quern tune-medusa model.quern --text sample.txt --store",
                  "finds the tree for this machine and text, and keeps it in the artifact");
}

std::vector<std::vector<int64_t>> pieces_of(const Arguments& arguments, const LoadedModel& model) {
  const std::optional<std::string> file = arguments.text("text");
  if (!file) throw UsageError("missing --text FILE: text like that to be written");
  if (!model.tokenizer) throw UsageError("--text needs a tokenizer; the model has none");
  const std::vector<int64_t> ids = model.tokenizer->encode(read_input(*file));
  const auto length = static_cast<size_t>(arguments.integer_of("prompt") + arguments.integer_of("generate"));
  if (ids.size() < length) {
    throw_error(ErrorCode::BadData, "'", *file, "' has ", ids.size(),
                " tokens, fewer than a prompt and what is "
                "written behind it, ",
                length);
  }
  const auto count = std::min(static_cast<size_t>(arguments.integer_of("prompts")), ids.size() / length);
  std::vector<std::vector<int64_t>> pieces;
  for (size_t i = 0; i < count; ++i) {
    const auto first = static_cast<int64_t>(count > 1 ? (ids.size() - length) * i / (count - 1) : 0);
    pieces.emplace_back(ids.begin() + first, ids.begin() + first + static_cast<int64_t>(length));
  }
  return pieces;
}

ordered_json to_json(const calibrate::MedusaChoice& choice, const calibrate::MedusaAccuracies& accuracies,
                     const calibrate::MedusaCosts& costs) {
  ordered_json runs = ordered_json::array();
  for (const auto& [rows, seconds] : costs.runs) runs.push_back({{"rows", rows}, {"seconds", seconds}});
  return {{"paths", choice.tree.paths()},
          {"expected_tokens_per_run", choice.expected_tokens},
          {"expected_speedup", choice.expected_speedup},
          {"accuracies", accuracies.model},
          {"positions", accuracies.model_positions},
          {"text_accuracies", accuracies.text},
          {"text_positions", accuracies.text_positions},
          {"run_seconds", runs},
          {"heads_seconds", costs.heads}};
}

std::string to_text(const calibrate::MedusaChoice& choice, const calibrate::MedusaAccuracies& accuracies,
                    const calibrate::MedusaCosts& costs) {
  Table table({{"head"},
               {"top-1", Align::Right},
               {"top-3", Align::Right},
               {"top-10", Align::Right},
               {"of the text, top-1", Align::Right}});
  const auto top = [](const std::vector<double>& rates, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < std::min(count, rates.size()); ++i) sum += rates[i];
    return format_percent(sum, 1);
  };
  for (size_t h = 0; h < accuracies.model.size(); ++h) {
    const std::vector<double>& rates = accuracies.model[h];
    table.add_row(
        {std::to_string(h), top(rates, 1), top(rates, 3), top(rates, 10), top(accuracies.text[h], 1)});
  }
  const auto nodes = static_cast<int64_t>(choice.tree.size());
  return table.to_string() +
         concat("\nthe best tree has ", nodes, " nodes: ", format_fixed(choice.expected_tokens, 2),
                " tokens per run expected\na run takes ", format_seconds(costs.run(1)), ", with the tree ",
                format_seconds(costs.run(1 + nodes)), ", the heads ", format_seconds(costs.heads), ": ",
                format_fixed(choice.expected_speedup, 2), " times plain decoding expected\n");
}

ExitStatus run(const Arguments& arguments, Console& console) {
  check_outputs(arguments);
  constexpr int64_t kMost = 64;
  const LoadedModel model =
      load_decoder(arguments.text_of("MODEL"), arguments.text("tokenizer"), console, "quern tune-medusa");
  if (runtime::count_medusa_heads(*model.file.graph) == 0) {
    throw_error(ErrorCode::InvalidArgument, "'", model.file.path.string(),
                "' has no Medusa heads; `quern convert --medusa-heads FILE` puts them in");
  }
  if (arguments.flag("store") && !model.file.is_artifact())
    throw UsageError("--store is for artifacts; '" + one_line(model.file.path.string()) + "' is none");
  const std::vector<std::vector<int64_t>> pieces = pieces_of(arguments, model);
  runtime::Session session(model.program, session_options(arguments));
  Progress progress(console, "measuring", static_cast<int64_t>(pieces.size()), "prompts");
  calibrate::MedusaMeasure measure;
  measure.prompt = arguments.integer_of("prompt");
  measure.generate = arguments.integer_of("generate");
  measure.ranks = arguments.integer_of("ranks");
  measure.progress = [&](int64_t done, int64_t) { progress.update(done); };
  const calibrate::MedusaAccuracies accuracies = calibrate::measure_medusa_heads(session, pieces, measure);
  progress.finish();
  const int64_t nodes = arguments.integer("nodes").value_or(0);
  const calibrate::MedusaCosts costs = calibrate::measure_medusa_costs(
      session, measure.prompt + measure.generate / 2, std::max(nodes, kMost) + 1);
  const calibrate::MedusaChoice choice = calibrate::choose_medusa_tree(accuracies, costs, nodes, kMost);
  const ordered_json json = to_json(choice, accuracies, costs);
  const std::string text = json.dump(1) + "\n";
  if (const auto output = arguments.text("output")) {
    AtomicFile file(*output);
    file.write(std::string_view(text));
    file.commit();
  }
  if (arguments.flag("store"))
    artifact::set_attachment(model.file.path, runtime::kMedusaTreeAttachment, text);
  if (console.json()) {
    console.print_json(json);
  } else {
    console.print(to_text(choice, accuracies, costs));
  }
  return ExitStatus::Ok;
}

}  // namespace

Command tune_medusa_command() {
  return {.name = "tune-medusa",
          .summary = "find the tree of guesses that suits a model's Medusa heads",
          .group = "Run",
          .details =
              "Measures how often each choice of each head is what the model says next, and what runs of "
              "more rows take here; of all trees of so many nodes the one with the most accepted tokens "
              "follows from the accuracies, and from the times how many nodes are worth it.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
