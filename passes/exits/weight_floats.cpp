#include "passes/exits/weight_floats.h"

#include "ir/error.h"

namespace quern::passes {

Tensor weight_floats(const Value& weight) {
  if (const Tensor* tensor = weight.tensor()) return tensor->cast(DType::F32);
  if (const QuantizedTensor* quantized = weight.quantized()) return dequantize(*quantized);
  if (const PackedTensor* packed = weight.packed()) return packed->dequantize();
  throw_error(ErrorCode::InvalidArgument, "'", weight.name(),
              "' is an expression; materialize the weights first");
}

}  // namespace quern::passes
