#include "runtime/decoder/program.h"

#include <algorithm>
#include <charconv>

#include "ir/schema.h"
#include "runtime/decoder/compiler.h"
#include "runtime/decoder/position_use.h"

namespace quern::runtime {
namespace {

CacheLayerShape cache_shape(const Node& node) {
  const cpu::AttentionShape shape = attention_shape(node);
  return {shape.kv_heads, shape.head_size, shape.value_size, shape.window};
}

// The caches of all layers, also those that no entry computes.
void find_layers(const Graph& graph, DecoderPlan& plan) {
  constexpr int64_t kMostLayers = 1 << 16;
  std::map<int64_t, const Node*> layers;
  for (const Node* node : graph.nodes()) {
    if (!node->is("CachedAttention", kQuernDomain)) continue;
    const int64_t layer = node->int_attribute("layer", -1);
    if (layer < 0 || layer >= kMostLayers)
      throw_error(ErrorCode::InvalidModel, describe(*node), ": layer ", layer);
    const auto [other, added] = layers.emplace(layer, node);
    // Entries that compute a layer from different rows share its cache, as long as it is the same one.
    if (!added && (!graph.metadata().contains(std::string(kLayersRepeat)) ||
                   !(cache_shape(*node) == cache_shape(*other->second)))) {
      throw_error(ErrorCode::InvalidModel, describe(*node), ": ", describe(*other->second), " keeps layer ",
                  layer, " already");
    }
  }
  for (const auto& [layer, node] : layers) {
    if (layer != static_cast<int64_t>(plan.layers.size())) {
      throw_error(ErrorCode::InvalidModel, describe(*node), ": layer ", layer, ", but no node keeps layer ",
                  plan.layers.size());
    }
    plan.layers.push_back({cache_shape(*node), attention_shape(*node)});
  }
}

void check_inputs(const Graph& graph, const std::vector<std::string>& starts) {
  for (const Value* input : graph.inputs()) {
    if (input->uses().empty() || input->name() == "input_ids" || input->name() == "positions") continue;
    if (std::find(starts.begin(), starts.end(), input->name()) != starts.end()) continue;
    throw_error(ErrorCode::Unsupported, "graph input '", input->name(),
                "' is none of input_ids and positions: this is not a canonical decoder");
  }
}

std::vector<std::vector<std::string>> entries_of(const Graph& graph, const ProgramOptions& options) {
  const auto has = [&](const std::string& name) {
    const auto& outputs = graph.outputs();
    return std::any_of(outputs.begin(), outputs.end(), [&](const GraphOutput& o) { return o.name == name; });
  };
  if (options.entries.empty()) {
    if (has("logits")) return {{"logits"}};
    if (graph.outputs().size() == 1) return {{graph.outputs().front().name}};
    throw_error(ErrorCode::InvalidModel, "a decoder needs an output named 'logits'");
  }
  for (const auto& outputs : options.entries) {
    // Taps alone are something to compute.
    if (outputs.empty() && options.taps.empty())
      throw_error(ErrorCode::InvalidArgument, "an entry without outputs computes nothing");
    for (const std::string& name : outputs) {
      if (!has(name) && graph.find_value(name) == nullptr)
        throw_error(ErrorCode::InvalidArgument, "the graph has no output or value '", name, "'");
    }
  }
  return options.entries;
}

const Value* start_of(const Graph& graph, const std::string& name) {
  if (name.empty()) return nullptr;
  const Value* value = graph.find_value(name);
  if (value == nullptr)
    throw_error(ErrorCode::InvalidArgument, "the graph has no value '", name, "' to go on from");
  return value;
}

int64_t stated_context(const Graph& graph) {
  const auto found = graph.metadata().find("context_length");
  if (found == graph.metadata().end()) return 0;
  const std::string& text = found->second;
  int64_t context = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), context);
  if (error != std::errc() || end != text.data() + text.size() || context < 0) {
    throw_error(ErrorCode::InvalidModel, "metadata context_length is '", text, "', a number was expected");
  }
  return context;
}

DType stated_cache(const Graph& graph) {
  const auto found = graph.metadata().find("cache");
  if (found == graph.metadata().end()) return DType::F32;
  for (const DType dtype : {DType::F32, DType::F16, DType::I8, DType::I4}) {
    if (found->second == to_string(dtype)) return dtype;
  }
  throw_error(ErrorCode::InvalidModel, "metadata cache is '", found->second,
              "', f32, f16, i8 or i4 was expected");
}

void fill_traits(const Graph& graph, DecoderPlan& plan) {
  DecoderTraits& traits = plan.traits;
  traits.cache_dtype = stated_cache(graph);
  traits.context = stated_context(graph);
  if (plan.position_limit > 0 && (traits.context == 0 || traits.context > plan.position_limit)) {
    traits.context = plan.position_limit;
  }
  const Entry& first = plan.entries.front();
  if (!first.outputs.empty()) traits.vocabulary = first.outputs.front().at.width;
  for (const PlanLayer& layer : plan.layers) traits.layers.push_back(layer.shape);
  for (const auto& step : plan.entries.front().steps) {
    if (step->kind != "linear") continue;
    Pass one;
    one.tokens = one.selected = 1;
    std::vector<ExpertRows> experts(plan.experts.size(), {nullptr, 1});
    one.experts = experts;
    int64_t bytes = step->bytes(one);
    if (step->space.is_expert()) {
      const ExpertSpace& expert = plan.experts[step->space.expert_index()];
      bytes = bytes * expert.per_token / expert.experts;
    }
    traits.streamed_bytes += bytes;
  }
  for (const PackedTensor& weight : plan.weights) traits.weight_bytes += weight.byte_size();
}

}  // namespace

Program::Program(std::unique_ptr<DecoderPlan> plan) : plan_(std::move(plan)) {}
Program::~Program() = default;

std::shared_ptr<const Program> Program::compile(const Graph& graph, const ProgramOptions& options) {
  check_inputs(graph, options.starts);
  auto plan = std::make_unique<DecoderPlan>();
  plan->kernels = {&cpu::row_kernels(), &cpu::attention_kernels()};
  plan->taps = options.taps;
  find_layers(graph, *plan);
  CompileContext context{.plan = *plan, .graph = graph};
  for (const std::string& name : options.taps) {
    const Value* value = graph.find_value(name);
    if (value == nullptr)
      throw_error(ErrorCode::InvalidArgument, "the graph has no value '", name, "' to observe");
    context.taps.push_back(value);
  }
  for (const std::vector<std::string>& outputs : entries_of(graph, options)) {
    const size_t index = plan->entries.size();
    Entry& entry = plan->entries.emplace_back();
    entry.output_names = outputs;
    const Value* start = index < options.starts.size() ? start_of(graph, options.starts[index]) : nullptr;
    EntryCompiler(context, entry, start).compile();
  }
  fill_traits(graph, *plan);
  find_position_use(graph, *plan);
  return std::shared_ptr<const Program>(new Program(std::move(plan)));
}

const DecoderTraits& Program::traits() const {
  return plan_->traits;
}

int Program::entries() const {
  return static_cast<int>(plan_->entries.size());
}

const std::vector<std::string>& Program::outputs(int entry) const {
  return plan_->entries.at(static_cast<size_t>(entry)).output_names;
}

int64_t Program::output_width(int entry, int output) const {
  return plan_->entries.at(static_cast<size_t>(entry)).outputs.at(static_cast<size_t>(output)).at.width;
}

int64_t Program::start_width(int entry) const {
  return plan_->entries.at(static_cast<size_t>(entry)).start.width;
}

const std::vector<std::string>& Program::taps() const {
  return plan_->taps;
}

std::string Program::to_text(int entry) const {
  const Entry& e = plan_->entries.at(static_cast<size_t>(entry));
  std::string text;
  const auto operands = [](const std::vector<Operand>& list) {
    std::string out;
    for (const Operand& at : list) {
      out += concat(out.empty() ? "" : " ", "b", at.buffer, at.offset != 0 ? concat("+", at.offset) : "", "[",
                    at.width, "]");
    }
    return out;
  };
  for (const auto& step : e.steps) {
    text += concat(step->barrier_before ? "| " : "  ", step->kind, " ", step->name, ": ",
                   operands(step->reads), " -> ", operands(step->writes));
    if (const std::string detail = step->detail(); !detail.empty()) text += concat("  (", detail, ")");
    text += '\n';
  }
  text += concat("arena: ", e.arena_width, " floats for each row\n");
  return text;
}

}  // namespace quern::runtime
