#include "passes/interchange/operators.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "ir/products.h"
#include "passes/interchange/batch_attention.h"
#include "passes/interchange/upgrade.h"
#include "passes/interchange/weights.h"
#include "passes/pass.h"

namespace quern::passes {
namespace {

constexpr int kGeluVersion = 20;
constexpr int kFusedVersion = 23;  // of RMSNormalization and Attention

// Since when ai.onnx has the operators that no lower version has under another form. Those that are lowered
// are left out.
int first_version(const std::string& op) {
  static const std::map<std::string, int> kFirst = {{"LayerNormalization", 17},
                                                    {"GroupNormalization", 21},
                                                    {"Trilu", 14},
                                                    {"HardSwish", 14},
                                                    {"Mish", 18},
                                                    {"BitwiseAnd", 18},
                                                    {"CenterCropPad", 18},
                                                    {"Col2Im", 18},
                                                    {"DeformConv", 19},
                                                    {"AffineGrid", 20},
                                                    {"StringConcat", 20},
                                                    {"RotaryEmbedding", 23},
                                                    {"TensorScatter", 24},
                                                    {"GridSample", 16},
                                                    {"STFT", 17},
                                                    {"DFT", 17},
                                                    {"Optional", 15},
                                                    {"Bernoulli", 15},
                                                    {"BlackmanWindow", 17},
                                                    {"ReduceMax", 13}};
  const auto found = kFirst.find(op);
  return found != kFirst.end() ? found->second : 1;
}

// Whether quern itself wrote the node, in its newest version; of a source of that version all nodes count as
// the source's.
bool is_own(const Node& node, int source) {
  return node.opset() == newest_opset(kOnnxDomain) && source != node.opset();
}

// Nodes of the source keep at least their version: types and attributes came to operators with versions, too.
int lowest_of(const Node& node, const InterchangeOptions& options, int source) {
  if (node.domain() == kMicrosoftDomain) {
    if (options.fused) return 1;
    if (node.is("SkipLayerNormalization", kMicrosoftDomain)) return first_version("LayerNormalization");
    return node.is("SkipSimplifiedLayerNormalization", kMicrosoftDomain) ? kLowestEmittedVersion : 1;
  }
  if (node.domain() == kQuernDomain) return kLowestEmittedVersion;
  if (!node.domain().empty()) return 1;
  return is_own(node, source) ? std::max(kLowestEmittedVersion, first_version(node.op())) : node.opset();
}

int lowest_of(const Graph& graph, const InterchangeOptions& options, int source) {
  int lowest = 1;
  for (const Value* value : graph.constants()) lowest = std::max(lowest, needed_opset(*value, options));
  for (const Node* node : graph.nodes()) {
    for (const Graph* sub : node->subgraphs()) lowest = std::max(lowest, lowest_of(*sub, options, source));
    lowest = std::max(lowest, lowest_of(*node, options, source));
  }
  return lowest;
}

class Lowering {
 public:
  Lowering(Graph& graph, const InterchangeOptions& options, int opset)
      : graph_(graph), options_(options), batch_(graph), emit_(batch_, opset), weights_(emit_, options) {}

  void run() {
    for (const Node* node : graph_.nodes()) {
      with_context(describe(*node), [&] {
        if (upgrade(emit_, *node)) return;
        if (Value* made = lowered(*node)) batch_.replace(node->output(), made);
      });
    }
    batch_.commit();
  }

 private:
  Value* lowered(const Node& node) {
    if (node.is("Linear", kQuernDomain)) return weights_.linear(node);
    if (is_convolution(node)) return weights_.convolution(node);
    if (node.is("Embedding", kQuernDomain)) return weights_.embedding(node);
    if (node.is("RMSNormalization")) return rms_norm(node.input(0), node.input(1), node);
    if (node.is("SkipLayerNormalization", kMicrosoftDomain)) return skip_norm(node, false);
    if (node.is("SkipSimplifiedLayerNormalization", kMicrosoftDomain)) return skip_norm(node, true);
    if (node.is("Swish")) return swish(node);
    if (node.is("Gelu")) return gelu(node);
    if (node.is("Attention")) return attention(node);
    if (node.domain() == kQuernDomain) {
      throw_error(ErrorCode::Unsupported, describe(node), " has no form in other runtimes' operators");
    }
    return nullptr;
  }

  static float epsilon_of(const Node& node) { return node.float_attribute("epsilon", 1e-5F); }

  Value* rms_norm(Value* x, Value* weight, const Node& node) {
    const int64_t axis = node.int_attribute("axis", -1);
    if (axis != -1 && (!x->has_shape() || axis + 1 != static_cast<int64_t>(x->shape().size()))) {
      if (emit_.opset() >= kFusedVersion) return nullptr;
      throw_error(ErrorCode::Unsupported, describe(node), " normalizes more than the last axis");
    }
    if (options_.fused) {
      return emit_.add("SimplifiedLayerNormalization", {x, weight},
                       {{"axis", int64_t{-1}}, {"epsilon", epsilon_of(node)}, {"stash_type", int64_t{1}}});
    }
    // Squares of 16-bit floats overflow them.
    const DType dtype = x->dtype();
    if (dtype != DType::F32) x = emit_.cast(x, DType::F32);
    Value* square = emit_.reduce("ReduceMean", emit_.add("Mul", {x, x}));
    Value* root = emit_.add("Sqrt", {emit_.add("Add", {square, emit_.scalar(epsilon_of(node))})});
    Value* normal = emit_.add("Div", {x, root});
    if (dtype != DType::F32) normal = emit_.cast(normal, dtype);
    return emit_.add("Mul", {normal, weight});
  }

  Value* skip_norm(const Node& node, bool simplified) {
    if (options_.fused) return nullptr;
    Value* skip = node.input(1);
    if (Value* bias = node.input(simplified ? 3 : 4)) skip = emit_.add("Add", {skip, bias});
    Value* sum = emit_.add("Add", {node.input(0), skip});
    if (node.output(1) || node.output(2))
      throw_error(ErrorCode::Unsupported, describe(node),
                  " gives its mean away, which arithmetic has no name for");
    if (node.output(3)) batch_.replace(node.output(3), sum);
    const float epsilon = node.float_attribute("epsilon", 1e-12F);
    if (!simplified) {
      return emit_.add("LayerNormalization", {sum, node.input(2), node.input(3)},
                       {{"axis", int64_t{-1}}, {"epsilon", epsilon}});
    }
    return rms_norm(sum, node.input(2), node);
  }

  Value* swish(const Node& node) {
    Value* x = node.input(0);
    const float alpha = node.float_attribute("alpha", 1);
    Value* slope = alpha == 1 ? x : emit_.add("Mul", {x, emit_.scalar(alpha, x->dtype())});
    return emit_.add("Mul", {x, emit_.add("Sigmoid", {slope})});
  }

  Value* gelu(const Node& node) {
    Value* x = node.input(0);
    const bool tanh = node.string_attribute("approximate", "none") == "tanh";
    if (options_.fused) return emit_.add_microsoft(tanh ? "FastGelu" : "Gelu", {x});
    if (emit_.opset() >= kGeluVersion) {
      return emit_.add("Gelu", {x}, {{"approximate", std::string(tanh ? "tanh" : "none")}});
    }
    const auto scalar = [&](float value) { return emit_.scalar(value, x->dtype()); };
    Value* inner = nullptr;
    if (tanh) {
      Value* cube = emit_.add("Mul", {emit_.add("Mul", {x, x}), x});
      Value* sum = emit_.add("Add", {x, emit_.add("Mul", {cube, scalar(0.044715F)})});
      inner = emit_.add("Tanh", {emit_.add("Mul", {sum, scalar(0.7978845608F)})});
    } else {
      inner = emit_.add("Erf", {emit_.add("Div", {x, scalar(1.4142135624F)})});
    }
    Value* gate = emit_.add("Add", {inner, scalar(1)});
    return emit_.add("Mul", {emit_.add("Mul", {x, gate}), scalar(0.5F)});
  }

  // What fuse-attention makes: no past, and all of the mask in one tensor, as long as the keys.
  static bool is_fused_attention(const Node& node) {
    if (node.input(4) || node.input(5) || node.int_attribute("is_causal", 0) != 0 || node.output(1) ||
        node.output(3)) {
      return false;
    }
    for (size_t i = 0; i < 3; ++i) {
      if (!node.input(i)->has_shape()) return false;
    }
    const Value* mask = node.input(3);
    if (!mask || !mask->has_shape() || mask->shape().empty()) return true;
    const SymShape& keys = node.input(1)->shape();
    const auto length = keys[keys.size() - 2].as_constant();
    const auto masked = mask->shape().back().as_constant();
    return !length || !masked || *masked == 1 || *masked >= *length;
  }

  Value* attention(const Node& node) {
    if (!is_fused_attention(node)) {
      if (emit_.opset() >= kFusedVersion) return nullptr;
      throw_error(ErrorCode::Unsupported, describe(node),
                  " is an attention with caches, which stays plain only in a decoder");
    }
    const bool joined = node.input(0)->shape().size() == 3;
    AttentionForm form;
    const auto dim = [&](size_t input, size_t axis) { return node.input(input)->shape()[axis].constant(); };
    form.heads = joined ? node.int_attribute("q_num_heads", 1) : dim(0, 1);
    form.kv_heads = joined ? node.int_attribute("kv_num_heads", 1) : dim(1, 1);
    form.head_size = joined ? dim(0, 2) / form.heads : dim(0, 3);
    form.value_head_size = joined ? dim(2, 2) / form.kv_heads : dim(2, 3);
    form.scale =
        node.float_attribute("scale", static_cast<float>(1 / std::sqrt(static_cast<double>(form.head_size))));
    form.softcap = node.float_attribute("softcap", 0);
    Value* q = node.input(0);
    Value* k = node.input(1);
    Value* v = node.input(2);
    if (joined) {
      q = emit_heads(emit_, q, form.heads, form.head_size);
      k = emit_heads(emit_, k, form.kv_heads, form.head_size);
      v = emit_heads(emit_, v, form.kv_heads, form.value_head_size);
    }
    Value* bias = node.input(3);
    if (bias && bias->dtype() == DType::Bool)
      bias = emit_.add("Where", {bias, emit_.scalar(0, q->dtype()),
                                 emit_.scalar(std::numeric_limits<float>::lowest(), q->dtype())});
    Value* heads = emit_softmax_attention(emit_, form, q, k, v, bias, nullptr);
    return joined ? emit_joined_heads(emit_, heads, form.heads * form.value_head_size) : heads;
  }

  Graph& graph_;
  InterchangeOptions options_;
  BatchRewriter batch_;
  Emitter emit_;
  WeightLowering weights_;
};

}  // namespace

int lowest_opset(const Graph& graph, const InterchangeOptions& options) {
  const auto source = graph.opsets().find(std::string(kOnnxDomain));
  return lowest_of(graph, options, source != graph.opsets().end() ? source->second : 0);
}

void lower_operators(Graph& graph, const InterchangeOptions& options, int opset) {
  for (Graph* each : all_graphs(graph)) Lowering(*each, options, opset).run();
  Rewriter rewriter(graph);
  rewriter.set_opset(std::string(kOnnxDomain), opset);
  rewriter.commit();
}

}  // namespace quern::passes
