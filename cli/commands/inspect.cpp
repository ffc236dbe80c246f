// quern inspect: what a model is, what quern made of it, and what it left as it was.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/model_facts.h"
#include "cli/model_file.h"
#include "cli/table.h"
#include "ir/products.h"
#include "passes/canonicalize/pipeline.h"
#include "passes/pass_manager.h"

namespace quern::cli {
namespace {

using nlohmann::ordered_json;

void declare(OptionSet& options) {
  options
      .positional({.name = "MODEL", .help = "an ONNX model, a .quern artifact, or a folder that holds one"})
      .flag("tensors", "a line per weight too: name, shape, how it is stored, bytes")
      .flag("graph", "print the graph itself, a node a line")
      .flag("raw", "as the file has it: recognise nothing")
      .flag("recipe", "print the recipe by which an artifact was made, as JSON")
      .flag("verify", "compare the checksums of an artifact's weights, which reads them all")
      .example("quern inspect model.onnx", "says which family it is, its dimensions, and where the bytes are")
      .example("quern inspect model.quern --tensors", "lists the weights of an artifact with their formats")
      .example("quern inspect model.onnx --json | jq .decoder.layers", "reads one figure in a script");
}

// How the inputs of products are rounded when the model runs: "int8-token", "static"; "none" where they are
// not.
std::set<std::string> activation_kinds(const Graph& graph) {
  std::set<std::string> kinds;
  for (const Node* node : graph.nodes()) {
    if (is_product(*node)) kinds.insert(node->string_attribute("activations", "none"));
  }
  return kinds;
}

// How keys and values are kept unless --kv says otherwise.
std::string cache_format(const Graph& graph) {
  const auto found = graph.metadata().find("cache");
  return found != graph.metadata().end() ? found->second : "f32";
}

struct TensorLine {
  std::string name;
  std::string shape;
  std::string format;
  int64_t bytes;
};

void add_tensors(const Graph& graph, std::vector<TensorLine>& lines) {
  for (const Value* value : graph.constants()) {
    lines.push_back({value->name(), to_string(value->shape()), format_of(*value->constant()),
                     byte_size(*value->constant())});
  }
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) add_tensors(*sub, lines);
  }
}

std::string origin(const ModelFile& model) {
  const auto& metadata = model.graph->metadata();
  std::string text = model.format;
  if (const auto opset = model.graph->opsets().find(""); opset != model.graph->opsets().end()) {
    text += ", opset " + std::to_string(opset->second);
  }
  const auto producer = metadata.find("onnx.producer_name");
  if (producer != metadata.end() && !producer->second.empty()) {
    text += ", made by " + one_line(producer->second);
    const auto version = metadata.find("onnx.producer_version");
    if (version != metadata.end() && !version->second.empty()) text += " " + one_line(version->second);
  }
  return text;
}

std::string heads_text(const DecoderFacts& decoder) {
  std::string text = std::to_string(decoder.heads);
  if (decoder.kv_heads != decoder.heads)
    text += ", " + std::to_string(decoder.kv_heads) + " of keys and values";
  return text + ", of " + std::to_string(decoder.head_size) + " features";
}

std::string tokenizer_text(const ModelFile& model) {
  if (!model.folder.tokenizer) return "none: ids alone";
  return format_grouped(model.folder.tokenizer->tokenizer.vocab_size()) + " tokens, " +
         one_line(model.folder.tokenizer->origin);
}

// "4, 2 for each token; 12,000 of 20,000 parameters active"
std::string experts_text(const DecoderFacts& decoder, int64_t parameters) {
  return std::to_string(decoder.experts) + ", " + std::to_string(decoder.experts_per_token) +
         " for each token; " + format_grouped(parameters - decoder.idle_parameters) + " of " +
         format_grouped(parameters) + " parameters active";
}

std::string decoder_text(const DecoderFacts& decoder, const ModelFile& model, int64_t parameters) {
  std::string traits;
  for (const std::string& trait : decoder.traits) traits += (traits.empty() ? "" : "; ") + trait;
  std::string text =
      styled(decoder.family.empty() ? "Decoder" : "Decoder of the " + decoder.family + " family", Style::Bold,
             Stream::Out) +
      "\n";
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"layers", std::to_string(decoder.layers)},
      {"width", std::to_string(decoder.hidden)},
      {"heads", heads_text(decoder)},
      {"feed-forward", std::to_string(decoder.mlp_width)},
      {"vocabulary", format_grouped(decoder.vocabulary)},
      {"context", decoder.context > 0 ? format_grouped(decoder.context) + " tokens" : "no limit stated"},
      {"keys, values", cache_format(*model.graph)},
      {"tokenizer", tokenizer_text(model)},
      {"traits", wrap(traits, 100, 16)}};
  if (decoder.experts > 0) pairs.insert(pairs.begin() + 4, {"experts", experts_text(decoder, parameters)});
  return text + format_pairs(pairs, 2);
}

std::string plain_text(const ModelFile& model) {
  constexpr size_t kShown = 6;
  Table table({{""}, {""}, {""}});
  const auto& inputs = model.graph->inputs();
  const auto& outputs = model.graph->outputs();
  for (size_t i = 0; i < std::min(kShown, inputs.size()); ++i) {
    table.add_row({"input", one_line(inputs[i]->name()), to_string(inputs[i]->type())});
  }
  if (inputs.size() > kShown)
    table.add_row({"", "... and " + std::to_string(inputs.size() - kShown) + " more inputs"});
  for (size_t i = 0; i < std::min(kShown, outputs.size()); ++i) {
    table.add_row({"output", one_line(outputs[i].name), to_string(outputs[i].value->type())});
  }
  if (outputs.size() > kShown)
    table.add_row({"", "... and " + std::to_string(outputs.size() - kShown) + " more outputs"});
  return styled("Plain graph", Style::Bold, Stream::Out) + "\n" + table.to_string(2);
}

std::string weights_text(const ModelFacts& facts, const Graph& graph) {
  std::string text = styled("Weights", Style::Bold, Stream::Out) + ": " +
                     format_count(static_cast<double>(facts.parameters)) + " parameters, " +
                     format_bytes(static_cast<double>(facts.weight_bytes)) + ", " +
                     format_fixed(facts.bits_per_weight(), 2) + " bits per weight\n";
  std::string kinds;
  for (const std::string& kind : activation_kinds(graph)) {
    if (kind != "none") kinds += (kinds.empty() ? "" : ", ") + kind;
  }
  if (!kinds.empty()) text += "Inputs of products: rounded to 8 bits, " + kinds + "\n";
  Table table({{"group"},
               {"tensors", Align::Right},
               {"parameters", Align::Right},
               {"bytes", Align::Right},
               {"share", Align::Right},
               {"stored as"}});
  for (const TensorGroup& group : facts.groups) {
    std::string formats;
    for (const auto& [format, bytes] : group.formats) formats += (formats.empty() ? "" : ", ") + format;
    const double share =
        static_cast<double>(group.bytes) / static_cast<double>(std::max<int64_t>(1, facts.weight_bytes));
    table.add_row({group.name, format_grouped(group.tensors), format_grouped(group.parameters),
                   format_grouped(group.bytes), format_percent(share, 1), formats});
  }
  return text + table.to_string(2);
}

std::string operators_text(const ModelFacts& facts) {
  std::map<std::string, int64_t> plain = facts.operators;
  if (facts.decoder)
    std::erase_if(plain, [](const auto& entry) { return is_canonical_operator(entry.first); });
  const std::string title = facts.decoder ? "Beside the canonical operators" : "Operators";
  const std::string list = plain.empty() ? "none" : operator_list(plain);
  return styled(title, Style::Bold, Stream::Out) + ": " + wrap(list, 96, 2) + "\n";
}

// Why the graph is no decoder, as the pass that would have made one says; each reason once.
std::vector<std::string> recognise(ModelFile& model) {
  passes::Recipe recipe{.name = "inspect", .steps = passes::canonicalization_steps()};
  recipe.steps.push_back({.pass = "tie-weights"});
  passes::PassContext context{.explain = true};
  std::vector<std::string> reasons;
  const passes::PipelineReport report = with_context("compiling '" + model.path.string() + "'", [&] {
    return passes::run_recipe(recipe, *model.graph, context);
  });
  for (const passes::PassRun& run : report.runs) {
    if (run.pass != "to-decoder" || run.report.changes > 0) continue;
    for (const passes::MatchFailure& failure : run.report.failures) {
      if (std::find(reasons.begin(), reasons.end(), failure.reason) == reasons.end())
        reasons.push_back(failure.reason);
    }
  }
  passes::apply_context_length(model.folder, *model.graph);
  return reasons;
}

std::string reasons_text(const std::vector<std::string>& reasons) {
  constexpr size_t kShown = 10;
  if (reasons.empty()) return "";
  std::string text = "\n" + styled("No decoder, because", Style::Bold, Stream::Out) + "\n";
  for (size_t i = 0; i < std::min(kShown, reasons.size()); ++i)
    text += "  " + wrap(one_line(reasons[i]), 100, 4) + "\n";
  if (reasons.size() > kShown)
    text += "  ... and " + std::to_string(reasons.size() - kShown) + " more reasons\n";
  return text;
}

std::string tensors_text(const std::vector<TensorLine>& lines) {
  Table table({{"tensor"}, {"shape"}, {"stored as"}, {"bytes", Align::Right}});
  for (const TensorLine& line : lines)
    table.add_row({one_line(line.name), line.shape, line.format, format_grouped(line.bytes)});
  return table.to_string();
}

ordered_json decoder_json(const DecoderFacts& decoder, int64_t parameters) {
  ordered_json experts;
  if (decoder.experts > 0) {
    experts = {{"count", decoder.experts},
               {"per_token", decoder.experts_per_token},
               {"active_parameters", parameters - decoder.idle_parameters}};
  }
  return {{"family", decoder.family},
          {"layers", decoder.layers},
          {"width", decoder.hidden},
          {"heads", decoder.heads},
          {"kv_heads", decoder.kv_heads},
          {"head_size", decoder.head_size},
          {"feed_forward", decoder.mlp_width},
          {"experts", experts},
          {"vocabulary", decoder.vocabulary},
          {"context", decoder.context > 0 ? ordered_json(decoder.context) : ordered_json()},
          {"traits", decoder.traits}};
}

ordered_json tokenizer_json(const ModelFile& model) {
  if (!model.folder.tokenizer) return nullptr;
  return {{"from", model.folder.tokenizer->origin},
          {"tokens", model.folder.tokenizer->tokenizer.vocab_size()}};
}

ordered_json to_json(const ModelFile& model, const ModelFacts& facts, const std::vector<std::string>& reasons,
                     const std::vector<TensorLine>* tensors) {
  ordered_json object = {
      {"path", model.path},
      {"format", model.format},
      {"size_bytes", model.size_bytes},
      {"recognised", facts.decoder ? "decoder" : "none"},
      {"reasons", reasons},
      {"decoder", facts.decoder ? decoder_json(*facts.decoder, facts.parameters) : ordered_json()},
      {"parameters", facts.parameters},
      {"weight_bytes", facts.weight_bytes},
      {"bits_per_weight", facts.bits_per_weight()},
      {"activations", activation_kinds(*model.graph)},
      {"kv", facts.decoder ? ordered_json(cache_format(*model.graph)) : ordered_json()},
      {"tokenizer", tokenizer_json(model)},
      {"groups", ordered_json::array()},
      {"operators", facts.operators}};
  for (const TensorGroup& group : facts.groups) {
    object["groups"].push_back({{"name", group.name},
                                {"tensors", group.tensors},
                                {"parameters", group.parameters},
                                {"bytes", group.bytes},
                                {"formats", group.formats}});
  }
  const auto add_value = [](ordered_json& list, const std::string& name, const ValueType& type) {
    list.push_back({{"name", name}, {"type", to_string(type)}});
  };
  object["inputs"] = ordered_json::array();
  for (const Value* input : model.graph->inputs()) add_value(object["inputs"], input->name(), input->type());
  object["outputs"] = ordered_json::array();
  for (const GraphOutput& output : model.graph->outputs())
    add_value(object["outputs"], output.name, output.value->type());
  if (tensors == nullptr) return object;
  object["tensors"] = ordered_json::array();
  for (const TensorLine& line : *tensors) {
    object["tensors"].push_back(
        {{"name", line.name}, {"shape", line.shape}, {"format", line.format}, {"bytes", line.bytes}});
  }
  return object;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  ModelFile model = open_model_file(arguments.text_of("MODEL"), console, arguments.flag("verify"));
  try {
    read_folder(model, {});
  } catch (const Error& error) {
    console.warn(std::string("passed over: ") + error.what());  // the graph is what matters here
  }
  if (arguments.flag("recipe")) {
    if (model.recipe.empty())
      throw UsageError("'" + one_line(model.path.string()) +
                       "' holds no recipe: quern convert puts one into artifacts");
    console.print(model.recipe);
    return ExitStatus::Ok;
  }
  std::vector<std::string> reasons;
  if (!model.is_artifact() && !arguments.flag("raw")) reasons = recognise(model);
  if (arguments.flag("graph")) {
    console.print(to_text(*model.graph));
    return ExitStatus::Ok;
  }
  const ModelFacts facts = facts_of(*model.graph);
  std::vector<TensorLine> tensors;
  if (arguments.flag("tensors")) add_tensors(*model.graph, tensors);
  if (console.json()) {
    console.print_json(to_json(model, facts, reasons, arguments.flag("tensors") ? &tensors : nullptr));
    return ExitStatus::Ok;
  }
  console.print(one_line(model.path.string()) + ": " + origin(model) + ", " +
                format_bytes(static_cast<double>(model.size_bytes)) + "\n\n");
  if (arguments.flag("verify") && model.is_artifact()) console.print("checksums: all match\n\n");
  console.print(facts.decoder ? decoder_text(*facts.decoder, model, facts.parameters) : plain_text(model));
  console.print("\n" + weights_text(facts, *model.graph) + "\n" + operators_text(facts) +
                reasons_text(reasons));
  if (arguments.flag("tensors")) console.print("\n" + tensors_text(tensors));
  return ExitStatus::Ok;
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .summary = "say what a model is, and where its bytes are",
          .group = "Look",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
