// quern train-heads: heads that guess, trained on the frozen model's own hidden states.
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "calibrate/dataset.h"
#include "calibrate/train/trainer.h"
#include "cli/commands/head_commands.h"
#include "cli/commands/train_encoder_exits.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "passes/exits/trained_encoder_exits.h"
#include "passes/exits/trained_exits.h"
#include "passes/heads/trained_medusa.h"
#include "runtime/decoder/hidden_states.h"

namespace quern::cli {
namespace {

using calibrate::train::Head;
using calibrate::train::HeadScore;
using calibrate::train::Windows;

void declare(OptionSet& options) {
  options
      .positional({.name = "KIND",
                   .help = "medusa: heads that guess the tokens behind the next one; exits: heads that "
                           "give the logits after some layers",
                   .choices = {"medusa", "exits"}})
      .positional(
          {.name = "MODEL",
           .help = "a .quern artifact, an ONNX model, or a folder that holds one: a decoder, or for exits "
                   "an encoder that classifies"})
      .texts("data", "FILE",
             "text to learn from: UTF-8, or .jsonl with {\"text\": ...} a line, of encoders also {\"ids\": "
             "...} and "
             "\"label\" (required)")
      .text("output,o", "FILE.safetensors", "where to write the heads (required)")
      .text("validation", "FILE", "text to measure on; default: every twentieth window of the data")
      .text("tokenizer", "FILE", "a tokenizer.json; default: the artifact's own, or the one beside the model")
      .section("Heads")
      .integer("heads", "K", {1, 16}, "how many", 3)
      .integer("blocks", "N", {1, 8}, "residual blocks of each", 1)
      .choice("projection", {"shared", "own"},
              "shared: the model's own vocabulary projection, frozen, which costs nothing; own: one for each "
              "head, learned",
              "shared")
      .text("from", "FILE.safetensors", "heads to begin with")
      .section("Exits")
      .text("layers", "LIST", "after which layers, such as 2,4,6")
      .integer("rank", "R", {0, 65536},
               "of the adapter before each one's norm, or an encoder's pooler; 0: none", 0)
      .choice("loss", {"text", "labels", "final-layer"},
              "what they learn: the text's tokens or (encoders) the data's labels, by cross-entropy, or the "
              "final "
              "layer's distributions, by KL divergence",
              "final-layer")
      .section("Training")
      .integer("epochs", "N", {1, 1000}, "times through the data", 2)
      .integer("window", "N", {16, 65536}, "tokens that the model sees together", 256)
      .integer("batch", "N", {1, 4096}, "windows of a step; of encoders: texts", 8)
      .number("rate", "R", {1e-7, 1}, "the highest learning rate; it falls by half a cosine", "0.001")
      .integer("warm-up", "N", {0, 1e6}, "steps in which the rate rises", 40)
      .number("weight-decay", "W", {0, 1}, "AdamW's", "0.01")
      .integer("validations", "N", {1, 1e6}, "how often it is measured and a checkpoint left", 10)
      .integer("seed", "N", {0, 9e15}, "of the order of windows", 0)
      .flag("resume", "go on from the checkpoint that an interrupted training left beside the output");
  declare_session_options(options);
  options
      .example("quern train-heads medusa model.quern --data books.txt -o heads.safetensors",
               "three heads that share the model's vocabulary projection")
      .example("quern train-heads exits model.quern --layers 2,4,6 --data books.txt -o exits.safetensors",
               "norms for exits behind three layers")
      .example(
          "quern train-heads exits classifier.onnx --layers 2,4 --data rows.jsonl --epochs 10 -o "
          "exits.safetensors",
          "a pooler and a classifier behind two layers of an encoder")
      .example("quern convert model.onnx -o medusa.quern --medusa-heads heads.safetensors", "puts them in");
}

std::vector<std::vector<int64_t>> documents_of(const std::vector<std::string>& files,
                                               const LoadedModel& model) {
  std::vector<std::vector<int64_t>> documents;
  for (const std::string& file : files) {
    const calibrate::DatasetOptions options{.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr,
                                            .add_special_tokens = false};
    for (calibrate::Document& document : calibrate::TokenData::load(file, options).documents)
      documents.push_back(std::move(document.ids));
  }
  return documents;
}

struct Data {
  Windows training, validation;
};

Data data_of(const Arguments& arguments, const LoadedModel& model) {
  constexpr size_t kHeldOut = 20;
  const std::vector<std::string> files = arguments.list("data");
  if (files.empty()) throw UsageError("missing --data FILE: text to learn from");
  int64_t window = arguments.integer_of("window");
  if (const int64_t context = model.program->traits().context; context > 0)
    window = std::min(window, context);
  Data data{.training = calibrate::train::cut(documents_of(files, model), window), .validation = {}};
  if (const auto file = arguments.text("validation")) {
    data.validation = calibrate::train::cut(documents_of({*file}, model), window);
    return data;
  }
  Windows all;
  all.swap(data.training);
  for (size_t i = 0; i < all.size(); ++i)
    (i % kHeldOut == kHeldOut - 1 ? data.validation : data.training).push_back(std::move(all[i]));
  if (data.validation.empty()) {
    throw_error(ErrorCode::BadData, "the data has ", all.size(), " windows of ", window,
                " tokens, fewer than ", kHeldOut, ": too few to hold some back; give --validation FILE");
  }
  return data;
}

calibrate::train::TrainOptions options_of(const Arguments& arguments, const std::string& output) {
  calibrate::train::TrainOptions options;
  options.epochs = arguments.integer_of("epochs");
  options.batch = arguments.integer_of("batch");
  options.rate = arguments.number_of("rate");
  options.warm_up = arguments.integer_of("warm-up");
  options.optimizer.weight_decay = arguments.number_of("weight-decay");
  options.validations = arguments.integer_of("validations");
  options.seed = static_cast<uint64_t>(arguments.integer_of("seed"));
  options.checkpoint = output + ".checkpoint";
  options.resume = arguments.flag("resume");
  options.settings =
      concat(arguments.text_of("KIND"), ", ", arguments.text_of("projection"), " projection, ",
             arguments.integer_of("blocks"), " blocks, exits ", arguments.text("layers").value_or("none"),
             " rank ", arguments.integer_of("rank"), " ", arguments.text_of("loss"), ",");
  return options;
}

std::string percents(const std::vector<HeadScore>& scores) {
  std::string text;
  for (const HeadScore& score : scores) text += (text.empty() ? "" : " ") + format_percent(score.top1(), 2);
  return text;
}

std::string losses(const std::vector<HeadScore>& scores) {
  std::string text;
  for (const HeadScore& score : scores)
    text += (text.empty() ? "" : " ") + format_fixed(score.mean_loss(), 3);
  return text;
}

nlohmann::ordered_json scores_json(const std::vector<HeadScore>& scores) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const HeadScore& score : scores)
    list.push_back({{"loss", score.mean_loss()}, {"top1", score.top1()}, {"tokens", score.rows}});
  return list;
}

std::vector<Head> heads_of(const Arguments& arguments, const Graph& graph) {
  passes::MedusaTraining options;
  options.heads = arguments.integer_of("heads");
  options.blocks = arguments.integer_of("blocks");
  options.own_projections = arguments.text_of("projection") == "own";
  const auto from = arguments.text("from");
  return passes::medusa_heads_to_train(
      graph, options, from ? passes::read_medusa_heads(*from) : std::vector<passes::MedusaHead>());
}

// Heads and the values whose rows they read.
struct Task {
  std::vector<Head> heads;
  std::vector<std::string> sources;
};

// Everything that training needs, of whatever model.
struct Prepared {
  std::unique_ptr<runtime::Session> session;  // of a decoder
  std::vector<Head> heads;
  std::unique_ptr<calibrate::train::RowSource> source;
  Data data;
};

Task exits_task(const Arguments& arguments, const Graph& graph) {
  const std::optional<std::string> layers = arguments.text("layers");
  if (!layers) throw UsageError("missing --layers LIST: after which layers exits stand, such as 2,4,6");
  passes::ExitHeads exits =
      passes::exit_heads_to_train(graph, {.layers = parse_ids(*layers, "--layers"),
                                          .rank = arguments.integer_of("rank"),
                                          .from_final_layer = arguments.text_of("loss") == "final-layer",
                                          .seed = static_cast<uint64_t>(arguments.integer_of("seed"))});
  return {std::move(exits.heads), std::move(exits.sources)};
}

std::string target_of(const Head& head, bool encoder) {
  if (head.teacher >= 0) return "the final layer";
  return encoder ? "the label" : concat("t + ", head.ahead);
}

Prepared prepare_decoder(const Arguments& arguments, const LoadedModel& model, bool exits) {
  if (arguments.text_of("loss") == "labels")
    throw UsageError(
        "--loss labels is for encoders; a decoder's exits learn the text, or from the final-layer");
  passes::check_tokenizer(model.file.folder, *model.file.graph);
  Prepared prepared{.session = {}, .heads = {}, .source = {}, .data = data_of(arguments, model)};
  const Graph& graph = *model.file.graph;
  Task task =
      exits ? exits_task(arguments, graph)
            : Task{heads_of(arguments, graph), {runtime::find_hidden_states(graph).after_final_norm->name()}};
  prepared.session = std::make_unique<runtime::Session>(
      runtime::Program::compile(graph, {.entries = {task.sources}}), session_options(arguments));
  std::vector<int> outputs(task.sources.size());
  std::iota(outputs.begin(), outputs.end(), 0);
  prepared.source = std::make_unique<calibrate::train::StateSource>(*prepared.session, 0, outputs);
  prepared.heads = std::move(task.heads);
  return prepared;
}

Prepared prepare(const Arguments& arguments, const LoadedModel& model, bool exits, Console& console) {
  if (model.is_decoder()) return prepare_decoder(arguments, model, exits);
  if (arguments.list("data").empty()) throw UsageError("missing --data FILE: text to learn from");
  EncoderTask task = encoder_exits_task(arguments, model, console);
  return {.session = {},
          .heads = std::move(task.heads),
          .source = std::move(task.source),
          .data = {std::move(task.training), std::move(task.validation)}};
}

void write(const std::string& output, bool exits, bool encoder, std::vector<Head>& heads) {
  if (encoder) {
    passes::write_encoder_exit_heads(output, heads);
  } else if (exits) {
    passes::write_exit_heads(output, heads);
  } else {
    passes::write_medusa_heads(output, passes::trained_medusa_heads(heads));
  }
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::string kind = arguments.text_of("KIND");
  const bool exits = kind == "exits";
  if (kind != "medusa" && !exits)
    throw UsageError("there are no heads called '" + one_line(kind) + "'; there are medusa and exits");
  if (!exits && arguments.given("layers")) throw UsageError("--layers is for exits");
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing -o FILE.safetensors");
  check_outputs(arguments);
  const auto start = std::chrono::steady_clock::now();
  const std::string path = arguments.text_of("MODEL");
  // Only exits have something to stand behind in other models.
  const LoadedModel model =
      exits ? load_model(path, arguments.text("tokenizer"), console)
            : load_decoder(path, arguments.text("tokenizer"), console, "quern train-heads");
  Prepared prepared = prepare(arguments, model, exits, console);
  std::vector<Head>& heads = prepared.heads;
  const Data& data = prepared.data;
  const calibrate::train::TrainOptions options = options_of(arguments, *output);
  Progress progress(console, "training", 0, "steps");
  nlohmann::ordered_json history = nlohmann::ordered_json::array();
  const std::vector<HeadScore> scores = calibrate::train::train_heads(
      heads, *prepared.source, data.training, data.validation, options,
      {.progress =
           [&](int64_t step, int64_t steps) {
             progress.set_total(steps);
             progress.update(step);
           },
       .validated =
           [&](const calibrate::train::Validation& v) {
             console.note(concat(
                 "step ", v.step,
                 v.step > 0 ? ": loss " + losses(v.train) + "; validation loss " : ": validation loss ",
                 losses(v.validation), ", top-1 ", percents(v.validation)));
             history.push_back({{"step", v.step}, {"validation", scores_json(v.validation)}});
           }});
  progress.finish();
  write(*output, exits, !model.is_decoder(), heads);
  std::error_code ignored;
  std::filesystem::remove(options.checkpoint, ignored);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (console.json()) {
    console.print_json({{"output", *output},
                        {"windows", data.training.size()},
                        {"validation_windows", data.validation.size()},
                        {"heads", scores_json(scores)},
                        {"history", history},
                        {"seconds", seconds}});
    return ExitStatus::Ok;
  }
  Table table({{"head"}, {"guesses token"}, {"validation loss", Align::Right}, {"top-1", Align::Right}});
  for (size_t h = 0; h < scores.size(); ++h) {
    table.add_row({exits ? heads[h].name : std::to_string(h), target_of(heads[h], !model.is_decoder()),
                   format_fixed(scores[h].mean_loss(), 3), format_percent(scores[h].top1(), 2)});
  }
  console.summary(table.to_string() +
                  concat("wrote ", one_line(*output), " in ", format_seconds(seconds), "\n"));
  return ExitStatus::Ok;
}

}  // namespace

Command train_heads_command() {
  return {.name = "train-heads",
          .summary = "train heads that guess, on a frozen model",
          .group = "Compile",
          .details =
              "The model's hidden states are computed by its own runtime; only the heads are learned, by "
              "cross-entropy against the text, the head k places ahead weighted 0.8^k, with AdamW. Exits of "
              "encoders begin as the model's own pooler and classifier. Of "
              "each head the state is kept in which its loss on the validation text was least.",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
