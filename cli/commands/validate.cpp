// quern validate: what a conversion cost, measured.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "calibrate/compare.h"
#include "calibrate/compare_tensors.h"
#include "calibrate/decoder_model.h"
#include "calibrate/encoder_exit_model.h"
#include "calibrate/exit_model.h"
#include "calibrate/features.h"
#include "calibrate/graph_model.h"
#include "cli/calibration_options.h"
#include "cli/commands/commands.h"
#include "cli/diagnosis.h"
#include "cli/encoder_exits.h"
#include "cli/exit_options.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/machine_name.h"
#include "cli/progress.h"
#include "cli/report/quantization_html.h"
#include "cli/shell_words.h"
#include "cli/validation.h"
#include "cli/version.h"
#include "formats/file/atomic_file.h"
#include "passes/quantize/kv_cache.h"
#include "runtime/generate/sampler.h"

namespace quern::cli {
namespace {

constexpr int64_t kDefaultContext = 256;

void declare(OptionSet& options) {
  options.positional({.name = "ORIGINAL", .help = "the model as it was: ONNX or an artifact"})
      .positional({.name = "CANDIDATE", .help = "what became of it: an artifact or ONNX"})
      .section("Data")
      .text("data,d", "FILE",
            "held-out data (required): text; .jsonl with {\"text\": ...} or {\"ids\": [...]} a line, for "
            "classifiers "
            "with \"label\"; for other graphs .npy or .npz arrays, or a folder of test_data_set_0/input_0.pb "
            "...")
      .text("tokenizer", "FILE", "a tokenizer for text; default: the models' own")
      .integer("context", "N", {1, 1e9},
               "score windows of N tokens; default: 256, or the models' context if that is less")
      .integer("stride", "N", {1, 1e9}, "begin a window every N tokens; default: no overlap")
      .integer("samples", "N", {1, 1e12}, "use the first N windows (or rows) alone; default: all")
      .flag("no-special", "leave out what the tokenizer adds around a text, such as <s>")
      .section("Thresholds (exit status 1 if one is missed)")
      .share("max-ppl-increase", "SHARE", "the candidate's perplexity may be this much higher: 1% or 0.01")
      .number("max-kl", "NATS", {0, 1e9}, "the mean KL divergence may be this high")
      .share("min-top1", "SHARE", "both must find the same token (or class) most likely this often")
      .share("max-accuracy-drop", "SHARE", "classifiers: the accuracy may fall by this, in points")
      .number("min-sqnr", "DB", {-1000, 1000},
              "other graphs, and encoders that predict nothing: no output may have a lower signal-to-noise "
              "ratio");
  declare_diagnosis_options(options);
  options.section("The candidate with early exits");
  declare_exit_options(options);
  options.section("Results")
      .text("report", "FILE.html", "write one self-contained page with plots")
      .text("calibration", "TABLE.json",
            "of quern calibrate: the report shows activations and where they are cut off")
      .text("sensitivity", "FILE.json", "of quern sensitivity -o, for the report")
      .flag("record", "keep the figures in the candidate, an artifact (attachment validation.json)")
      .flag("no-speed", "do not measure decoding speed")
      .section("How")
      .choice("kv", passes::KvCachePass::choices(),
              "how the candidate keeps keys and values; default: as converted, else fp32")
      .integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .example("quern validate model.onnx model.quern --data heldout.txt --max-ppl-increase 1%",
               "compares both on a text; status 1 if the perplexity rose by more than 1%")
      .example("quern validate a.onnx b.quern --data heldout.txt --report report.html --json > figures.json",
               "a page for people and figures for scripts")
      .example(
          "quern validate classifier.onnx classifier.quern --data labelled.jsonl --max-accuracy-drop 0.5%",
          "a classifier, on labelled rows");
}

// One side of the comparison, with what keeps it alive.
struct Side {
  LoadedModel model;
  std::unique_ptr<runtime::Session> session;
  std::unique_ptr<runtime::EarlyExitDecoder> exits;  // null: every token passes the whole model
  std::unique_ptr<runtime::EarlyExitEncoder> encoder_exits;
  std::unique_ptr<runtime::HashExitEncoder> hash_exits;
  std::unique_ptr<calibrate::ScoredModel> scored;
};

// `cache`: how the candidate is to keep keys and values; the original keeps them as they are.
Side open_side(const std::string& path, const Arguments& arguments, Console& console,
               std::optional<DType> cache = {}, const std::optional<runtime::ExitRule>& exits = {}) {
  Side side;
  side.model = load_model(path, arguments.text("tokenizer"), console);
  if (exits && side.model.is_decoder()) prepare_exits(*exits, side.model);
  if (exits && !side.model.is_decoder()) side.encoder_exits = make_encoder_exits(*exits, side.model.file);
  if (side.model.is_decoder()) {
    const runtime::SessionOptions options{
        .threads = static_cast<int>(arguments.integer("threads").value_or(0)),
        .cache_dtype = cache,
        .max_rows = 256};
    side.session = std::make_unique<runtime::Session>(side.model.program, options);
    if (exits) {
      side.exits = std::make_unique<runtime::EarlyExitDecoder>(*side.session, *side.model.file.graph, *exits);
    }
  }
  return side;
}

void prepare_scoring(Side& side) {
  if (side.exits) {
    side.scored = calibrate::make_exit_model(*side.session, *side.exits);
  } else if (side.session) {
    side.scored = calibrate::make_decoder_model(*side.session);
  } else if (side.encoder_exits) {
    side.scored = calibrate::make_encoder_exit_model(*side.encoder_exits);
  } else if (side.hash_exits) {
    side.scored = calibrate::make_encoder_exit_model(*side.hash_exits);
  } else {
    side.scored = with_context("preparing '" + side.model.file.path.string() + "'",
                               [&] { return calibrate::make_graph_model(side.model.file.graph); });
  }
}

// The one that reads the data's text. Two models with different ones are compared on the original's ids.
const tokenizer::Tokenizer* choose_tokenizer(const Side& reference, const Side& candidate,
                                             std::vector<std::string>& warnings) {
  const auto& a = reference.model.tokenizer;
  const auto& b = candidate.model.tokenizer;
  if (a && b && a->to_bytes() != b->to_bytes()) {
    warnings.push_back("the two models have different tokenizers; the original's is used for both");
  }
  return a ? &*a : b ? &*b : nullptr;
}

calibrate::WindowProtocol protocol_of(const Arguments& arguments, const Side& reference,
                                      const Side& candidate) {
  calibrate::WindowProtocol protocol{.context = arguments.integer("context").value_or(kDefaultContext),
                                     .stride = arguments.integer("stride").value_or(0)};
  if (arguments.given("context")) return protocol;
  for (const Side* side : {&reference, &candidate}) {
    const int64_t limit = side->scored->context();
    if (limit > 0) protocol.context = std::min(protocol.context, limit);
  }
  return protocol;
}

void compare_tokens(Validation& validation, const Arguments& arguments, Console& console, Side& reference,
                    Side& candidate) {
  calibrate::DatasetOptions data_options;
  data_options.tokenizer = choose_tokenizer(reference, candidate, validation.warnings);
  data_options.add_special_tokens = !arguments.flag("no-special");
  const calibrate::TokenData data = calibrate::TokenData::load(validation.data_path, data_options);
  validation.data_digest = data.digest;
  validation.data_tokens = data.tokens();

  prepare_scoring(reference);
  prepare_scoring(candidate);
  Progress progress(console, "scoring");
  calibrate::CompareOptions options;
  options.protocol = protocol_of(arguments, reference, candidate);
  options.max_windows = arguments.integer("samples").value_or(0);
  options.threads = static_cast<int>(arguments.integer("threads").value_or(0));
  options.progress = [&](int64_t done, int64_t total) {
    progress.set_total(total);
    progress.update(done);
  };
  validation.comparison = calibrate::compare(*reference.scored, *candidate.scored, data, options);
  const calibrate::Comparison& comparison = validation.comparison;
  if (comparison.too_short > 0) {
    validation.warnings.push_back(
        concat(comparison.too_short, " rows of fewer than 2 tokens had nothing to score"));
  }
  progress.finish();
  diagnose(arguments, reference.model, candidate.model, data, validation, console);
  const auto tokens = static_cast<double>(comparison.tokens_computed);
  validation.reference.prefill_rate = tokens / std::max(1e-9, comparison.reference.seconds);
  validation.candidate.prefill_rate = tokens / std::max(1e-9, comparison.candidate.seconds);
}

void compare_arrays(Validation& validation, const Arguments& arguments, Console& console,
                    const Side& reference, const Side& candidate) {
  const Graph& graph = *reference.model.file.graph;
  const calibrate::TensorData data = calibrate::TensorData::load(
      validation.data_path, graph.inputs(), {.samples = arguments.integer("samples").value_or(0)});
  validation.data_digest = data.digest();
  Progress progress(console, "running", data.samples(), "samples");
  validation.tensors =
      calibrate::compare_tensors(graph, *candidate.model.file.graph, data,
                                 {.progress = [&](int64_t done, int64_t) { progress.update(done); }});
}

// Encoders that predict nothing: their outputs, text by text.
void compare_features(Validation& validation, const Arguments& arguments, Console& console,
                      const Side& reference, const Side& candidate) {
  const calibrate::DatasetOptions data_options{
      .tokenizer = choose_tokenizer(reference, candidate, validation.warnings),
      .add_special_tokens = !arguments.flag("no-special")};
  const calibrate::TokenData data = calibrate::TokenData::load(validation.data_path, data_options);
  validation.data_digest = data.digest;
  validation.data_tokens = data.tokens();
  const Graph& graph = *reference.model.file.graph;
  const int64_t fixed = calibrate::TokenInputs(graph).fixed_length();
  const calibrate::WindowProtocol protocol{
      .context = arguments.integer("context").value_or(fixed > 0 ? fixed : kDefaultContext),
      .stride = arguments.integer("stride").value_or(0)};
  const calibrate::TensorSamples samples =
      calibrate::feature_samples(graph, data, protocol, arguments.integer("samples").value_or(0));
  Progress progress(console, "running", samples.count, "windows");
  validation.tensors =
      calibrate::compare_tensors(graph, *candidate.model.file.graph, samples,
                                 {.progress = [&](int64_t done, int64_t) { progress.update(done); }});
}

// Tokens per second of one sequence, greedily, within about a second.
double decode_rate(runtime::Session& session) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::duration<double> kLongest{1};
  constexpr int64_t kMost = 128;
  const runtime::DecoderTraits& traits = session.program().traits();
  const int64_t limit = traits.context > 0 ? std::min(kMost, traits.context - 2) : kMost;
  runtime::Sequence sequence = session.new_sequence();
  int64_t id = 0;
  const auto step = [&] {
    const std::span<const float> logits = session.run(sequence, std::span(&id, 1));
    id = runtime::argmax(logits);
  };
  step();  // touches the weights for the first time
  const Clock::time_point start = Clock::now();
  int64_t count = 0;
  while (count < limit && Clock::now() - start < kLongest) {
    step();
    ++count;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return count > 0 ? static_cast<double>(count) / seconds : 0;
}

ValidatedModel describe_model(const Side& side) {
  const ModelFile& file = side.model.file;
  return {.path = file.path.string(),
          .format = file.format,
          .digest = digest_of(file),
          .size_bytes = file.size_bytes,
          .facts = facts_of(*file.graph)};
}

// A threshold that does not apply to such models must not pass in silence.
void refuse_threshold(const std::string& option, bool applies, const char* why) {
  if (!applies) throw UsageError("--" + option + " does not apply: " + why);
}

void add_thresholds(Validation& v, const Arguments& arguments) {
  const calibrate::Comparison& comparison = v.comparison;
  if (const auto limit = arguments.number("max-ppl-increase")) {
    refuse_threshold("max-ppl-increase", v.is_language_model(), "these models do not predict tokens");
    v.thresholds.push_back({.option = "max-ppl-increase",
                            .what = "perplexity increase",
                            .limit = *limit,
                            .value = comparison.perplexity_increase.value,
                            .interval = comparison.perplexity_increase.interval});
  }
  if (const auto limit = arguments.number("max-kl")) {
    refuse_threshold("max-kl", !v.tensors, "these outputs are no distributions");
    v.thresholds.push_back({.option = "max-kl",
                            .what = "mean KL divergence",
                            .limit = *limit,
                            .value = comparison.agreement.kl_mean,
                            .is_share = false,
                            .interval = comparison.agreement.kl_interval});
  }
  if (const auto limit = arguments.number("min-top1")) {
    refuse_threshold("min-top1", !v.tensors || v.tensors->labelled, "arrays without labels have no classes");
    const calibrate::Figure& top1 = v.tensors ? v.tensors->agreement : comparison.agreement.top1;
    v.thresholds.push_back({.option = "min-top1",
                            .what = "top-1 agreement",
                            .limit = *limit,
                            .value = top1.value,
                            .at_least = true,
                            .interval = top1.interval});
  }
  if (const auto limit = arguments.number("max-accuracy-drop")) {
    refuse_threshold("max-accuracy-drop", v.has_accuracy(),
                     "there is no accuracy without a classifier and labels");
    v.thresholds.push_back({.option = "max-accuracy-drop",
                            .what = "loss of accuracy",
                            .limit = *limit,
                            .value = v.reference_accuracy().value - v.candidate_accuracy().value});
  }
  if (const auto limit = arguments.number("min-sqnr")) {
    refuse_threshold("min-sqnr", v.tensors.has_value(),
                     "it is for graphs that are given arrays, and encoders that predict nothing");
    for (const calibrate::OutputCloseness& output : v.tensors->outputs) {
      v.thresholds.push_back({.option = "min-sqnr",
                              .what = "SQNR of '" + output.name + "', dB,",
                              .limit = *limit,
                              .value = output.sqnr_db,
                              .at_least = true,
                              .is_share = false});
    }
  }
}

// The figures of another model's descendant mean something else than one expects.
void check_origin(Validation& v, const ModelFile& reference, const ModelFile& candidate) {
  if (candidate.sources.empty() || reference.is_artifact()) return;
  const artifact::SourceFile& source = candidate.sources.front();
  if (source.sha256 == artifact::describe_source(reference.path).sha256) return;
  v.warnings.push_back("the candidate was made from '" + source.name + "' (SHA-256 " +
                       source.sha256.substr(0, 12) + "...), which the original given is not");
}

std::string command_line(const Arguments& arguments) {
  std::vector<std::string> words = {"quern", "validate", arguments.text_of("ORIGINAL"),
                                    arguments.text_of("CANDIDATE")};
  for (const char* name : {"data", "tokenizer", "context", "stride", "samples", "max-ppl-increase", "max-kl",
                           "min-top1", "max-accuracy-drop", "min-sqnr", "kv", "threads"}) {
    if (!arguments.given(name)) continue;
    words.push_back(std::string("--") + name);
    words.push_back(arguments.text_of(name));
  }
  for (const char* flag : {"no-special", "layers", "find-culprit"}) {
    if (arguments.flag(flag)) words.emplace_back(std::string("--") + flag);
  }
  return shell_line(words);
}

// How the candidate came about, as far as it tells, and how these figures did.
std::vector<std::string> commands_of(const Arguments& arguments, const ModelFile& candidate) {
  std::vector<std::string> commands;
  if (!candidate.recipe.empty()) {
    commands.push_back(shell_line({"quern", "convert", arguments.text_of("ORIGINAL"), "--recipe",
                                   "recipe.json", "-o", arguments.text_of("CANDIDATE")}));
  }
  commands.push_back(command_line(arguments));
  return commands;
}

std::string quantization_html(const Arguments& arguments, const Side& reference, const Side& candidate) {
  const Graph& graph = *candidate.model.file.graph;
  std::string text = report::weight_histograms(*reference.model.file.graph, graph);
  if (const auto path = arguments.text("calibration"))
    text +=
        report::activation_histograms(calibrate::CalibrationTable::parse(read_input(*path), *path), graph);
  if (const auto path = arguments.text("sensitivity"))
    text += report::sensitivity_section(read_input(*path), *path);
  return text;
}

void record(const Validation& validation, const ModelFile& candidate) {
  artifact::set_attachment(candidate.path, artifact::kValidation, to_json(validation).dump(2) + "\n");
}

ExitStatus run(const Arguments& arguments, Console& console) {
  check_outputs(arguments);
  if (!arguments.given("data"))
    throw UsageError("missing --data FILE: held-out text, .jsonl rows, or arrays");
  for (const char* option : {"calibration", "sensitivity"}) {
    if (arguments.given(option) && !arguments.given("report"))
      throw UsageError(std::string("--") + option + " is for the page of --report FILE.html");
  }
  Side reference = open_side(arguments.text_of("ORIGINAL"), arguments, console);
  const bool by_hash = exits_by_hash(arguments);
  Side candidate = open_side(arguments.text_of("CANDIDATE"), arguments, console, cache_dtype(arguments),
                             by_hash ? std::nullopt : exit_rule(arguments));
  if (by_hash) candidate.hash_exits = make_hash_exits(arguments, candidate.model);
  if (arguments.flag("record") && !candidate.model.file.is_artifact()) {
    throw UsageError("--record is for artifacts; '" + candidate.model.file.path.string() + "' is none");
  }
  Validation validation;
  validation.data_path = arguments.text_of("data");
  if ((candidate.encoder_exits || candidate.hash_exits) && calibrate::is_tensor_file(validation.data_path))
    throw UsageError("--exit is measured on text or token ids (.jsonl rows), not on arrays");
  validation.reference = describe_model(reference);
  validation.candidate = describe_model(candidate);
  validation.version = version();
  validation.machine = machine_name(reference.session ? reference.session->threads() : 0);
  validation.commands = commands_of(arguments, candidate.model.file);
  validation.recipe = candidate.model.file.recipe;
  check_origin(validation, reference.model.file, candidate.model.file);
  if (calibrate::is_tensor_file(validation.data_path)) {
    compare_arrays(validation, arguments, console, reference, candidate);
  } else if (!reference.session && calibrate::gives_features(*reference.model.file.graph)) {
    compare_features(validation, arguments, console, reference, candidate);
  } else {
    compare_tokens(validation, arguments, console, reference, candidate);
  }
  warn_of_calibration_data(candidate.model, validation);
  if (!arguments.flag("no-speed")) {
    if (reference.session) validation.reference.decode_rate = decode_rate(*reference.session);
    if (candidate.session) validation.candidate.decode_rate = decode_rate(*candidate.session);
  }
  add_thresholds(validation, arguments);
  for (const std::string& warning : validation.warnings) console.warn(warning);
  if (arguments.flag("record")) record(validation, candidate.model.file);
  if (const auto path = arguments.text("report")) {
    validation.quantization_html = quantization_html(arguments, reference, candidate);
    write_file(*path, to_html(validation));
  }
  if (console.json()) {
    nlohmann::ordered_json object = to_json(validation);
    if (candidate.exits) object["exits"] = exit_json(candidate.exits->statistics());
    if (candidate.encoder_exits)
      object["exits"] = exit_json(candidate.encoder_exits->statistics(), "sequences");
    if (candidate.hash_exits) {
      object["exits"] = exit_json(candidate.hash_exits->statistics());
      object["exits"]["rows_computed"] = candidate.hash_exits->rows_computed();
      object["exits"]["rows_of_all_layers"] = candidate.hash_exits->rows_of_all();
    }
    console.print_json(object);
  } else {
    console.print(to_text(validation));
    if (candidate.exits) console.print(exit_text(candidate.exits->statistics()) + "\n");
    if (candidate.encoder_exits) console.print(exit_text(candidate.encoder_exits->statistics()) + "\n");
    if (candidate.hash_exits) console.print(exit_text(candidate.hash_exits->statistics()) + "\n");
    if (const auto path = arguments.text("report"))
      console.summary("\nThe report is " + one_line(*path) + "\n");
  }
  return validation.passed() ? ExitStatus::Ok : ExitStatus::ThresholdMissed;
}

}  // namespace

Command validate_command() {
  return {.name = "validate",
          .summary = "compare a model with its original on held-out data",
          .group = "Measure",
          .details =
              "Both models score the same data, token by token. Perplexity is that of non-overlapping "
              "windows, each scored "
              "on its own, the next token of every position counted; --context and --stride change the "
              "windows. The KL "
              "divergence is that of the candidate's next-token distribution from the original's, over all "
              "logits, in "
              "nats. Intervals are 95%, by bootstrap over windows.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
