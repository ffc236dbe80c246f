// com.microsoft: activations, norms, products. What ONNX Runtime's optimizer and exporters write.
#include "ir/ops/infer_common.h"
#include "ir/ops/matmul_shape.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

const std::string kDomain(kMicrosoftDomain);

// (input, skip, gamma, ...) -> normed, mean, inverse deviation, sum
void infer_skip_norm(InferContext& context) {
  infer_same_as_input(context);
  std::optional<SymShape> stats = context.shape(0);
  if (stats && !stats->empty()) stats->back() = Dim(1);
  context.set_output(1, DType::F32, stats);
  context.set_output(2, DType::F32, stats);
  context.set_output(3, context.input_type(0));
}

// (ids [B, S], segment_ids?, word [V, C], position, segment?, gamma, beta, mask?, position_ids?) -> [B, S,
// C], mask_index [B], sum [B, S, C]
void infer_embed_layer_norm(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  std::optional<SymShape> batch;
  if (shape && shape->size() == 2) {
    batch = SymShape{shape->front()};
    const bool known = context.shape(2) && !context.shape(2)->empty();
    shape->push_back(known ? context.shape(2)->back() : Dim::fresh());
  } else {
    shape = std::nullopt;
  }
  context.set_output(0, context.dtype(2), shape);
  context.set_output(1, DType::I32, batch);
  context.set_output(2, context.dtype(2), shape);
}

void infer_fused_matmul(InferContext& context) {
  const Node& node = context.node();
  if (node.int_attribute("transBatchA", 0) != 0 || node.int_attribute("transBatchB", 0) != 0) {
    return infer_rank(context, context.shape(0) ? std::optional(context.shape(0)->size()) : std::nullopt);
  }
  std::optional<SymShape> a = context.shape(0);
  std::optional<SymShape> b = context.shape(1);
  const auto transpose = [&](std::optional<SymShape>& shape, const char* attribute) {
    if (shape && shape->size() >= 2 && node.int_attribute(attribute, 0) != 0) {
      std::swap((*shape)[shape->size() - 1], (*shape)[shape->size() - 2]);
    }
  };
  transpose(a, "transA");
  transpose(b, "transB");
  context.set_output(0, context.dtype(0), matmul_shape(context, a, b));
}

// A [..., K] against a packed weight of N outputs.
void infer_packed_matmul(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  const Node& node = context.node();
  if (shape) {
    if (shape->empty()) context.fail("the input is a scalar");
    const Dim k(node.int_attribute("K", 0));
    if (shape->back().is_constant() && !(shape->back() == k)) {
      context.fail(
          concat("the input has ", shape->back().to_string(), " features, the weight takes ", k.to_string()));
    }
    shape->back() = Dim(node.int_attribute("N", 0));
  }
  context.set_output(0, context.dtype(0), shape);
}

// Products of A and B with scales and zero points beside them, to f32.
void infer_scaled_matmul(InferContext& context) {
  context.set_output(0, DType::F32, matmul_shape(context, context.shape(0), context.shape(1)));
}

// (data, indices, scales, zero_points?); u8 data holds several codes a byte along the last axis.
void infer_gather_block_quantized(InferContext& context) {
  if (!context.shape(0) || !context.shape(1)) {
    context.set_output(0, context.dtype(2), std::nullopt);
    return;
  }
  SymShape data = *context.shape(0);
  if (data.empty()) context.fail("the data is a scalar");
  const SymShape& indices = *context.shape(1);
  const Node& node = context.node();
  const auto rank = static_cast<int64_t>(data.size());
  const int64_t bits = node.int_attribute("bits", 4);
  if (context.dtype(0) == DType::U8 && (bits == 2 || bits == 4)) data.back() = data.back() * Dim(8 / bits);
  const int64_t axis = normalize_axis(context, node.int_attribute("gather_axis", 0), rank);
  SymShape shape(data.begin(), data.begin() + axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + axis + 1, data.end());
  context.set_output(0, context.dtype(2), std::move(shape));
}

void add(SchemaTable& table, const char* op, int least, int most, InferFunction infer, int outputs = 1) {
  table.add({.domain = kDomain,
             .op = op,
             .min_inputs = least,
             .max_inputs = most,
             .max_outputs = outputs,
             .infer = infer});
}

// The caches come after the positions.
void infer_rotary_embedding(InferContext& context) {
  check_rotary(context, "interleaved", 2);
  infer_same_as_input(context);
}

}  // namespace

void register_microsoft_schemas(SchemaTable& table) {
  add(table, "Gelu", 1, 1, infer_same_as_input);
  add(table, "FastGelu", 1, 2, infer_same_as_input);
  add(table, "BiasGelu", 2, 2, infer_same_as_input);
  add(table, "QuickGelu", 1, 1, infer_same_as_input);
  add(table, "SkipLayerNormalization", 3, 5, infer_skip_norm, 4);
  add(table, "SkipSimplifiedLayerNormalization", 3, 4, infer_skip_norm, 4);
  add(table, "EmbedLayerNormalization", 7, 9, infer_embed_layer_norm, 3);
  add(table, "FusedMatMul", 2, 2, infer_fused_matmul);
  add(table, "MatMulNBits", 3, 6, infer_packed_matmul);
  add(table, "MatMulBnb4", 3, 3, infer_packed_matmul);
  add(table, "DynamicQuantizeMatMul", 3, 5, infer_scaled_matmul);
  add(table, "MatMulIntegerToFloat", 4, 7, infer_scaled_matmul);
  add(table, "GatherBlockQuantized", 3, 4, infer_gather_block_quantized);
  add(table, "RotaryEmbedding", 4, 4, infer_rotary_embedding);
  add(table, "MoE", 4, 8, infer_same_as_input);
  add(table, "QMoE", 7, 21, infer_same_as_input);
}

}  // namespace quern
