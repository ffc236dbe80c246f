// Signal processing: windows, Fourier transforms, mel filters.
#include "ir/ops/infer_common.h"
#include "ir/ops/register.h"

namespace quern {
namespace {

void infer_window(InferContext& context) {
  const DType dtype = dtype_from_onnx_number(context.node().int_attribute("output_datatype", 1));
  const auto size = context.elements(0);
  context.set_output(0, dtype, SymShape{size && size->size() == 1 ? size->front() : Dim::fresh()});
}

// (x [..., n, 1 or 2], dft_length?, axis?) -> [..., n', 2]
void infer_dft(InferContext& context) {
  std::optional<SymShape> shape = context.shape(0);
  if (!shape) return infer_rank(context, std::nullopt);
  const Node& node = context.node();
  if (shape->size() < 2) context.fail("the input has a rank below 2");
  const auto rank = static_cast<int64_t>(shape->size());
  const bool onesided = node.int_attribute("onesided", 0) != 0;
  const bool inverse = node.int_attribute("inverse", 0) != 0;
  std::optional<int64_t> axis;
  if (node.opset() < 20) {
    axis = node.int_attribute("axis", 1);
  } else if (!context.has_input(2)) {
    axis = -2;
  } else if (const auto given = context.constant_ints(2); given && given->size() == 1) {
    axis = given->front();
  }
  if (!axis) return infer_rank(context, shape->size());
  Dim& length = (*shape)[static_cast<size_t>(normalize_axis(context, *axis, rank))];
  const bool real_result = onesided && inverse;
  if (context.has_input(1)) {
    const auto given = context.elements(1);
    length = given && given->size() == 1 ? given->front() : Dim::fresh();
  } else if (real_result) {
    length = (length - Dim(1)) * Dim(2);
  }
  if (onesided && !inverse) length = length.is_constant() ? Dim(length.constant() / 2 + 1) : Dim::fresh();
  shape->back() = Dim(real_result ? 1 : 2);
  context.set_output(0, context.dtype(0), shape);
}

// (signal [B, n, 1 or 2], frame_step, window?, frame_length?) -> [B, frames, bins, 2]
void infer_stft(InferContext& context) {
  const auto step = context.constant_ints(1);
  Dim length = Dim::fresh();
  if (context.has_input(3)) {
    if (const auto given = context.elements(3); given && given->size() == 1) length = given->front();
  } else if (context.has_input(2) && context.shape(2) && context.shape(2)->size() == 1) {
    length = context.shape(2)->front();
  }
  if (!context.shape(0) || context.shape(0)->size() < 2) return infer_rank(context, 4);
  const SymShape& signal = *context.shape(0);
  Dim frames = Dim::fresh();
  if (step && step->size() == 1 && step->front() > 0 && length.is_constant()) {
    frames = window_count(signal[1], length.constant(), 0, step->front());
  }
  const bool onesided = context.node().int_attribute("onesided", 1) != 0;
  Dim bins = length;
  if (onesided) bins = length.is_constant() ? Dim(length.constant() / 2 + 1) : Dim::fresh();
  context.set_output(0, context.dtype(0), SymShape{signal[0], frames, bins, Dim(2)});
}

void infer_mel(InferContext& context) {
  const DType dtype = dtype_from_onnx_number(context.node().int_attribute("output_datatype", 1));
  const auto bins = context.elements(0);
  const auto length = context.constant_ints(1);
  context.set_output(0, dtype,
                     SymShape{length && length->size() == 1 ? Dim(length->front() / 2 + 1) : Dim::fresh(),
                              bins && bins->size() == 1 ? bins->front() : Dim::fresh()});
}

}  // namespace

void register_signal_schemas(SchemaTable& table) {
  for (const char* op : {"HannWindow", "HammingWindow", "BlackmanWindow"}) {
    table.add({.op = op, .min_inputs = 1, .max_inputs = 1, .infer = infer_window});
  }
  table.add({.op = "DFT", .min_inputs = 1, .max_inputs = 3, .infer = infer_dft});
  table.add({.op = "STFT", .min_inputs = 2, .max_inputs = 4, .infer = infer_stft});
  table.add({.op = "MelWeightMatrix", .min_inputs = 5, .max_inputs = 5, .infer = infer_mel});
}

}  // namespace quern
