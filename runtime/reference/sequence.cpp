// Sequences and optionals of tensors.
#include <algorithm>

#include "runtime/reference/register.h"
#include "runtime/reference/strided.h"
#include "runtime/reference/values.h"

namespace quern::runtime::reference {
namespace {

void run_sequence_construct(KernelContext& context) {
  TensorSequence sequence;
  for (size_t i = 0; i < context.input_count(); ++i) {
    check_same_dtype(context, context.input(0), context.input(i));
    sequence.tensors.push_back(context.input(i));
  }
  sequence.dtype = context.input(0).dtype();
  context.set_output(0, std::move(sequence));
}

void run_sequence_empty(KernelContext& context) {
  TensorSequence sequence;
  sequence.dtype = dtype_from_onnx_number(context.node().int_attribute("dtype", 1));
  context.set_output(0, std::move(sequence));
}

// A position in [0, count), negative ones from the end; `fallback` where it is not given. Inserting may be at
// count.
size_t position_of(KernelContext& context, size_t input, size_t count, int64_t fallback, bool inserting) {
  const auto n = static_cast<int64_t>(count);
  int64_t at = context.has_input(input) ? int_scalar(context, input) : fallback;
  if (at < -n || at >= n + (inserting ? 1 : 0)) context.fail("position ", at, " in a sequence of ", n);
  return static_cast<size_t>(at < 0 ? at + n : at);
}

void run_sequence_at(KernelContext& context) {
  const auto& tensors = context.value(0).sequence().tensors;
  context.set_output(0, tensors[position_of(context, 1, tensors.size(), 0, false)]);
}

void run_sequence_insert(KernelContext& context) {
  TensorSequence sequence = context.value(0).sequence();
  const size_t count = sequence.tensors.size();
  const size_t at = position_of(context, 2, count, static_cast<int64_t>(count), true);
  sequence.dtype = context.input(1).dtype();
  sequence.tensors.insert(sequence.tensors.begin() + static_cast<int64_t>(at), context.input(1));
  context.set_output(0, std::move(sequence));
}

void run_sequence_erase(KernelContext& context) {
  TensorSequence sequence = context.value(0).sequence();
  const size_t at = position_of(context, 1, sequence.tensors.size(), -1, false);
  sequence.tensors.erase(sequence.tensors.begin() + static_cast<int64_t>(at));
  context.set_output(0, std::move(sequence));
}

void run_sequence_length(KernelContext& context) {
  context.set_output(0, Tensor::scalar(static_cast<int64_t>(context.value(0).sequence().tensors.size())));
}

// `split`: a scalar, the length of each part (the last may be shorter), or a list of lengths; not given: 1
// each.
void run_split_to_sequence(KernelContext& context) {
  const Tensor& x = context.input(0);
  const auto axis =
      static_cast<size_t>(normalize_axis(context, context.node().int_attribute("axis", 0), x.rank()));
  const int64_t length = x.shape()[axis];
  std::vector<int64_t> sizes;
  const Tensor* split = context.optional_input(1);
  if (split != nullptr && split->rank() > 0) {
    sizes = int_values(*split);
  } else {
    const int64_t chunk = split == nullptr ? 1 : split->int_at(0);
    if (chunk < 1) context.fail("split is ", chunk);
    for (int64_t begin = 0; begin < length; begin += std::min(chunk, length)) {
      sizes.push_back(std::min(chunk, length - begin));
    }
  }
  const bool drop_axis = split == nullptr && context.node().int_attribute("keepdims", 1) == 0;
  TensorSequence sequence;
  sequence.dtype = x.dtype();
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > length - begin) context.fail("the sizes do not add up to ", length);
    Tensor part = slice_axis(context, x, axis, begin, size);
    if (drop_axis) {
      Shape shape = part.shape();
      shape.erase(shape.begin() + static_cast<int64_t>(axis));
      part = part.reshaped(shape);
    }
    sequence.tensors.push_back(std::move(part));
    begin += size;
  }
  if (begin != length) context.fail("the sizes do not add up to ", length);
  context.set_output(0, std::move(sequence));
}

void run_concat_from_sequence(KernelContext& context) {
  std::vector<Tensor> parts = context.value(0).sequence().tensors;
  if (parts.empty()) context.fail("the sequence is empty");
  const bool new_axis = context.node().int_attribute("new_axis", 0) != 0;
  const int64_t rank = parts.front().rank() + (new_axis ? 1 : 0);
  const int64_t axis = normalize_axis(context, context.node().int_attribute("axis", 0), rank);
  if (new_axis) {
    for (Tensor& part : parts) {
      Shape shape = part.shape();
      if (axis > static_cast<int64_t>(shape.size())) context.fail("tensors of different ranks");
      shape.insert(shape.begin() + axis, 1);
      part = part.reshaped(shape);
    }
  }
  context.set_output(0, concat_tensors(context, parts, axis));
}

void run_optional(KernelContext& context) {
  context.set_output(0, context.value(0));
}

void run_optional_get_element(KernelContext& context) {
  if (!context.has_input(0)) context.fail("the optional is empty");
  context.set_output(0, context.value(0));
}

void run_optional_has_element(KernelContext& context) {
  context.set_output(0, Tensor::scalar(context.has_input(0)));
}

}  // namespace

void register_sequence(KernelTable& table) {
  add_reference(table, {"SequenceConstruct"}, run_sequence_construct);
  add_reference(table, {"SequenceEmpty"}, run_sequence_empty);
  add_reference(table, {"SequenceAt"}, run_sequence_at);
  add_reference(table, {"SequenceInsert"}, run_sequence_insert);
  add_reference(table, {"SequenceErase"}, run_sequence_erase);
  add_reference(table, {"SequenceLength"}, run_sequence_length);
  add_reference(table, {"SplitToSequence"}, run_split_to_sequence);
  add_reference(table, {"ConcatFromSequence"}, run_concat_from_sequence);
  add_reference(table, {"Optional"}, run_optional);
  add_reference(table, {"OptionalGetElement"}, run_optional_get_element);
  add_reference(table, {"OptionalHasElement"}, run_optional_has_element);
}

}  // namespace quern::runtime::reference
