// Quantize, dequantize, and dynamic quantization.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

// The type of the codes: output_dtype, else that of the zero point, else u8.
void infer_quantize(InferContext& context) {
  const int64_t number = context.node().int_attribute("output_dtype", 0);
  const DType dtype = number != 0            ? dtype_from_onnx_number(number)
                      : context.has_input(2) ? context.dtype(2)
                                             : DType::U8;
  context.set_output(0, dtype, context.shape(0));
}

void infer_dequantize(InferContext& context) {
  const int64_t number = context.node().int_attribute("output_dtype", 0);
  context.set_output(0, number != 0 ? dtype_from_onnx_number(number) : context.dtype(1), context.shape(0));
}

void infer_dynamic_quantize(InferContext& context) {
  context.set_output(0, DType::U8, context.shape(0));
  context.set_output(1, DType::F32, SymShape{});
  context.set_output(2, DType::U8, SymShape{});
}

}  // namespace

void register_quantization_schemas(SchemaTable& table) {
  table.add({.op = "QuantizeLinear", .min_inputs = 2, .max_inputs = 3, .infer = infer_quantize});
  table.add({.op = "DequantizeLinear", .min_inputs = 2, .max_inputs = 3, .infer = infer_dequantize});
  table.add({.op = "DynamicQuantizeLinear",
             .min_inputs = 1,
             .max_inputs = 1,
             .min_outputs = 3,
             .max_outputs = 3,
             .infer = infer_dynamic_quantize});
  // ONNX Runtime's own, from before ai.onnx had 16-bit and blocked quantization.
  const std::string microsoft(kMicrosoftDomain);
  table.add({.domain = microsoft,
             .op = "QuantizeLinear",
             .min_inputs = 2,
             .max_inputs = 3,
             .infer = infer_quantize});
  table.add({.domain = microsoft,
             .op = "DequantizeLinear",
             .min_inputs = 2,
             .max_inputs = 3,
             .infer = infer_dequantize});
}

}  // namespace quern
