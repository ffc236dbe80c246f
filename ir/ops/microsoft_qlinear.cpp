// com.microsoft: operators on quantized tensors with a scale and a zero point each.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// (A, scale, zero?, B, scale, zero?, C scale, zero?)
void infer_binary(InferContext& context) {
  std::optional<SymShape> shape;
  if (context.shape(0) && context.shape(3)) {
    shape = broadcast(*context.shape(0), *context.shape(3));
    if (!shape) context.fail("the shapes do not broadcast");
  }
  context.set_output(0, context.dtype(0), shape);
}

// (Y scale, zero, then X, scale, zero for each part)
void infer_concat(InferContext& context) {
  if (context.input_count() < 5 || context.input_count() % 3 != 2) context.fail("parts come in threes");
  std::optional<SymShape> shape = context.shape(2);
  if (shape) {
    const int64_t axis =
        normalize_axis(context, context.node().int_attribute("axis", 0), static_cast<int64_t>(shape->size()));
    for (size_t i = 5; i < context.input_count(); i += 3) {
      if (!context.shape(i)) {
        shape = unknown_dims(shape->size());
        break;
      }
      if (context.shape(i)->size() != shape->size()) context.fail("parts of different ranks");
      Dim& length = (*shape)[static_cast<size_t>(axis)];
      length = length + (*context.shape(i))[static_cast<size_t>(axis)];
    }
  }
  context.set_output(0, context.dtype(2), shape);
}

void infer_gemm(InferContext& context) {
  const DType dtype = !context.has_input(7)  ? DType::F32
                      : context.has_input(8) ? context.dtype(8)
                                             : DType::U8;
  std::optional<SymShape> shape;
  if (context.shape(0) && context.shape(3)) {
    if (context.shape(0)->size() != 2 || context.shape(3)->size() != 2)
      context.fail("the matrices must have rank 2");
    const bool trans_a = context.node().int_attribute("transA", 0) != 0;
    const bool trans_b = context.node().int_attribute("transB", 0) != 0;
    shape = SymShape{(*context.shape(0))[trans_a ? 1 : 0], (*context.shape(3))[trans_b ? 0 : 1]};
  }
  context.set_output(0, dtype, shape);
}

}  // namespace

void register_microsoft_qlinear_schemas(SchemaTable& table) {
  const auto add = [&](const char* op, int least, int most, InferFunction infer) {
    table.add({.domain = std::string(kMicrosoftDomain),
               .op = op,
               .min_inputs = least,
               .max_inputs = most,
               .infer = infer});
  };
  add("QLinearAdd", 7, 8, infer_binary);
  add("QLinearMul", 7, 8, infer_binary);
  for (const char* op : {"QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"})
    add(op, 4, 5, infer_same_as_input);
  add("QLinearConcat", 5, kVariadic, infer_concat);
  add("QGemm", 6, 9, infer_gemm);
}

}  // namespace quern
