// com.microsoft MoE and QMoE: everything that the operators do in one, as operators by expert.
#include <cmath>

#include "ir/schema.h"
#include "passes/canonicalize/fuse_experts.h"
#include "passes/canonicalize/quantized_layout.h"

namespace quern::passes {
namespace {

class MoeExpansion {
 public:
  MoeExpansion(BatchRewriter& batch, const Node& node)
      : batch_(batch),
        node_(node),
        quantized_(node.op() == "QMoE"),
        fc1_(2),
        fc2_(quantized_ ? 5 : 4),
        fc3_(quantized_ ? 8 : 6),
        after_(quantized_ ? 2 : 1) {}

  std::string run() {
    if (std::string why = obstacle(); !why.empty()) return why;
    const std::string domain(kQuernDomain);
    experts_ = node_.input(fc1_)->shape()[0].constant();
    Attributes attributes = {{"experts_per_token", node_.int_attribute("k", 1)}};
    // QMoE's softmax is over the chosen logits alone.
    if (quantized_ || node_.int_attribute("normalize_routing_weights", 0) != 0)
      attributes["normalize"] = int64_t{1};
    Value* x = batch_.resolve(node_.input(0));
    Value* routing = batch_.add("RouteExperts", {logits_like(x)}, attributes, domain);
    std::vector<Value*> results = {routing};
    for (int64_t e = 0; e < experts_; ++e) {
      Value* rows = batch_.add("ExpertRows", {x, routing}, {{"expert", e}}, domain);
      results.push_back(layers(rows, e));
    }
    batch_.substitute(node_.output(), "CombineExperts", results, {}, domain, node_.name());
    return {};
  }

 private:
  std::string obstacle() const {
    const std::string activation = node_.string_attribute("activation_type", "relu");
    if (activation != "relu" && activation != "gelu" && activation != "silu" && activation != "swiglu" &&
        activation != "identity")
      return "activation_type is " + activation;
    if (activation == "swiglu" && node_.int_attribute("swiglu_fusion", 0) == 0 && !node_.input(fc3_))
      return "swiglu without fusion needs the third layer";
    for (const size_t layer : {fc1_, fc2_, fc3_}) {
      const Value* weight = node_.input(layer);
      if (weight == nullptr && layer == fc3_) continue;
      const bool known = weight && is_constant_expression(weight) && weight->has_shape() &&
                         weight->shape().size() == 3 && weight->shape()[0].is_constant() &&
                         (!quantized_ || (weight->tensor() && node_.input(layer + 1)));
      if (!known) return "its weights are no constants by expert";
    }
    if (node_.int_attribute("weights_prepacked", 0) == 1) return "its weights are packed for a GPU";
    for (size_t i = 14; quantized_ && i < node_.inputs().size(); ++i) {
      if (node_.input(i)) return concat("it has an input ", i);
    }
    if (!node_.input(0)->has_shape() || !node_.input(1)->has_shape())
      return "the shapes of its inputs are not known";
    return {};
  }

  Value* ints(std::vector<int64_t> values) {
    return batch_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  }
  Value* number(double value, DType dtype) {
    return batch_.add_constant(Tensor::scalar<float>(static_cast<float>(value)).cast(dtype));
  }

  // The router's logits, whose rows may be counted through, with the leading dimensions of x.
  Value* logits_like(Value* x) {
    Value* logits = batch_.resolve(node_.input(1));
    if (logits->shape().size() == x->shape().size()) return logits;
    Value* lead = batch_.add("Shape", {x}, {{"end", int64_t{-1}}});
    return batch_.add("Reshape",
                      {logits, batch_.add("Concat", {lead, ints({experts_})}, {{"axis", int64_t{0}}})});
  }

  Value* weight_of(size_t layer, int64_t e) {
    Value* all = node_.input(layer);
    if (!quantized_) return expert_slice(batch_, skip_casts(all), e);
    const auto bits = static_cast<int>(node_.int_attribute("expert_weight_bits", 4));
    const auto part = [&](const Value* value) {
      const Tensor& tensor = *value->tensor();
      const auto owner = std::make_shared<const Tensor>(tensor);
      const int64_t bytes = tensor.byte_size() / tensor.dim(0);
      return Tensor::view(tensor.dtype(), Shape(tensor.shape().begin() + 1, tensor.shape().end()), owner,
                          owner->bytes() + e * bytes, bytes);
    };
    const Tensor codes = part(all), scales = part(node_.input(layer + 1));
    const Value* points = node_.input(layer == fc1_ ? 11 : layer == fc2_ ? 12 : 13);
    Tensor own_points;
    if (points) own_points = part(points);
    const int64_t n = codes.dim(0), k = codes.dim(1) * 8 / bits;
    const int64_t block = node_.int_attribute("block_size", 0);
    QuantizedTensor weight =
        from_nbits(codes, scales, points ? &own_points : nullptr, n, k, bits, block > 0 ? block : k);
    if (block <= 0) {
      // One block a row is a scale for each channel.
      weight.scheme.granularity = QuantScheme::Granularity::Channel;
      weight.scheme.axis = 0;
      weight.scheme.group_size = 0;
      weight.scales = weight.scales.reshaped({n});
      if (weight.zero_points.defined()) weight.zero_points = weight.zero_points.reshaped({n});
    }
    weight.check();
    return batch_.add_constant(std::move(weight), concat(all->name(), ".", e));
  }

  Value* linear(Value* x, size_t layer, int64_t e) {
    std::vector<Value*> inputs = {x, weight_of(layer, e)};
    if (Value* bias = node_.input(layer + after_))
      inputs.push_back(expert_slice(batch_, skip_casts(bias), e));
    return batch_.add("Linear", inputs, {}, std::string(kQuernDomain), concat(node_.name(), ".", e));
  }

  // Every other feature of a value, or one half of them.
  Value* part(Value* x, int64_t index, bool interleaved) {
    const int64_t width =
        last_dim(node_.input(fc1_ + after_)).value_or(node_.input(fc1_)->shape()[1].constant());
    if (interleaved) return batch_.add("Slice", {x, ints({index}), ints({width}), ints({-1}), ints({2})});
    return batch_.add("Slice", {x, ints({index * width / 2}), ints({(index + 1) * width / 2}), ints({-1})});
  }

  // G * sigmoid(alpha * G) * (L + beta), G at most and L within the limit.
  Value* swiglu(Value* gate, Value* rest) {
    const DType dtype = node_.input(0)->dtype();
    if (node_.has_attribute("swiglu_limit") && std::isfinite(node_.float_attribute("swiglu_limit", 0))) {
      const double limit = node_.float_attribute("swiglu_limit", 0);
      gate = batch_.add("Clip", {gate, nullptr, number(limit, dtype)});
      rest = batch_.add("Clip", {rest, number(-limit, dtype), number(limit, dtype)});
    }
    gate = batch_.add("Swish", {gate}, {{"alpha", node_.float_attribute("activation_alpha", 1)}});
    const float beta = node_.float_attribute("activation_beta", 0);
    if (beta != 0) rest = batch_.add("Add", {rest, number(beta, dtype)});
    return batch_.add("Mul", {gate, rest});
  }

  Value* layers(Value* rows, int64_t e) {
    const std::string activation = node_.string_attribute("activation_type", "relu");
    Value* hidden = linear(rows, fc1_, e);
    if (activation == "swiglu") {
      const int64_t fusion = node_.int_attribute("swiglu_fusion", 0);
      Value* gate = fusion == 0 ? hidden : part(hidden, 0, fusion == 1);
      Value* rest = fusion == 0 ? linear(rows, fc3_, e) : part(hidden, 1, fusion == 1);
      return linear(swiglu(gate, rest), fc2_, e);
    }
    if (activation == "relu") hidden = batch_.add("Relu", {hidden});
    if (activation == "silu") hidden = batch_.add("Swish", {hidden}, {{"alpha", 1.0F}});
    if (activation == "gelu") hidden = batch_.add("Gelu", {hidden}, {{"approximate", std::string("tanh")}});
    if (node_.input(fc3_)) hidden = batch_.add("Mul", {hidden, linear(rows, fc3_, e)});
    return linear(hidden, fc2_, e);
  }

  BatchRewriter& batch_;
  const Node& node_;
  bool quantized_;
  size_t fc1_, fc2_, fc3_, after_;  // inputs; a layer's bias stands `after_` its weight
  int64_t experts_ = 0;
};

}  // namespace

std::string expand_moe(BatchRewriter& batch, const Node& node) {
  return MoeExpansion(batch, node).run();
}

}  // namespace quern::passes
