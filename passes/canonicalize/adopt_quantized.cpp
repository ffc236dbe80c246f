#include "passes/canonicalize/adopt_quantized.h"

#include <optional>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"
#include "passes/canonicalize/name_dimensions.h"
#include "passes/canonicalize/quantized_layout.h"
#include "passes/model_failure.h"
#include "runtime/interpreter.h"

namespace quern::passes {
namespace {

// The tensor behind a constant, or a cheap expression of one (a Reshape of codes); undefined for anything
// else.
Tensor constant_of(const Value* value) {
  if (value == nullptr || !is_constant_expression(value) || value->quantized()) return {};
  if (value->tensor()) return *value->tensor();
  return runtime::evaluate(std::span(&value, 1)).front().dense();
}

// The name of the largest constant behind a value.
std::string name_of(const Value* value) {
  while (!value->is_constant() && value->producer() && value->producer()->input(0))
    value = value->producer()->input(0);
  return value->name();
}

class Adoption {
 public:
  // `decoder`: whether the graph takes keys and values.
  Adoption(BatchRewriter& batch, bool decoder, PassContext& context, PassReport& report)
      : batch_(batch), decoder_(decoder), context_(context), report_(report) {}

  void visit(const Node& node) {
    try {
      const bool done = node.domain() == kMicrosoftDomain ? microsoft(node) : standard(node);
      if (done) ++report_.changes;
    } catch (const Error& error) {
      rethrow_unless_of_model(error);
      context_.explain_failure(report_, node, error.message());
    }
  }

 private:
  bool microsoft(const Node& node) {
    if (node.op() == "MatMulNBits") return nbits(node);
    if (node.op() == "MatMulBnb4") return bnb4(node);
    if (node.op() == "GatherBlockQuantized") return block_gather(node);
    if (node.op() == "DynamicQuantizeMatMul") return dynamic_product(node);
    return false;
  }

  bool standard(const Node& node) {
    if (node.op() == "MatMulInteger") return integer_product(node);
    if (node.op() == "DequantizeLinear") return dequantize(node);
    if (node.op() == "Mul") return scaled_rows(node);
    return false;
  }

  // Linear(x, weight, bias) instead of `old`.
  bool linear(Value* old, const Node& origin, Value* x, Constant weight, const Value* named, Value* bias,
              Attributes attributes = {}) {
    Value* constant = batch_.add_constant(std::move(weight), name_of(named));
    std::vector<Value*> inputs = {x, constant};
    if (bias) inputs.push_back(bias);
    batch_.substitute(old, "Linear", inputs, std::move(attributes), std::string(kQuernDomain), origin.name());
    return true;
  }

  bool give_up(const Node& node, const std::string& why) {
    context_.explain_failure(report_, node, why);
    return false;
  }

  bool nbits(const Node& node) {
    const Tensor codes = constant_of(node.input(1));
    const Tensor scales = constant_of(node.input(2));
    const Tensor points = constant_of(node.input(3));
    if (!codes.defined() || !scales.defined() || (node.input(3) && !points.defined()))
      return give_up(node, "its weight is not constant");
    if (node.input(4) != nullptr) return give_up(node, "its columns are permuted (g_idx)");
    if (node.int_attribute("weight_prepacked", 0) != 0)
      return give_up(node, "its weight is packed for one machine");
    const int64_t n = node.int_attribute("N", 0), k = node.int_attribute("K", 0);
    const int64_t block = node.int_attribute("block_size", 0);
    const auto bits = static_cast<int>(node.int_attribute("bits", 4));
    if (points.defined() && has_fractions(points)) {
      return linear(node.output(), node, node.input(0),
                    floats_from_nbits(codes, scales, points, n, k, bits, block), node.input(1),
                    node.input(5));
    }
    QuantizedTensor weight =
        from_nbits(codes, scales, points.defined() ? &points : nullptr, n, k, bits, block);
    return linear(node.output(), node, node.input(0), std::move(weight), node.input(1), node.input(5));
  }

  bool bnb4(const Node& node) {
    const Tensor codes = constant_of(node.input(1));
    const Tensor largest = constant_of(node.input(2));
    if (!codes.defined() || !largest.defined()) return give_up(node, "its weight is not constant");
    Tensor weight = from_bnb4(codes, largest, node.int_attribute("N", 0), node.int_attribute("K", 0),
                              node.int_attribute("block_size", 64), node.int_attribute("quant_type", 1));
    return linear(node.output(), node, node.input(0), std::move(weight), node.input(1), nullptr);
  }

  bool block_gather(const Node& node) {
    const Tensor data = constant_of(node.input(0));
    const Tensor scales = constant_of(node.input(2));
    const Tensor points = constant_of(node.input(3));
    if (!data.defined() || !scales.defined()) return give_up(node, "its table is not constant");
    if (data.rank() != 2 || node.int_attribute("gather_axis", 0) != 0 ||
        node.int_attribute("quantize_axis", 1) != 1) {
      return give_up(node, "its table is no matrix of rows, quantized along them");
    }
    const int64_t block = node.int_attribute("block_size", 128);
    std::optional<QuantizedTensor> table;
    if (data.dtype() == DType::U8) {
      const auto bits = static_cast<int>(node.int_attribute("bits", 4));
      table = from_nbits(data, scales, points.defined() ? &points : nullptr, data.dim(0),
                         data.dim(1) * 8 / bits, bits, block);
    } else {
      table = from_qdq(data, scales, points.defined() ? &points : nullptr, 1, block);
    }
    if (!table) return give_up(node, "its codes are of an unknown type");
    return embedding(node.output(), node, std::move(*table), node.input(0), node.input(1));
  }

  bool embedding(Value* old, const Node& origin, QuantizedTensor table, const Value* named, Value* ids) {
    Value* constant = batch_.add_constant(std::move(table), name_of(named));
    Value* rows = batch_.add("Embedding", {constant, ids}, {}, std::string(kQuernDomain), origin.name());
    if (old->dtype() != DType::F32) rows = batch_.add("Cast", {rows}, {{"to", onnx_code(old->dtype())}});
    batch_.replace(old, rows);
    return true;
  }

  // DynamicQuantizeMatMul(A, B [K, N], scale, zero point?, bias?)
  bool dynamic_product(const Node& node) {
    const Tensor codes = constant_of(node.input(1));
    const Tensor scales = constant_of(node.input(2));
    const Tensor points = constant_of(node.input(3));
    if (!codes.defined() || !scales.defined()) return give_up(node, "its weight is not constant");
    auto weight = from_qdq(codes, scales, points.defined() ? &points : nullptr, 1, 0);
    if (!weight) return give_up(node, "its weight is no matrix with one scale, or one per column");
    return linear(node.output(), node, node.input(0), transposed(*weight), node.input(1), node.input(4));
  }

  // What a MatMulInteger multiplies, before it became codes.
  struct CodedInput {
    Value* values = nullptr;
    const Value* scale = nullptr;
    bool by_token = false;
  };

  // DynamicQuantizeLinear(x), or codes round(x / s) + 128 with s = max |x| / 127 for each token.
  static std::optional<CodedInput> coded_input(const Node& node) {
    if (const Node* quantize = produced_by(node.input(0), "DynamicQuantizeLinear")) {
      if (node.input(2) != quantize->output(2)) return std::nullopt;
      return CodedInput{quantize->input(0), quantize->output(1), false};
    }
    const auto scalar_of = [](const Node* of, size_t input) {
      return of ? constant_scalar(of->input(input)) : std::nullopt;
    };
    const auto above = [](const Node* of, const char* op) {
      return of ? produced_by(of->input(0), op) : nullptr;
    };
    const Node* shift = above(produced_by(node.input(0), "Cast"), "Add");
    const Node* division = above(above(shift, "Round"), "Div");
    const Node* scale = division ? produced_by(division->input(1), "Div") : nullptr;
    const Node* largest = above(scale, "Max");
    if (largest == nullptr) largest = scale;
    const Node* reduction = above(largest, "ReduceMax");
    const Node* magnitude = above(reduction, "Abs");
    const bool fits = magnitude && magnitude->input(0) == division->input(0) &&
                      scalar_of(shift, 1) == 128.0 && constant_scalar(node.input(2)) == 128.0 &&
                      scalar_of(scale, 1) == 127.0 &&
                      (largest == scale || scalar_of(largest, 1).value_or(1) < 1e-20);
    if (!fits || !is_over_last_axis(*reduction)) return std::nullopt;
    return CodedInput{division->input(0), division->input(1), true};
  }

  static bool is_over_last_axis(const Node& reduction) {
    const std::vector<int64_t> last = {-1};
    const Tensor* axes = reduction.input(1) ? reduction.input(1)->tensor() : nullptr;
    return reduction.int_attribute("keepdims", 1) == 1 &&
           (axes ? axes->to_ints() : reduction.ints_attribute("axes", {})) == last;
  }

  // MatMulInteger(DynamicQuantizeLinear(x), W) -> Cast -> Mul(x's scale * w's scale)
  bool integer_product(const Node& node) {
    const std::optional<CodedInput> x = coded_input(node);
    const Tensor codes = constant_of(node.input(1));
    const Tensor points = constant_of(node.input(3));
    if (!x || !codes.defined())
      return give_up(node, "it does not multiply values quantized here with a constant");
    const Node* cast = sole_user(node.output());
    const Node* scaling = cast && cast->is("Cast") ? sole_user(cast->output()) : nullptr;
    const Value* both = scaling && scaling->is("Mul") ? other_input(*scaling, cast->output()) : nullptr;
    const Node* product = produced_by(both, "Mul");
    const Value* weight_scale = product ? other_input(*product, x->scale) : nullptr;
    const Tensor scales = constant_of(weight_scale);
    if (!scales.defined()) return give_up(node, "the scales that it is multiplied with are not recognised");
    auto weight = from_qdq(codes, scales, points.defined() ? &points : nullptr, 1, 0);
    if (!weight) return give_up(node, "its weight is no matrix with one scale, or one per column");
    return linear(scaling->output(), node, x->values, transposed(*weight), node.input(1), nullptr,
                  x->by_token ? Attributes{{"activations", std::string("int8")}} : Attributes{});
  }

  // Cast(Gather(codes, ids)) [- Cast(Gather(zero points, ids))] times Gather(scales, ids), one scale a row
  bool scaled_rows(const Node& node) {
    const Node* scaling = produced_by(node.input(1), "Gather");
    const Value* rows = node.input(0);
    const Tensor scales = scaling ? constant_of(scaling->input(0)) : Tensor();
    if (!scales.defined() || scales.rank() != 2 || scales.dim(1) != 1) return false;
    Tensor points;
    if (const Node* shift = produced_by(rows, "Sub")) {
      const Node* gather = gathered(shift->input(1), scaling->input(1));
      points = gather ? constant_of(gather->input(0)) : Tensor();
      if (!points.defined()) return false;
      rows = shift->input(0);
    }
    const Node* gather = gathered(rows, scaling->input(1));
    const Tensor codes = gather ? constant_of(gather->input(0)) : Tensor();
    if (!codes.defined() || codes.rank() != 2 || codes.dim(0) != scales.size()) return false;
    const Shape vector = {scales.size()};
    if (points.defined() && points.size() != scales.size()) return false;
    if (points.defined()) points = points.reshaped(vector);
    auto table = from_qdq(codes, scales.reshaped(vector), points.defined() ? &points : nullptr, 0, 0);
    return table && embedding(node.output(), *gather, std::move(*table), gather->input(0), gather->input(1));
  }

  // An activation that is rounded to codes and back. In a decoder, whose products are quern's own, that goes.
  bool rounding(const Node& node, const Node& quantize) {
    const Tensor scale = constant_of(node.input(1));
    if (!decoder_ || scale.size() != 1) return false;
    if (node.output()->dtype() != quantize.input(0)->dtype()) return false;
    batch_.replace(node.output(), quantize.input(0));
    return true;
  }

  // The Gather by `ids` along the first axis under a Cast.
  static const Node* gathered(const Value* value, const Value* ids) {
    const Node* cast = produced_by(value, "Cast");
    const Node* gather = cast ? produced_by(cast->input(0), "Gather") : nullptr;
    return gather && gather->input(1) == ids && gather->int_attribute("axis", 0) == 0 ? gather : nullptr;
  }

  bool dequantize(const Node& node) {
    const Tensor scales = constant_of(node.input(1));
    const Tensor points = constant_of(node.input(2));
    if (!scales.defined()) return false;
    if (const Node* quantize = produced_by(node.input(0), "QuantizeLinear")) return rounding(node, *quantize);
    if (const Node* gather = produced_by(node.input(0), "Gather")) {
      const Tensor table = constant_of(gather->input(0));
      if (!table.defined() || gather->int_attribute("axis", 0) != 0 || scales.size() != 1) return false;
      auto quantized = from_qdq(table, scales, points.defined() ? &points : nullptr, 0, 0);
      return quantized &&
             embedding(node.output(), *gather, std::move(*quantized), gather->input(0), gather->input(1));
    }
    const Tensor codes = constant_of(node.input(0));
    if (!codes.defined()) return false;
    auto quantized = from_qdq(codes, scales, points.defined() ? &points : nullptr,
                              node.int_attribute("axis", 1), node.int_attribute("block_size", 0));
    if (!quantized) return give_up(node, "it is no matrix of integers with scales by tensor, axis or block");
    Value* constant = batch_.add_constant(std::move(*quantized), name_of(node.input(0)));
    const DType dtype = node.output()->dtype();
    batch_.replace(node.output(), dtype == DType::F32
                                      ? constant
                                      : batch_.add("Cast", {constant}, {{"to", onnx_code(dtype)}}));
    return true;
  }

  BatchRewriter& batch_;
  bool decoder_;
  PassContext& context_;
  PassReport& report_;
};

}  // namespace

AdoptQuantized::AdoptQuantized()
    : Pass("adopt-quantized", "weights that the file holds quantized become quantized tensors") {}

PassReport AdoptQuantized::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    BatchRewriter batch(*each);
    const auto inputs = transformer_inputs(*each);
    Adoption adoption(batch, inputs && !inputs->pasts.empty(), context, report);
    for (const Node* node : each->nodes()) adoption.visit(*node);
    batch.commit();
  }
  return report;
}

}  // namespace quern::passes
