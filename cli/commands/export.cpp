// quern export: back to ONNX.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/model_file.h"
#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "ir/decoder_mark.h"
#include "ir/products.h"
#include "passes/compile.h"
#include "passes/interchange/interchange.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options.positional({.name = "MODEL", .help = "a model or artifact"})
      .text("output,o", "FILE.onnx", "where to write the ONNX model (required)")
      .choice("style", {"plain", "nbits", "qdq", "qoperator", "as-is"},
              "for other runtimes, without operators of quern: weights as floats, as MatMulNBits, behind "
              "DequantizeLinear, or as MatMulInteger on 8-bit activations; as-is: the graph as it is, with "
              "quern's "
              "own operators where it is an artifact's. Default: of an artifact, the first of plain, nbits "
              "and qdq "
              "that keeps its weights as they are; of a model, as-is")
      .choice("operators", {"fused", "onnx"},
              "attention and norms as com.microsoft's fused operators, or as ai.onnx alone; not with as-is",
              "fused")
      .choice("accuracy-level", {"0", "1", "4"},
              "of MatMulNBits: 0 leaves it to the runtime, 1 computes in fp32, 4 on 8-bit activations", "0")
      .number("external-over", "MB", {0, 2000},
              "put weights into FILE.onnx.data where they take more than this", "1000")
      .example("quern export model.quern -o model.onnx",
               "writes an artifact for ONNX Runtime, with its weights")
      .example("quern export model.quern -o model.onnx --style plain --operators onnx",
               "writes it for any runtime, with weights as floats")
      .example("quern export model.onnx -o copy.onnx --external-over 100",
               "rewrites a model, with weights of more than 100 MB beside it");
}

using passes::WeightStyle;

// By the names of --style.
const std::map<std::string, WeightStyle>& styles() {
  static const std::map<std::string, WeightStyle> kStyles = {{"plain", WeightStyle::Plain},
                                                             {"nbits", WeightStyle::NBits},
                                                             {"qdq", WeightStyle::Qdq},
                                                             {"qoperator", WeightStyle::QOperator}};
  return kStyles;
}

std::string style_of(const Arguments& arguments, const ModelFile& model) {
  if (const auto given = arguments.text("style")) return *given;
  if (!model.is_artifact()) return "as-is";
  const WeightStyle faithful = passes::faithful_style(*model.graph);
  const auto found = std::find_if(styles().begin(), styles().end(),
                                  [&](const auto& style) { return style.second == faithful; });
  return found->first;
}

// The graph in operators of other runtimes.
std::unique_ptr<Graph> for_others(const ModelFile& model, const std::string& style,
                                  const Arguments& arguments) {
  passes::InterchangeOptions options;
  options.style = styles().at(style);
  options.fused = arguments.text_of("operators") == "fused";
  options.accuracy_level = std::stoi(arguments.text_of("accuracy-level"));
  return with_context("exporting '" + model.path.string() + "'", [&] {
    if (!model.is_artifact()) {
      check_supported(model);
      passes::prepare_for_execution(*model.graph);
    }
    return passes::to_interchange(*model.graph, options);
  });
}

// What of the artifact the file does not say, and what to mind.
std::vector<std::string> notes_of(const Graph& graph, WeightStyle style, bool fused) {
  std::vector<std::string> notes;
  if (has_decoder_mark(graph) && fused) {
    notes.emplace_back(
        "sequences of a batch are to be padded on the right; --operators onnx takes padding on the left, "
        "too");
  }
  std::set<std::string> kinds;
  for (const Node* node : graph.nodes()) {
    if (is_product(*node) && node->has_attribute("activations"))
      kinds.insert(node->string_attribute("activations", ""));
  }
  const bool keeps_static = style == WeightStyle::Qdq || style == WeightStyle::QOperator;
  if (kinds.erase("static") > 0 && !keeps_static)
    notes.emplace_back("activations are not rounded to 8 bits; --style qdq keeps their calibrated scales");
  if (!kinds.empty() && style != WeightStyle::QOperator)
    notes.emplace_back("activations are not rounded to 8 bits; --style qoperator rounds them");
  if (const auto cache = graph.metadata().find("cache"); cache != graph.metadata().end())
    notes.push_back("keys and values are floats, not " + cache->second + " as in the artifact");
  return notes;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::optional<std::string> output = arguments.text("output");
  if (!output) throw UsageError("missing --output FILE.onnx");
  ModelFile model = open_model_file(arguments.text_of("MODEL"), console, true);
  const std::string style = style_of(arguments, model);
  std::vector<std::string> notes;
  if (arguments.given("accuracy-level") && style != "nbits" && style != "as-is")
    throw UsageError("--accuracy-level is MatMulNBits' own, of --style nbits; this is " + style);
  if (style == "as-is") {
    for (const char* option : {"operators", "accuracy-level"}) {
      if (arguments.given(option))
        throw UsageError(concat("--", option, " changes nothing in a graph that is written as it is"));
    }
  } else {
    const bool fused = arguments.text_of("operators") == "fused";
    if (model.is_artifact()) notes = notes_of(*model.graph, styles().at(style), fused);
    model.graph = for_others(model, style, arguments);
  }
  onnx_format::ExportOptions options;
  options.external_over = static_cast<int64_t>(arguments.number_of("external-over") * 1e6);
  onnx_format::export_model(*model.graph, *output, options);
  // Reading it back tells which files it has, and that it can be read.
  std::vector<std::string> files;
  const onnx_format::ImportedModel written = onnx_format::import_model(*output);
  for (const auto& file : written.files) files.push_back(file);
  const auto& opsets = written.graph->opsets();
  const auto opset = opsets.find(std::string(kOnnxDomain));
  const int version = opset != opsets.end() ? opset->second : 0;
  for (const std::string& note : notes) console.note(note);
  if (console.json()) {
    console.print_json({{"files", files}, {"style", style}, {"opset", version}, {"notes", notes}});
  } else {
    for (const std::string& file : files) {
      console.summary("wrote " + one_line(file) + ", " +
                      format_bytes(static_cast<double>(std::filesystem::file_size(file))) + ", " + style +
                      concat(", opset ", version) + "\n");
    }
  }
  return ExitStatus::Ok;
}

}  // namespace

Command export_command() {
  return {.name = "export",
          .summary = "write a model or artifact as ONNX",
          .group = "Compile",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
