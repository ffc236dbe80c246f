#include "cli/commands/train_encoder_exits.h"

#include "calibrate/dataset.h"
#include "calibrate/graph_model.h"
#include "calibrate/text_rows.h"
#include "calibrate/train/row_table.h"
#include "calibrate/windows.h"
#include "cli/files.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "passes/exits/trained_encoder_exits.h"

namespace quern::cli {
namespace {

using calibrate::train::RowTable;
using calibrate::train::Windows;

// Texts as the encoder reads them: rows as they stand, long texts in windows.
struct Texts {
  std::vector<std::vector<int64_t>> ids;
  std::vector<int64_t> labels;  // as many, or none
};

void add_windows(const calibrate::Document& document, int64_t window, Texts& texts) {
  const calibrate::WindowProtocol protocol{.context = window, .opening = document.opening};
  const auto all = document.ids.begin();
  for (const calibrate::Window& w :
       calibrate::cut_windows(static_cast<int64_t>(document.ids.size()), protocol)) {
    std::vector<int64_t>& ids = texts.ids.emplace_back(all, all + w.opening);
    ids.insert(ids.end(), all + w.begin, all + w.begin + w.length - w.opening);
  }
}

void read(const std::string& file, const Arguments& arguments, const LoadedModel& model, bool labels,
          int64_t vocabulary, Texts& texts) {
  const calibrate::TokenData data =
      calibrate::TokenData::load(file, {.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr});
  data.check_ids(vocabulary);
  if (labels && !data.labelled()) {
    throw_error(ErrorCode::BadData, "'", one_line(file),
                "' has no labels; give .jsonl rows with \"label\", or learn from the final layer "
                "(--loss final-layer)");
  }
  for (const calibrate::Document& document : data.documents) {
    if (document.ids.empty()) continue;
    if (!document.label) {
      add_windows(document, arguments.integer_of("window"), texts);
      continue;
    }
    texts.ids.push_back(document.ids);
    if (labels) texts.labels.push_back(*document.label);
  }
}

bool learns_labels(const Arguments& arguments) {
  const std::string loss = arguments.text_of("loss");
  if (loss == "text")
    throw UsageError(
        "--loss text is for decoders; exits of an encoder learn labels, or from the final-layer");
  return loss == "labels";
}

void check_labels(const Texts& texts, int64_t classes) {
  for (const int64_t label : texts.labels) {
    if (label < 0 || label >= classes) {
      throw_error(ErrorCode::BadData, "label ", label, " of the data; the model tells ", classes,
                  " classes apart, 0 to ", classes - 1);
    }
  }
}

Windows rows_from(size_t first, size_t last) {
  Windows rows;
  for (size_t row = first; row < last; ++row) rows.push_back({static_cast<int64_t>(row)});
  return rows;
}

// Every twentieth row is held back, unless there is a file of them.
void divide(size_t trained, size_t all, EncoderTask& task) {
  constexpr size_t kHeldOut = 20;
  if (trained < all) {
    task.training = rows_from(0, trained);
    task.validation = rows_from(trained, all);
    return;
  }
  for (size_t row = 0; row < all; ++row)
    (row % kHeldOut == kHeldOut - 1 ? task.validation : task.training).push_back({static_cast<int64_t>(row)});
  if (task.validation.empty()) {
    throw_error(ErrorCode::BadData, "the data has ", all, " texts, fewer than ", kHeldOut,
                ": too few to hold some back; give --validation FILE");
  }
}

}  // namespace

EncoderTask encoder_exits_task(const Arguments& arguments, const LoadedModel& model, Console& console) {
  const std::optional<std::string> layers = arguments.text("layers");
  if (!layers) throw UsageError("missing --layers LIST: after which layers exits stand, such as 2,4");
  const bool labels = learns_labels(arguments);
  passes::EncoderExitHeads exits = with_context("'" + model.file.path.string() + "'", [&] {
    return passes::encoder_exits_to_train(*model.file.graph,
                                          {.layers = parse_ids(*layers, "--layers"),
                                           .rank = arguments.integer_of("rank"),
                                           .from_final_layer = !labels,
                                           .seed = static_cast<uint64_t>(arguments.integer_of("seed"))});
  });
  const int64_t vocabulary = calibrate::table_rows(calibrate::TokenInputs(*exits.graph).ids());
  Texts texts;
  for (const std::string& file : arguments.list("data"))
    read(file, arguments, model, labels, vocabulary, texts);
  const size_t trained = texts.ids.size();
  if (const auto file = arguments.text("validation"))
    read(*file, arguments, model, labels, vocabulary, texts);
  EncoderTask task;
  divide(trained, texts.ids.size(), task);

  Progress progress(console, "reading", static_cast<int64_t>(texts.ids.size()), "texts");
  const calibrate::Texts all(texts.ids.begin(), texts.ids.end());
  std::vector<calibrate::TextRows> rows = calibrate::rows_of_texts(
      *exits.graph, all, exits.sources, [&](int64_t done) { progress.update(done); });
  progress.finish();
  check_labels(texts, rows.back().width);
  std::vector<RowTable::Rows> sources;
  for (calibrate::TextRows& each : rows) sources.push_back({each.width, std::move(each.values)});
  task.heads = std::move(exits.heads);
  task.source = std::make_unique<RowTable>(std::move(sources), std::move(texts.labels));
  return task;
}

}  // namespace quern::cli
