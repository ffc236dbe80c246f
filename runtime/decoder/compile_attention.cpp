// Embedding, rotary embedding, attention, and the selection of rows.
#include <algorithm>
#include <cmath>

#include "runtime/decoder/compiler.h"

namespace quern::runtime {

void EntryCompiler::embedding(const Node& node) {
  const Value* value = node.input(0);
  const Value* ids = node.input(1);
  if (value == nullptr || !value->is_constant()) unsupported(node, "its table is not a constant");
  if (ids == nullptr || ids->producer() != nullptr ||
      (ids->name() != "input_ids" && ids->name() != "positions")) {
    unsupported(node, "it looks up neither input_ids nor positions");
  }
  const bool by_position = ids->name() == "positions";
  EmbeddingStep::Table table;
  const Tensor* tensor = value->tensor();
  // A mapped table is read where it lies. One in memory that a product uses too is there already, packed.
  const bool direct = tensor != nullptr && (tensor->is_view() || !context_.packed.contains(value));
  if (!direct) {
    table = context_.weight(node, *value);
  } else if (tensor->dtype() == DType::F16 || tensor->dtype() == DType::BF16) {
    table = *tensor;
  } else {
    table = tensor->cast(DType::F32);
  }
  const int64_t width = direct ? tensor->dim(1) : std::get<PackedTensor>(table).cols();
  const Operand out = define(node.output(), Space::Tokens, {width});
  auto step = std::make_unique<EmbeddingStep>(std::move(table), by_position, out);
  int64_t& limit = by_position ? plan_.position_limit : plan_.id_limit;
  limit = limit == 0 ? step->rows() : std::min(limit, step->rows());
  add_step(std::move(step), node, Space::Tokens);
}

RotarySpec EntryCompiler::rotary_spec(const Node& node) {
  if (node.input(1) == nullptr || node.input(1)->name() != "positions")
    unsupported(node, "input 1 is not positions");
  if (node.input(2) == nullptr || !node.input(2)->is_constant())
    unsupported(node, "its frequencies are not constant");
  RotaryTableStep::Frequencies frequencies;
  frequencies.base = context_.constant(node, *node.input(2));
  frequencies.scale = node.float_attribute("scale", 1.0f);
  frequencies.extended_scale = frequencies.scale;
  if (node.input(3) != nullptr) {
    if (!node.input(3)->is_constant()) unsupported(node, "its frequencies are not constant");
    frequencies.extended = context_.constant(node, *node.input(3));
    frequencies.extended_scale = node.float_attribute("long_scale", frequencies.scale);
    const int64_t original = node.int_attribute("original_context", 0);
    if (original <= 0 || (plan_.original_context != 0 && plan_.original_context != original)) {
      invalid(node, "long frequencies need an original_context, and the same in all nodes");
    }
    if (frequencies.extended.size() != frequencies.base.size()) invalid(node, "frequencies differ in number");
    plan_.original_context = original;
  }
  RotarySpec spec;
  spec.head_size = node.int_attribute("head_size", 0);
  spec.rotary_size = 2 * static_cast<int64_t>(frequencies.base.size());
  spec.interleaved = node.int_attribute("interleaved", 0) != 0;
  if (spec.head_size <= 0 || spec.rotary_size > spec.head_size) {
    invalid(node, concat("a head has ", spec.head_size, " features, ", spec.rotary_size, " are rotated"));
  }
  for (const RotaryTableStep* table : tables_) {
    if (table->frequencies() == frequencies) {
      spec.table = table->out();
      return spec;
    }
  }
  spec.table = new_buffer(spec.rotary_size, Space::Tokens);
  auto step = std::make_unique<RotaryTableStep>(std::move(frequencies), spec.table);
  tables_.push_back(step.get());
  add_step(std::move(step), node, Space::Tokens);
  return spec;
}

// Whether the attention behind it rotates the heads itself.
bool EntryCompiler::is_fused_rotary(const Node& node) const {
  const Node* user = sole_user(node.output());
  if (user == nullptr) return false;
  const bool attends = user->is("CachedAttention", kQuernDomain);
  if (!attends && !user->is("AppendCache", kQuernDomain)) return false;
  return user->input(attends ? 2 : 1) != node.output() &&
         user->int_attribute("head_size", 0) == node.int_attribute("head_size", -1);
}

void EntryCompiler::rotary(const Node& node) {
  if (is_fused_rotary(node)) return;
  const RowValue x = row_input(node, 0);
  if (x.space != Space::Tokens) unsupported(node, "its input is of selected rows");
  const RotarySpec spec = rotary_spec(node);
  if (x.at.width % spec.head_size != 0) invalid(node, "the input is no whole number of heads");
  const Operand y = define(node.output(), x.space, x.features);
  add_step(std::make_unique<RotaryStep>(*plan_.kernels.rows, spec, x.at, y), node, x.space);
}

cpu::AttentionShape attention_shape(const Node& node) {
  cpu::AttentionShape shape;
  shape.heads = node.int_attribute("heads", 0);
  shape.kv_heads = node.int_attribute("kv_heads", shape.heads);
  shape.head_size = node.int_attribute("head_size", 0);
  shape.value_size = node.int_attribute("value_head_size", shape.head_size);
  constexpr int64_t kMost = 1 << 16;
  for (const int64_t size : {shape.heads, shape.kv_heads, shape.head_size, shape.value_size}) {
    if (size <= 0 || size > kMost) throw_error(ErrorCode::InvalidModel, describe(node), ": a size of ", size);
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw_error(ErrorCode::InvalidModel, describe(node), ": ", shape.heads, " heads can't share ",
                shape.kv_heads, " KV heads");
  }
  shape.scale = node.float_attribute("scale", 1.0f / std::sqrt(static_cast<float>(shape.head_size)));
  shape.softcap = node.float_attribute("softcap", 0.0f);
  shape.window = node.int_attribute("window", 0);
  return shape;
}

// What an input's rows are, and how they are still to be rotated.
Operand EntryCompiler::head_input(const Node& node, size_t input, int64_t width,
                                  std::optional<RotarySpec>* rotate) {
  const Value* value = node.input(input);
  const Node* producer = value != nullptr ? value->producer() : nullptr;
  const bool fused = rotate != nullptr && producer != nullptr && producer->is("Rotary", kQuernDomain) &&
                     is_fused_rotary(*producer);
  if (fused) *rotate = rotary_spec(*producer);
  const RowValue& row = fused ? row_input(*producer, 0) : row_input(node, input);
  if (row.space != Space::Tokens || row.at.width != width) {
    invalid(node, concat("input ", input, " has ", row.at.width, " features, ", width, " were expected"));
  }
  return row.at;
}

const float* EntryCompiler::key_scales(const Node& node, size_t input, const cpu::AttentionShape& shape) {
  const int64_t count = shape.kv_heads * shape.head_size;
  const float* scales = bias_of(node, input, count);
  if (scales != nullptr &&
      !std::all_of(scales, scales + count, [](float scale) { return scale > 0 && std::isfinite(scale); })) {
    invalid(node, "its key scales must be positive and finite");
  }
  return scales;
}

void EntryCompiler::attention(const Node& node) {
  cpu::AttentionShape shape = attention_shape(node);
  const auto heads_constant = [&](size_t input) { return bias_of(node, input, shape.heads); };
  shape.sinks = heads_constant(3);
  shape.slopes = heads_constant(4);
  shape.key_scales = key_scales(node, 5, shape);
  AttentionStep::Operands at;
  at.q = head_input(node, 0, shape.heads * shape.head_size, &at.rotate_q);
  at.k = head_input(node, 1, shape.kv_heads * shape.head_size, &at.rotate_k);
  at.v = head_input(node, 2, shape.kv_heads * shape.value_size, nullptr);
  at.out = define(node.output(), Space::Tokens, {shape.heads * shape.value_size});
  const int64_t layer = node.int_attribute("layer", -1);
  PlanLayer& planned = plan_.layers[static_cast<size_t>(layer)];
  planned.attention = shape;
  add_step(std::make_unique<AttentionStep>(plan_.kernels, static_cast<int>(layer), shape, at), node,
           Space::Tokens);
}

void EntryCompiler::append_cache(const Node& node) {
  cpu::AttentionShape shape = attention_shape(node);
  shape.key_scales = key_scales(node, 2, shape);
  AttentionStep::Operands at;
  at.k = head_input(node, 0, shape.kv_heads * shape.head_size, &at.rotate_k);
  at.v = head_input(node, 1, shape.kv_heads * shape.value_size, nullptr);
  define_view(node.output(), row_input(node, 1), 0, row_input(node, 1).features);
  const auto layer = static_cast<int>(node.int_attribute("layer", -1));
  add_step(std::make_unique<AttentionStep>(plan_.kernels, layer, shape, at), node, Space::Tokens);
}

void EntryCompiler::select_rows(const Node& node) {
  const RowValue x = row_input(node, 0);
  if (x.space != Space::Tokens) unsupported(node, "its input is of selected rows already");
  const Operand y = define(node.output(), Space::Selected, x.features);
  add_step(std::make_unique<SelectRowsStep>(x.at, y), node, Space::Selected);
}

}  // namespace quern::runtime
