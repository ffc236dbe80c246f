// Matrix products.
#include <algorithm>
#include <map>

#include "ir/ops/infer_common.h"
#include "ir/ops/matmul_shape.h"
#include "ir/ops/register.h"

namespace quern {

std::optional<SymShape> matmul_shape(const InferContext& context, const std::optional<SymShape>& a_shape,
                                     const std::optional<SymShape>& b_shape) {
  if (!a_shape || !b_shape) return std::nullopt;
  SymShape a = *a_shape;
  SymShape b = *b_shape;
  if (a.empty() || b.empty()) context.fail("an input of MatMul is a scalar");
  const bool vector_a = a.size() == 1;
  const bool vector_b = b.size() == 1;
  if (vector_a) a.insert(a.begin(), Dim(1));
  if (vector_b) b.emplace_back(1);
  const Dim& inner_a = a.back();
  const Dim& inner_b = b[b.size() - 2];
  if (inner_a.is_constant() && inner_b.is_constant() && !(inner_a == inner_b)) {
    context.fail(concat("shapes ", to_string(*a_shape), " and ", to_string(*b_shape), " do not multiply"));
  }
  const std::optional<SymShape> batch =
      broadcast(SymShape(a.begin(), a.end() - 2), SymShape(b.begin(), b.end() - 2));
  if (!batch) {
    context.fail(concat("shapes ", to_string(*a_shape), " and ", to_string(*b_shape), " do not broadcast"));
  }
  SymShape shape = *batch;
  if (!vector_a) shape.push_back(a[a.size() - 2]);
  if (!vector_b) shape.push_back(b.back());
  return shape;
}

namespace {

void infer_matmul(InferContext& context) {
  context.set_output(0, context.dtype(0), matmul_shape(context, context.shape(0), context.shape(1)));
}

void infer_matmul_integer(InferContext& context) {
  context.set_output(0, DType::I32, matmul_shape(context, context.shape(0), context.shape(1)));
}

// (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
void infer_qlinear_matmul(InferContext& context) {
  context.set_output(0, context.dtype(7), matmul_shape(context, context.shape(0), context.shape(3)));
}

void infer_gemm(InferContext& context) {
  if (!context.shape(0) || !context.shape(1)) return infer_rank(context, 2);
  const SymShape& a = *context.shape(0);
  const SymShape& b = *context.shape(1);
  if (a.size() != 2 || b.size() != 2) context.fail("the matrices must have rank 2");
  const size_t trans_a = context.node().int_attribute("transA", 0) != 0;
  const size_t trans_b = context.node().int_attribute("transB", 0) != 0;
  const Dim& inner_a = a[1 - trans_a];
  const Dim& inner_b = b[trans_b];
  if (inner_a.is_constant() && inner_b.is_constant() && !(inner_a == inner_b)) {
    context.fail(concat("shapes ", to_string(a), " and ", to_string(b), " do not multiply"));
  }
  context.set_output(0, context.dtype(0), SymShape{a[trans_a], b[1 - trans_b]});
}

}  // namespace

void register_matmul_schemas(SchemaTable& table) {
  table.add({.op = "MatMul",
             .min_inputs = 2,
             .max_inputs = 2,
             .infer = infer_matmul,
             .quantizable = {{.input = 1, .channel_axis = 1, .reduction_axis = 0}}});
  // transB decides which axis of the weight is summed over; passes turn Gemm into Linear before they
  // quantize.
  table.add({.op = "Gemm", .since = 6, .min_inputs = 2, .max_inputs = 3, .infer = infer_gemm});
  table.add({.op = "MatMulInteger", .min_inputs = 2, .max_inputs = 4, .infer = infer_matmul_integer});
  table.add({.op = "QLinearMatMul", .min_inputs = 8, .max_inputs = 8, .infer = infer_qlinear_matmul});
}

}  // namespace quern
