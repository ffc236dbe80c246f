#include "passes/quantize/channel_groups.h"

#include <numeric>
#include <set>

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::passes {
namespace {

bool is_linear(const Node* node) {
  return node != nullptr && node->is("Linear", kQuernDomain);
}

// Inputs of a norm that hold what its result is multiplied by and moved by; -1: none.
struct NormInputs {
  int scale = -1;
  int bias = -1;
};
NormInputs norm_inputs(const Node& node) {
  if (node.op() == "RMSNormalization" || node.op() == "SimplifiedLayerNormalization") return {1, -1};
  if (node.op() == "LayerNormalization") return {1, 2};
  // Their input 3 (4) is added before the norm.
  if (node.op() == "SkipSimplifiedLayerNormalization") return {2, -1};
  if (node.op() == "SkipLayerNormalization") return {2, 3};
  return {};
}

// The node that decides what a Linear's weight becomes, if it is this Linear's alone.
const Node* own_weight(const Node& linear) {
  const Value* weight = linear.input(1);
  const Node* node = weight->producer();
  if (node == nullptr || !node->is("QuantizeWeight", kQuernDomain) || weight->uses().size() != 1)
    return nullptr;
  return node;
}

class GroupFinder {
 public:
  GroupFinder(const Graph& graph, std::vector<std::pair<const Node*, std::string>>* why_not)
      : graph_(graph), why_not_(why_not) {}

  std::vector<ChannelGroup> run() {
    std::set<const Value*> seen;
    for (Node* node : graph_.nodes()) {
      if (is_linear(node) && seen.insert(node->input(0)).second) visit(node->input(0));
    }
    return std::move(groups_);
  }

 private:
  void visit(Value* input) {
    ChannelGroup group{.input = input};
    const std::string reason = fill(group);
    if (reason.empty()) {
      groups_.push_back(std::move(group));
    } else if (why_not_ != nullptr && input->producer() != nullptr) {
      why_not_->emplace_back(input->producer(), reason);
    }
  }

  // Why the channels can't be scaled; empty where they can.
  std::string fill(ChannelGroup& group) const {
    if (graph_.is_output(group.input)) return "its result is an output of the model";
    for (const Use& use : group.input->uses()) {
      if (!is_linear(use.node) || use.input != 0)
        return concat("its result goes to ", describe(*use.node), " too");
      if (own_weight(*use.node) == nullptr)
        return concat("the weight of ", describe(*use.node), " is not quantized, or not its alone");
      group.consumers.push_back(use.node);
    }
    Node* producer = group.input->producer();
    if (producer == nullptr) return "nothing computes it";
    const auto& shape = group.consumers.front()->input(1)->shape();
    const auto columns = as_constant(shape);
    if (!columns) return "its width is not constant";
    group.source_channel.resize(static_cast<size_t>(columns->back()));
    std::iota(group.source_channel.begin(), group.source_channel.end(), 0);
    group.source_channels = columns->back();
    if (norm_inputs(*producer).scale >= 0) return fill_norm(group, producer);
    if (producer->is("SelectRows", kQuernDomain)) {
      const Value* before = producer->input(0);
      if (before->uses().size() != 1 || graph_.is_output(before)) return "its input is used elsewhere too";
      producer = before->producer();
    }
    if (producer != nullptr && producer->is("CachedAttention", kQuernDomain))
      return fill_attention(group, *producer);
    if (producer != nullptr && producer->op() == "Mul" && producer->domain().empty())
      return fill_gate(group, *producer);
    return "its channels are not the result of a norm, of attention or of a gate";
  }

  static std::string fill_norm(ChannelGroup& group, Node* norm) {
    if (norm->output() != group.input) return "it is not the norm's result";
    const NormInputs at = norm_inputs(*norm);
    for (const int index : {at.scale, at.bias}) {
      const Value* value = index < 0 ? nullptr : norm->input(static_cast<size_t>(index));
      if (index == at.scale && value == nullptr) return "the norm has no scale";
      if (value != nullptr && value->tensor() == nullptr) return "the norm's scale or bias is not constant";
      if (value != nullptr && value->tensor()->size() != group.source_channels)
        return "the norm's scale is not one for each channel";
    }
    group.kind = ChannelGroup::Source::Norm;
    group.source = norm;
    return {};
  }

  // The Linear whose rows make `value`, where they make nothing else.
  std::string fill_rows(ChannelGroup& group, Value* value, const std::string& what) const {
    Node* linear = value == nullptr ? nullptr : value->producer();
    if (!is_linear(linear)) return what + " are not the result of a product alone";
    if (value->uses().size() != 1 || graph_.is_output(value)) return what + " are used elsewhere too";
    if (own_weight(*linear) == nullptr)
      return concat("the weight of ", describe(*linear), " is not quantized, or not its alone");
    if (linear->input(2) != nullptr && linear->input(2)->tensor() == nullptr)
      return "the bias is not constant";
    const auto shape = as_constant(linear->input(1)->shape());
    if (!shape || shape->front() != group.source_channels) return what + " have another width";
    group.kind = ChannelGroup::Source::Rows;
    group.source = linear;
    return {};
  }

  std::string fill_attention(ChannelGroup& group, const Node& attention) const {
    const int64_t heads = attention.int_attribute("heads", 0);
    const int64_t kv_heads = attention.int_attribute("kv_heads", heads);
    const int64_t size = attention.int_attribute("value_head_size", attention.int_attribute("head_size", 0));
    if (heads * size != group.source_channels) return "the heads have another width";
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t d = 0; d < size; ++d)
        group.source_channel[static_cast<size_t>(h * size + d)] = h / (heads / kv_heads) * size + d;
    }
    group.source_channels = kv_heads * size;
    return fill_rows(group, attention.input(2), "the values");
  }

  // act(gate) * up: the factor that is a plain product takes the scales.
  std::string fill_gate(ChannelGroup& group, const Node& product) const {
    std::string reason;
    for (const size_t side : {1, 0}) {
      reason = fill_rows(group, product.input(side), "the gated channels");
      if (reason.empty()) return {};
    }
    return reason;
  }

  const Graph& graph_;
  std::vector<std::pair<const Node*, std::string>>* why_not_;
  std::vector<ChannelGroup> groups_;
};

}  // namespace

std::vector<ChannelGroup> find_channel_groups(const Graph& graph,
                                              std::vector<std::pair<const Node*, std::string>>* why_not) {
  return GroupFinder(graph, why_not).run();
}

}  // namespace quern::passes
