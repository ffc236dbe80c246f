// quern run: a graph on given inputs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands/commands.h"
#include "cli/encoder_exits.h"
#include "cli/exit_options.h"
#include "cli/format.h"
#include "cli/model_file.h"
#include "cli/table.h"
#include "formats/npy/npy.h"
#include "formats/npy/npz.h"
#include "ir/near_names.h"
#include "passes/canonicalize/to_decoder.h"
#include "runtime/interpreter.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options.positional({.name = "MODEL", .help = "an ONNX model or a .quern artifact, of any kind of graph"})
      .section("Inputs and outputs")
      .texts("input,i", "NAME=FILE.npy",
             "an input from a file; the name may be left out where there is one input")
      .text("inputs", "FILE.npz", "all inputs from one archive, by name")
      .text("output,o", "FOLDER", "write each output to FOLDER/NAME.npy; it is made if it is not there")
      .section("How")
      .flag("reference", "compute with the slow and obvious kernels that the fast ones are tested against")
      .integer("repeat", "N", {1, 1e6}, "run N times and say how long the fastest took", 1)
      .section("Encoders with early exits");
  declare_exit_options(options);
  options
      .example("quern run model.onnx --input x=x.npy --output out",
               "runs a graph and writes out/NAME.npy for each output")
      .example("quern run model.onnx", "names the inputs that it wants, with their types");
}

std::string input_list(const Graph& graph) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, graph.inputs().size()); ++i) {
    const Value& input = *graph.inputs()[i];
    text += (i > 0 ? ", " : "") + ("'" + input.name() + "' (" + to_string(input.type()) + ")");
  }
  if (graph.inputs().size() > kShown)
    text += " and " + std::to_string(graph.inputs().size() - kShown) + " more";
  return text.empty() ? "none" : text;
}

void add_input(runtime::NamedValues& inputs, const Graph& graph, const std::string& name, Tensor tensor) {
  std::vector<std::string> names;
  for (const Value* input : graph.inputs()) names.push_back(input->name());
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw UsageError("the model has no input '" + name + "'" + did_you_mean(name, names) + " (it takes " +
                     input_list(graph) + ")");
  }
  if (!inputs.emplace(name, std::move(tensor)).second)
    throw UsageError("input '" + name + "' is given twice");
}

runtime::NamedValues read_inputs(const Arguments& arguments, const Graph& graph) {
  runtime::NamedValues inputs;
  if (const auto archive_path = arguments.text("inputs")) {
    const npy::Archive archive = npy::Archive::open(*archive_path);
    for (const std::string& name : archive.names()) add_input(inputs, graph, name, archive.read(name));
  }
  for (const std::string& given : arguments.list("input")) {
    const size_t equals = given.find('=');
    const bool named = equals != std::string::npos;
    if (!named && graph.inputs().size() != 1) {
      throw UsageError("--input takes NAME=FILE.npy, not '" + given + "' (the model takes " +
                       input_list(graph) + ")");
    }
    const std::string name = named ? given.substr(0, equals) : graph.inputs().front()->name();
    add_input(inputs, graph, name, npy::read(named ? given.substr(equals + 1) : given));
  }
  for (const Value* input : graph.inputs()) {
    if (!inputs.contains(input->name())) {
      throw UsageError("input '" + input->name() + "' is missing; the model takes " + input_list(graph));
    }
  }
  return inputs;
}

// Names of values may hold anything; those of files may not.
std::string file_name_of(const std::string& output, std::set<std::string>& taken) {
  std::string name = output;
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || c == '/' || c == '\\' || c == ':') c = '_';
  }
  if (name.empty() || name.front() == '.') name.insert(0, "_");
  std::string unique = name + ".npy";
  for (int i = 2; !taken.insert(unique).second; ++i) unique = name + "_" + std::to_string(i) + ".npy";
  return unique;
}

struct Range {
  double least = INFINITY;
  double most = -INFINITY;
  double mean = 0;
  int64_t not_numbers = 0;
};

Range range_of(const Tensor& tensor) {
  Range range;
  int64_t counted = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double value = tensor.at(i);
    if (std::isnan(value)) {
      ++range.not_numbers;
      continue;
    }
    range.least = std::min(range.least, value);
    range.most = std::max(range.most, value);
    range.mean += value;
    ++counted;
  }
  if (counted > 0) range.mean /= static_cast<double>(counted);
  return range;
}

class Outputs {
 public:
  Outputs()
      : table_({{"output"},
                {"type"},
                {"least", Align::Right},
                {"mean", Align::Right},
                {"most", Align::Right},
                {"file"}}) {}

  void add(const std::string& name, const runtime::RuntimeValue& value, const std::filesystem::path& folder) {
    nlohmann::ordered_json entry = {{"name", name}, {"dtype", std::string(to_string(value.dtype()))}};
    if (value.is_sequence() || !value.present()) {
      table_.add_row(
          {one_line(name), to_string(value), "", "", "", folder.empty() ? "" : "(not written: no tensor)"});
      json_.push_back(entry);
      return;
    }
    const Tensor tensor = value.dense();
    entry["shape"] = tensor.shape();
    std::string file;
    if (!folder.empty()) {
      file = folder / file_name_of(name, taken_);
      npy::write(file, tensor);
      entry["file"] = file;
    }
    const bool numbers = tensor.dtype() != DType::String && tensor.size() > 0;
    const Range range = numbers ? range_of(tensor) : Range{};
    if (numbers) {
      entry["least"] = range.least;
      entry["mean"] = range.mean;
      entry["most"] = range.most;
      entry["nan"] = range.not_numbers;
    }
    table_.add_row({one_line(name), concat(to_string(tensor.dtype()), " ", to_string(tensor.shape())),
                    numbers ? format_number(range.least) : "", numbers ? format_number(range.mean) : "",
                    numbers ? format_number(range.most) : "", one_line(file)});
    json_.push_back(entry);
  }
  std::string text() const { return table_.to_string(); }
  const nlohmann::ordered_json& json() const { return json_; }

 private:
  Table table_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
  std::set<std::string> taken_;
};

struct Computed {
  std::vector<std::pair<std::string, runtime::RuntimeValue>> outputs;
  std::optional<runtime::ExitStatistics> exits;
  double seconds = INFINITY;  // of the fastest run
};

template <class Body>
void repeat(const Arguments& arguments, Computed& computed, Body&& body) {
  for (int64_t i = 0; i < arguments.integer_of("repeat"); ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    computed.seconds = std::min(
        computed.seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

Computed compute(const Arguments& arguments, const Graph& graph, const runtime::NamedValues& inputs,
                 const runtime::RunOptions& options) {
  const runtime::Interpreter interpreter(graph);
  Computed computed;
  runtime::NamedValues values;
  repeat(arguments, computed, [&] { values = interpreter.run(inputs, options); });
  for (const GraphOutput& output : graph.outputs())
    computed.outputs.emplace_back(output.name, values.at(output.name));
  return computed;
}

// Of each sequence the logits that it left with, and behind how many layers that was.
Computed compute_with_exits(const Arguments& arguments, const ModelFile& model, const runtime::ExitRule& rule,
                            const runtime::NamedValues& inputs, const runtime::RunOptions& options) {
  const std::unique_ptr<runtime::EarlyExitEncoder> encoder = make_encoder_exits(rule, model);
  Computed computed;
  std::span<const runtime::EarlyExitEncoder::Result> results;
  repeat(arguments, computed, [&] {
    encoder->reset_statistics();
    results = encoder->run(inputs, options);
  });
  const auto count = static_cast<int64_t>(results.size());
  const auto width = count > 0 ? static_cast<int64_t>(results[0].logits.size()) : 0;
  Tensor logits = Tensor::zeros(DType::F32, {count, width}), layers = Tensor::zeros(DType::I64, {count});
  for (int64_t i = 0; i < count; ++i) {
    const auto& result = results[static_cast<size_t>(i)];
    std::copy(result.logits.begin(), result.logits.end(), logits.mutable_data<float>().begin() + i * width);
    layers.set_int(i, result.layers);
  }
  computed.outputs = {{"logits", logits}, {"exit_layers", layers}};
  computed.exits = encoder->statistics();
  return computed;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const ModelFile model = open_model_file(arguments.text_of("MODEL"), console, true);
  if (passes::is_decoder(*model.graph)) {
    throw_error(
        ErrorCode::Unsupported, "'", one_line(model.path.string()),
        "' is a decoder that keeps its own cache; use quern generate, or quern export --style plain, nbits "
        "or qdq for a graph of standard operators");
  }
  check_supported(model);
  const runtime::NamedValues inputs = read_inputs(arguments, *model.graph);
  runtime::RunOptions options;
  if (arguments.flag("reference")) options.implementation = "reference";
  const std::optional<runtime::ExitRule> rule = exit_rule(arguments);
  const Computed computed = rule ? compute_with_exits(arguments, model, *rule, inputs, options)
                                 : compute(arguments, *model.graph, inputs, options);
  std::filesystem::path folder;
  if (const auto given = arguments.text("output")) {
    folder = *given;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      throw_error(ErrorCode::Io, "cannot make the folder '", folder.string(), "': ", error.message());
  }
  Outputs outputs;
  for (const auto& [name, value] : computed.outputs) outputs.add(name, value, folder);
  if (console.json()) {
    nlohmann::ordered_json object = {{"outputs", outputs.json()}, {"seconds", computed.seconds}};
    if (computed.exits) object["exits"] = exit_json(*computed.exits, "sequences");
    console.print_json(object);
  } else {
    console.print(outputs.text());
    if (computed.exits) console.print(exit_text(*computed.exits) + "\n");
    console.note("computed in " + format_seconds(computed.seconds));
  }
  return ExitStatus::Ok;
}

}  // namespace

Command run_command() {
  return {.name = "run",
          .summary = "run any graph on inputs from .npy files",
          .group = "Run",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
