#include "cli/model_facts.h"

#include <algorithm>
#include <set>

#include "cli/format.h"
#include "ir/products.h"

namespace quern::cli {
namespace {

constexpr const char* kEmbedding = "embedding";
constexpr const char* kTied = "embedding and head (tied)";
constexpr const char* kHead = "head";
constexpr const char* kAttention = "attention";
constexpr const char* kMlp = "mlp";
constexpr const char* kMedusa = "Medusa heads";
constexpr const char* kNorms = "norms";
constexpr const char* kPositions = "positions";
constexpr const char* kWeights = "weights";
constexpr const char* kOther = "other";

// The constants that a weight is, or is made of by an expression.
void collect_constants(const Value* value, std::set<const Value*>& found) {
  if (value == nullptr) return;
  if (value->is_constant()) {
    found.insert(value);
    return;
  }
  if (value->producer() == nullptr) return;
  for (const Value* input : value->producer()->inputs()) collect_constants(input, found);
}

bool is_weight_expression(const Value* value) {
  if (value == nullptr) return false;
  if (value->is_constant()) return true;
  const Node* node = value->producer();
  return node != nullptr && !node->inputs().empty() &&
         std::all_of(node->inputs().begin(), node->inputs().end(),
                     [](const Value* input) { return input == nullptr || is_weight_expression(input); });
}

bool is_norm(const Node& node) {
  return node.op().ends_with("Normalization");
}

// Whether an attention reads the node's output, maybe after norms, rotations and additions.
bool feeds_attention(const Value& value, int depth = 6) {
  for (const Use& use : value.uses()) {
    const Node& node = *use.node;
    if (node.is("CachedAttention", "ai.quern") || node.is("Attention")) return true;
    const bool between = is_norm(node) || node.is("Rotary", "ai.quern") || node.is("Reshape") ||
                         node.is("Transpose") || node.is("Split") || node.is("Mul") || node.is("Slice");
    if (between && depth > 0) {
      for (const Value* output : node.outputs()) {
        if (output != nullptr && feeds_attention(*output, depth - 1)) return true;
      }
    }
  }
  return false;
}

bool comes_from_attention(const Value* value, int depth = 4) {
  const Node* node = value == nullptr ? nullptr : value->producer();
  if (node == nullptr || depth == 0) return false;
  if (node->is("CachedAttention", "ai.quern") || node->is("Attention")) return true;
  if (node->is("Reshape") || node->is("Transpose") || node->is("Mul") || node->is("SelectRows", "ai.quern")) {
    return comes_from_attention(node->input(0), depth - 1);
  }
  return false;
}

bool reaches_output(const Graph& graph, const Value& value, int depth = 4) {
  if (graph.is_output(&value)) return true;
  if (depth == 0) return false;
  for (const Use& use : value.uses()) {
    const Node& node = *use.node;
    const bool between = node.is("Mul") || node.is("Tanh") || node.is("Cast") || node.is("Div");
    if (between && reaches_output(graph, *node.output(), depth - 1)) return true;
  }
  return false;
}

const char* part_of_linear(const Graph& graph, const Node& node) {
  if (node.name().starts_with("medusa")) return kMedusa;
  const Value& output = *node.output();
  if (reaches_output(graph, output)) return kHead;
  if (feeds_attention(output) || comes_from_attention(node.input(0))) return kAttention;
  return kMlp;
}

// The part that each constant plays.
class Parts {
 public:
  explicit Parts(const Graph& graph) : graph_(graph) {
    for (const Node* node : graph.nodes()) assign(*node);
  }
  const char* of(const Value* constant) const {
    const auto found = parts_.find(constant);
    return found == parts_.end() ? kOther : found->second;
  }

 private:
  void assign(const Node& node) {
    if (node.is("Linear", "ai.quern")) {
      give(node, part_of_linear(graph_, node));
    } else if (node.is("Embedding", "ai.quern")) {
      give(node, is_position_table(node) ? kPositions : kEmbedding);
    } else if (is_norm(node)) {
      give(node, kNorms);
    } else if (node.is("Rotary", "ai.quern")) {
      give(node, kPositions);
    } else if (is_convolution(node) || node.is("MatMul") || node.is("Gemm") || node.is("Conv") ||
               node.is("ConvTranspose")) {
      give(node, kWeights);
    } else if (node.is("Gather") && node.input(0) != nullptr && is_large(node.input(0))) {
      give(node, kEmbedding);
    }
  }
  static bool is_large(const Value* value) {
    return value->has_shape() && value->shape().size() == 2 && is_weight_expression(value);
  }
  static bool is_position_table(const Node& node) {
    const Value* ids = node.input(1);
    return ids != nullptr && ids->name().find("position") != std::string::npos;
  }
  void give(const Node& node, const char* part) {
    std::set<const Value*> constants;
    for (const Value* input : node.inputs()) {
      if (is_weight_expression(input)) collect_constants(input, constants);
    }
    for (const Value* constant : constants) {
      const auto [found, added] = parts_.emplace(constant, part);
      // A projection that heads share is the model's.
      if (!added && found->second == std::string(kMedusa)) found->second = part;
      const std::set<std::string> both = {found->second, part};
      if (!added && both == std::set<std::string>{kEmbedding, kHead}) found->second = kTied;
    }
  }

  const Graph& graph_;
  std::map<const Value*, const char*> parts_;
};

bool is_parameter(const Constant& constant) {
  const auto* tensor = std::get_if<Tensor>(&constant);
  return tensor == nullptr || is_floating(tensor->dtype());
}

int64_t elements_of(const Constant& constant) {
  return element_count(as_constant(type_of(constant).shape.value()).value());
}

void count_operators(const Graph& graph, ModelFacts& facts) {
  for (const Node* node : graph.nodes()) {
    ++facts.nodes;
    ++facts.operators[node->domain().empty() ? node->op() : node->domain() + ":" + node->op()];
    for (const Graph* sub : node->subgraphs()) count_operators(*sub, facts);
  }
}

void add_constants(const Graph& graph, const Parts& parts, std::map<std::string, TensorGroup>& groups,
                   ModelFacts& facts) {
  for (const Value* value : graph.constants()) {
    const Constant& constant = *value->constant();
    const int64_t bytes = byte_size(constant);
    TensorGroup& group = groups[parts.of(value)];
    ++group.tensors;
    group.bytes += bytes;
    group.formats[format_of(constant)] += bytes;
    facts.weight_bytes += bytes;
    if (!is_parameter(constant)) continue;
    group.parameter_bytes += bytes;
    group.parameters += elements_of(constant);
    facts.parameters += elements_of(constant);
  }
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) add_constants(*sub, parts, groups, facts);
  }
}

}  // namespace

std::optional<DecoderFacts> decoder_facts(const Graph& graph);  // decoder_facts.cpp

std::string format_of(const Constant& constant) {
  if (const auto* tensor = std::get_if<Tensor>(&constant)) return std::string(to_string(tensor->dtype()));
  if (const auto* quantized = std::get_if<QuantizedTensor>(&constant)) return to_string(quantized->scheme);
  const PackedSpec& spec = std::get<PackedTensor>(constant).spec();
  return spec.is_quantized() ? to_string(spec.scheme) : std::string(to_string(spec.dtype()));
}

double ModelFacts::bits_per_weight() const {
  int64_t bytes = 0;
  for (const TensorGroup& group : groups) bytes += group.parameter_bytes;
  return parameters == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters);
}

std::string ModelFacts::formats() const {
  std::map<std::string, int64_t> bytes;
  for (const TensorGroup& group : groups) {
    for (const auto& [format, count] : group.formats) bytes[format] += count;
  }
  std::vector<std::pair<std::string, int64_t>> sorted(bytes.begin(), bytes.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [format, count] : sorted) {
    const double share = static_cast<double>(count) / static_cast<double>(std::max<int64_t>(1, weight_bytes));
    if (share < 0.0005) continue;
    text += (text.empty() ? "" : ", ") + format;
    if (share < 0.9995) text += " (" + format_percent(share, share < 0.1 ? 1 : 0) + ")";
  }
  return text.empty() ? "none" : text;
}

ModelFacts facts_of(const Graph& graph) {
  ModelFacts facts;
  count_operators(graph, facts);
  std::map<std::string, TensorGroup> groups;
  add_constants(graph, Parts(graph), groups, facts);
  for (auto& [name, group] : groups) {
    group.name = name;
    facts.groups.push_back(std::move(group));
  }
  std::stable_sort(facts.groups.begin(), facts.groups.end(),
                   [](const TensorGroup& a, const TensorGroup& b) { return a.bytes > b.bytes; });
  facts.decoder = decoder_facts(graph);
  return facts;
}

// So that lines break between operators, not within.
constexpr const char* kNoBreak = "\u00A0";

std::string operator_list(const std::map<std::string, int64_t>& operators) {
  std::vector<std::pair<std::string, int64_t>> sorted(operators.begin(), operators.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted) {
    text += (text.empty() ? "" : ", ") + name +
            (count > 1 ? kNoBreak + std::string("x") + kNoBreak + std::to_string(count) : "");
  }
  return text;
}

bool is_canonical_operator(const std::string& name) {
  static const std::set<std::string> kCanonical = {"ai.quern:Linear",
                                                   "ai.quern:Embedding",
                                                   "ai.quern:Rotary",
                                                   "ai.quern:CachedAttention",
                                                   "ai.quern:SelectRows",
                                                   "ai.quern:RouteExperts",
                                                   "ai.quern:ExpertRows",
                                                   "ai.quern:CombineExperts",
                                                   "RMSNormalization",
                                                   "LayerNormalization",
                                                   "com.microsoft:SkipLayerNormalization",
                                                   "com.microsoft:SkipSimplifiedLayerNormalization",
                                                   "Swish",
                                                   "Gelu",
                                                   "Mul",
                                                   "Add"};
  return kCanonical.contains(name);
}

}  // namespace quern::cli
