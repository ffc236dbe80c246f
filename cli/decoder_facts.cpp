// The traits of a decoder in canonical form (docs/canonical-graph.md).
#include <algorithm>
#include <cmath>
#include <set>

#include "cli/format.h"
#include "cli/model_facts.h"
#include "runtime/speculate/medusa_heads.h"

namespace quern::cli {

std::optional<DecoderFacts> decoder_facts(const Graph& graph);

namespace {

int64_t constant_dim(const Value* value, size_t axis) {
  if (value == nullptr || !value->has_shape() || value->shape().size() <= axis) return 0;
  return value->shape()[axis].as_constant().value_or(0);
}

// What insert-medusa-heads adds, medusa.0.0.linear or medusa_logits_0, says nothing of the model itself.
constexpr const char* kMedusa = "medusa";

class Describer {
 public:
  explicit Describer(const Graph& graph) : graph_(graph) {
    for (const Node* node : graph.nodes()) {
      if (!node->name().starts_with(kMedusa)) nodes_[node->op()].push_back(node);
    }
  }

  std::optional<DecoderFacts> describe() {
    if (nodes_["CachedAttention"].empty()) return {};
    describe_attention();
    describe_tables();
    describe_norms();
    describe_positions();
    describe_mlp();
    describe_experts();
    describe_biases();
    if (const int64_t count = runtime::count_medusa_heads(graph_); count > 0)
      trait(std::to_string(count) + " Medusa heads");
    name_family();
    return std::move(facts_);
  }

 private:
  void trait(std::string text) { facts_.traits.push_back(std::move(text)); }

  void describe_attention() {
    const std::vector<const Node*>& all = nodes_["CachedAttention"];
    const Node& node = *all.front();
    facts_.layers = static_cast<int64_t>(all.size());
    facts_.heads = node.int_attribute("heads", 0);
    facts_.kv_heads = node.int_attribute("kv_heads", facts_.heads);
    facts_.head_size = node.int_attribute("head_size", 0);
    if (facts_.kv_heads == facts_.heads) {
      trait("multi-head attention");
    } else if (facts_.kv_heads == 1) {
      trait("multi-query attention");
    } else {
      trait("grouped-query attention, " +
            std::to_string(facts_.heads / std::max<int64_t>(1, facts_.kv_heads)) + " heads to a key");
    }
    std::set<int64_t> windows;
    for (const Node* each : all) windows.insert(each->int_attribute("window", 0));
    windows.erase(0);
    if (!windows.empty()) trait("sliding window of " + std::to_string(*windows.begin()) + " tokens");
    if (const float cap = node.float_attribute("softcap", 0); cap > 0)
      trait("soft cap " + format_number(cap, 3));
    if (node.input(3) != nullptr) trait("attention sinks");
    if (node.input(4) != nullptr) trait("ALiBi positions");
  }

  void describe_tables() {
    for (const Node* node : nodes_["Embedding"]) {
      facts_.vocabulary = std::max(facts_.vocabulary, constant_dim(node->input(0), 0));
      facts_.hidden = std::max(facts_.hidden, constant_dim(node->input(0), 1));
    }
    const auto stated = graph_.metadata().find("context_length");
    if (stated != graph_.metadata().end()) facts_.context = std::atoll(stated->second.c_str());
    for (const Node* node : nodes_["Embedding"]) {
      const bool positions =
          node->input(1) != nullptr && node->input(1)->name().find("position") != std::string::npos;
      if (!positions) continue;
      learned_positions_ = true;
      const int64_t rows = constant_dim(node->input(0), 0);
      if (facts_.context == 0 || rows < facts_.context) facts_.context = rows;
    }
  }

  void describe_norms() {
    const bool rms =
        !nodes_["RMSNormalization"].empty() || !nodes_["SkipSimplifiedLayerNormalization"].empty();
    const bool layer = !nodes_["LayerNormalization"].empty() || !nodes_["SkipLayerNormalization"].empty();
    rms_ = rms && !layer;
    if (rms) trait("RMSNorm");
    if (layer) trait("LayerNorm");
  }

  void describe_positions() {
    const std::vector<const Node*>& rotations = nodes_["Rotary"];
    if (learned_positions_) trait("learned positions");
    if (rotations.empty()) return;
    const Node& node = *rotations.front();
    std::string text = "rotary positions, ";
    text += node.int_attribute("interleaved", 0) != 0 ? "interleaved" : "by halves";
    const int64_t pairs = constant_dim(node.input(2), 0);
    if (pairs > 0 && 2 * pairs < node.int_attribute("head_size", 0))
      text += ", " + std::to_string(2 * pairs) + " features";
    // inv_freq[i] = base^(-i / pairs) where nothing is scaled.
    const Tensor* frequencies = node.input(2) != nullptr ? node.input(2)->tensor() : nullptr;
    if (frequencies != nullptr && frequencies->size() > 1 && frequencies->at(0) == 1) {
      const double base = std::pow(frequencies->at(1), -static_cast<double>(frequencies->size()));
      text += ", base " + format_grouped(std::llround(base));
    }
    trait(text);
  }

  void describe_mlp() {
    for (const char* op : {"Swish", "Gelu", "Relu", "Tanh", "Sigmoid"}) {
      for (const Node* node : nodes_[op]) {
        const Node* before = node->input(0)->producer();
        if (before == nullptr || !before->is("Linear", "ai.quern")) continue;
        facts_.mlp_width = std::max(facts_.mlp_width, constant_dim(before->input(1), 0));
        for (const Use& use : node->output()->uses()) gated_ = gated_ || use.node->is("Mul");
        activation_ = activation_name(*node);
      }
    }
    if (activation_.empty()) return;
    trait(std::string(gated_ ? "gated" : "plain") + " MLP (" + activation_ + ")");
  }

  // Expert by expert, the nodes between its rows and the sum. Their weights lie idle for most tokens.
  void describe_experts() {
    for (const Node* node : nodes_["RouteExperts"]) {
      const Value* logits = node->output();
      if (logits->has_shape()) facts_.experts = logits->shape().back().as_constant().value_or(0);
      facts_.experts_per_token = node->int_attribute("experts_per_token", 0);
    }
    if (facts_.experts == 0) return;
    std::set<const Node*> inside;
    for (const Node* node : graph_.nodes()) {
      const bool follows = std::any_of(node->inputs().begin(), node->inputs().end(), [&](const Value* input) {
        return input && input->producer() && inside.contains(input->producer());
      });
      if (node->is("ExpertRows", "ai.quern") || (follows && !node->is("CombineExperts", "ai.quern")))
        inside.insert(node);
    }
    int64_t parameters = 0;
    for (const Node* node : inside) {
      if (!node->is("Linear", "ai.quern")) continue;
      parameters +=
          constant_dim(node->input(1), 0) * constant_dim(node->input(1), 1) + constant_dim(node->input(2), 0);
    }
    trait("mixture of " + std::to_string(facts_.experts) + " experts, " +
          std::to_string(facts_.experts_per_token) + " for each token");
    facts_.idle_parameters = parameters / facts_.experts * (facts_.experts - facts_.experts_per_token);
  }

  static std::string activation_name(const Node& node) {
    if (node.is("Swish")) return node.float_attribute("alpha", 1) == 1 ? "SiLU" : "quick GELU";
    if (node.is("Gelu"))
      return node.string_attribute("approximate", "none") == "tanh" ? "GELU, tanh" : "GELU";
    return node.op();
  }

  void describe_biases() {
    const auto& linears = nodes_["Linear"];
    biased_ = std::any_of(linears.begin(), linears.end(),
                          [](const Node* node) { return node->input(2) != nullptr; });
    if (biased_) trait("biases");
  }

  void name_family() {
    const bool rotary = !nodes_["Rotary"].empty();
    if (rms_ && rotary && gated_ && activation_ == "SiLU") {
      facts_.family = "Llama";
    } else if (!rms_ && learned_positions_ && !gated_ && activation_.starts_with("GELU")) {
      facts_.family = "GPT-2";
    } else if (rms_ && rotary && gated_ && activation_.starts_with("GELU")) {
      facts_.family = "Gemma";
    } else if (!rms_ && rotary && !gated_) {
      facts_.family = "GPT-NeoX";
    }
  }

  const Graph& graph_;
  std::map<std::string, std::vector<const Node*>> nodes_;
  DecoderFacts facts_;
  bool learned_positions_ = false;
  bool rms_ = false;
  bool gated_ = false;
  bool biased_ = false;
  std::string activation_;
};

}  // namespace

std::optional<DecoderFacts> decoder_facts(const Graph& graph) {
  return Describer(graph).describe();
}

}  // namespace quern::cli
