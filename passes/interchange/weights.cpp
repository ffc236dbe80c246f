#include "passes/interchange/weights.h"

#include <algorithm>

#include "ir/products.h"
#include "passes/canonicalize/quantized_layout.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

std::optional<QuantScheme> scheme_of(const Value& value) {
  if (const auto* quantized = value.quantized()) return quantized->scheme;
  if (value.packed() && value.packed()->spec().is_quantized()) return value.packed()->spec().scheme;
  return std::nullopt;
}

bool is_kernel(const Value& value) {
  const auto& uses = value.uses();
  return std::any_of(uses.begin(), uses.end(), [](const Use& use) { return is_convolution(*use.node); });
}

bool is_table(const Value& value) {
  for (const Use& use : value.uses()) {
    if (use.node->is("Embedding", kQuernDomain)) return true;
  }
  return false;
}

}  // namespace

int needed_opset(const Value& weight, const InterchangeOptions& options) {
  const std::optional<QuantScheme> scheme = scheme_of(weight);
  // MatMulNBits has no counterpart for convolutions.
  const bool as_qdq =
      options.style == WeightStyle::Qdq || (options.style == WeightStyle::NBits && is_kernel(weight));
  if (!scheme || !as_qdq) return 0;
  if (scheme->granularity == Granularity::Group || is_sub_byte(scheme->code)) return 21;
  return is_integer(scheme->code) ? 13 : 19;
}

WeightStyle faithful_style(const Graph& graph) {
  WeightStyle style = WeightStyle::Plain;
  for (const Value* value : graph.constants()) {
    const std::optional<QuantScheme> scheme = scheme_of(*value);
    if (!scheme) continue;
    if (!is_integer(scheme->code) || is_kernel(*value)) return WeightStyle::Qdq;
    style = WeightStyle::NBits;
  }
  const auto is_static = [](const Node* node) { return node->has_attribute("activation_scale"); };
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), is_static) ? WeightStyle::Qdq : style;
}

const WeightLowering::Weight& WeightLowering::weight_of(const Value* value) {
  const auto [entry, is_new] = weights_.try_emplace(value);
  Weight& weight = entry->second;
  if (!is_new) return weight;
  weight.name = value->name();
  if (!value->is_constant()) {
    throw_error(ErrorCode::Unsupported, "weight '", weight.name, "' is computed when the model runs");
  }
  size_t products = 0;
  for (const Use& use : value->uses()) products += use.node->is("Linear", kQuernDomain) ? 1 : 0;
  weight.shared = is_table(*value) && products > 0;
  weight.is_quantized = scheme_of(*value).has_value();
  if (const Tensor* tensor = value->tensor()) {
    weight.dense = *tensor;
  } else if (const QuantizedTensor* quantized = value->quantized()) {
    weight.codes = *quantized;
  } else if (weight.is_quantized) {
    weight.codes = unpack_quantized(*value->packed());
  } else {
    weight.dense = unpack(*value->packed());
  }
  if (weight.is_quantized && options_.style == WeightStyle::QOperator &&
      is_integer(weight.codes.scheme.code)) {
    weight.codes = in_bytes(weight.codes);
  }
  if (weight.is_quantized && options_.style == WeightStyle::Plain) {
    weight.dense = dequantize(weight.codes);
    weight.codes = {};
    weight.is_quantized = false;
  }
  return weight;
}

void WeightLowering::refuse(const Weight& weight, const std::string& why) const {
  throw_error(ErrorCode::Unsupported, "weight '", weight.name, "' is ", to_string(weight.codes.scheme),
              ", and ", why);
}

Value* WeightLowering::with_bias(Value* product, Value* bias) {
  return bias ? emit_.add("Add", {product, bias}) : product;
}

Value* WeightLowering::dense_matrix(const Weight& weight) {
  Value*& made = matrices_[&weight];
  if (made) return made;
  const bool narrow = weight.dense.dtype() != DType::F32;
  if (weight.shared) {
    Value* table = codes_of(weight).codes;
    made = emit_.transpose(narrow ? emit_.cast(table, DType::F32) : table, {1, 0});
  } else {
    made = emit_.constant(transposed(weight.dense), weight.name);
    if (narrow) made = emit_.cast(made, DType::F32);
  }
  return made;
}

WeightLowering::Codes WeightLowering::codes_of(const Weight& weight) {
  Codes& made = codes_[&weight];
  if (made.codes) return made;
  if (!weight.is_quantized) {
    made.codes = emit_.constant(weight.dense, weight.name);
    return made;
  }
  made.codes = emit_.constant(weight.codes.codes, weight.name + "_quantized");
  // What is computed has the type of the scales.
  made.scales = emit_.constant(weight.codes.scales.cast(DType::F32), weight.name + "_scale");
  const Tensor points = explicit_points(weight.codes);
  if (points.defined()) made.points = emit_.constant(points, weight.name + "_zero_point");
  return made;
}

// [N, K], as a lookup takes it.
Value* WeightLowering::dequantized_table(const Weight& weight) {
  const QuantScheme& scheme = weight.codes.scheme;
  const Codes parts = codes_of(weight);
  Attributes attributes;
  if (scheme.granularity != Granularity::Tensor) attributes["axis"] = int64_t{scheme.axis};
  if (scheme.granularity == Granularity::Group) attributes["block_size"] = scheme.group_size;
  Value*& made = tables_[&weight];
  if (!made) made = emit_.add("DequantizeLinear", {parts.codes, parts.scales, parts.points}, attributes);
  return made;
}

// Codes stand as [K, N], so that a product needs nothing but the DequantizeLinear; a table's are turned.
Value* WeightLowering::dequantized(const Weight& weight) {
  Value*& made = matrices_[&weight];
  if (made) return made;
  const QuantScheme& scheme = weight.codes.scheme;
  Codes parts;
  // Runtimes turn integers, not 8-bit floats.
  if (weight.shared && !is_integer(scheme.code))
    return made = emit_.transpose(dequantized_table(weight), {1, 0});
  if (weight.shared) {
    parts = codes_of(weight);
    parts.codes = emit_.transpose(parts.codes, {1, 0});
    if (scheme.granularity == Granularity::Group) {
      parts.scales = emit_.transpose(parts.scales, {1, 0});
      if (parts.points) parts.points = emit_.transpose(parts.points, {1, 0});
    }
  } else {
    const QuantizedTensor turned = transposed(weight.codes);
    parts.codes = emit_.constant(turned.codes, weight.name + "_quantized");
    parts.scales = emit_.constant(turned.scales.cast(DType::F32), weight.name + "_scale");
    const Tensor points = explicit_points(turned);
    if (points.defined()) parts.points = emit_.constant(points, weight.name + "_zero_point");
  }
  Attributes attributes;
  if (scheme.granularity != Granularity::Tensor) attributes["axis"] = int64_t{1} - scheme.axis;
  if (scheme.granularity == Granularity::Group) attributes["block_size"] = scheme.group_size;
  return made = emit_.add("DequantizeLinear", {parts.codes, parts.scales, parts.points}, attributes);
}

// `table`: whether a lookup asks; what it alone uses is stored in its shape.
WeightLowering::Blocks WeightLowering::blocks_of(const Weight& weight, bool table) {
  Blocks& made = blocks_[&weight];
  if (made.codes) return made;
  const std::optional<BlockCodes> blocks = to_blocks(weight.codes);
  if (!blocks) {
    refuse(weight,
           "MatMulNBits takes integers with scales by row, or by groups of a row of a multiple of 16; "
           "export it with --style plain or qdq");
  }
  made.bits = blocks->bits;
  made.size = blocks->block;
  const Shape& shape = blocks->codes.shape();
  made.codes = emit_.constant(
      table && !weight.shared ? blocks->codes.reshaped({shape[0], shape[1] * shape[2]}) : blocks->codes,
      weight.name + concat("_Q", blocks->bits));
  made.scales = emit_.constant(blocks->scales, weight.name + "_scales");
  if (blocks->points.defined()) made.points = emit_.constant(blocks->points, weight.name + "_zero_points");
  return made;
}

Value* WeightLowering::block_product(const Node& node, const Weight& weight) {
  const Blocks blocks = blocks_of(weight, false);
  Attributes attributes = {{"N", weight.codes.shape()[0]},
                           {"K", weight.codes.shape()[1]},
                           {"bits", int64_t{blocks.bits}},
                           {"block_size", blocks.size}};
  if (options_.accuracy_level != 0) attributes["accuracy_level"] = int64_t{options_.accuracy_level};
  return emit_.add_microsoft("MatMulNBits", {node.input(0), blocks.codes, blocks.scales, blocks.points},
                             attributes);
}

// The largest magnitude becomes 127; codes are written without sign. `largest`: 1 where x has an axis that
// shares it.
WeightLowering::Dynamic WeightLowering::by_magnitude(Value* x, Value* largest) {
  constexpr float kLargestCode = 127, kMiddle = 128;
  constexpr float kSmallest = 1e-30F;  // keeps zeros from being divided by zero
  Dynamic made;
  made.scale =
      emit_.add("Div", {emit_.add("Max", {largest, emit_.scalar(kSmallest)}), emit_.scalar(kLargestCode)});
  Value* rounded = emit_.add("Round", {emit_.add("Div", {x, made.scale})});
  made.codes = emit_.cast(emit_.add("Add", {rounded, emit_.scalar(kMiddle)}), DType::U8);
  made.point = emit_.constant(Tensor::scalar(static_cast<uint8_t>(kMiddle)), "activations.zero_point");
  return made;
}

WeightLowering::Dynamic WeightLowering::by_token(Value* x) {
  return by_magnitude(x, emit_.reduce("ReduceMax", emit_.add("Abs", {x})));
}

// DynamicQuantizeLinear's formula, a token being the tensor. MatMulInteger takes one zero point for all, so
// that what these add is taken off behind it.
WeightLowering::Dynamic WeightLowering::by_token_asymmetric(Value* x) {
  constexpr float kLargestCode = 255, kSmallest = 1e-30F;
  Dynamic made;
  Value* zero = emit_.scalar(0);
  Value* highest = emit_.add("Max", {emit_.reduce("ReduceMax", x), zero});
  Value* lowest = emit_.add("Min", {emit_.reduce("ReduceMin", x), zero});
  Value* range = emit_.add("Max", {emit_.add("Sub", {highest, lowest}), emit_.scalar(kSmallest)});
  made.scale = emit_.add("Div", {range, emit_.scalar(kLargestCode)});
  made.shift = emit_.add("Round", {emit_.add("Neg", {emit_.add("Div", {lowest, made.scale})})});
  Value* rounded = emit_.add("Add", {emit_.add("Round", {emit_.add("Div", {x, made.scale})}), made.shift});
  made.codes = emit_.cast(emit_.add("Clip", {rounded, zero, emit_.scalar(kLargestCode)}), DType::U8);
  return made;
}

// By the scale of a calibration: codes of the input from activation_low to activation_high, which are what is
// left of them when the zero point is taken off.
WeightLowering::Dynamic WeightLowering::static_constants(const Node& node, bool as_unsigned) {
  const int64_t low = node.int_attribute("activation_low", -127);
  const int64_t high = node.int_attribute("activation_high", 127);
  const bool is_signed = low >= -128 && high <= 127 && !as_unsigned;
  const int64_t point = is_signed ? 0 : low >= -128 && high <= 127 ? 128 : -low;
  if (point < 0 || point > 255)
    throw_error(ErrorCode::Unsupported,
                "it rounds its input to codes of more than 8 bits, and other runtimes take 8");
  Dynamic made;
  made.scale = emit_.scalar(node.float_attribute("activation_scale", 0));
  made.point = emit_.constant(
      is_signed ? Tensor::scalar(static_cast<int8_t>(point)) : Tensor::scalar(static_cast<uint8_t>(point)),
      "activations.zero_point");
  return made;
}

WeightLowering::Dynamic WeightLowering::static_codes(const Node& node, bool as_unsigned) {
  Dynamic made = static_constants(node, as_unsigned);
  made.codes = emit_.add("QuantizeLinear", {node.input(0), made.scale, made.point});
  return made;
}

WeightLowering::Dynamic WeightLowering::dynamic(Value* x, const std::string& kind) {
  if (kind == "int8" || kind == "int8-token") return by_token(x);
  if (kind == "uint8-token") return by_token_asymmetric(x);
  if (!kind.empty())
    throw_error(ErrorCode::Unsupported, "it rounds its input as '", kind,
                "', which other runtimes have no form for");
  const Node* node = emit_.node("DynamicQuantizeLinear", {x}, {}, 3);
  return {node->output(0), node->output(1), node->output(2)};
}

// Products of the same input share its codes.
WeightLowering::Dynamic WeightLowering::coded_input(const Node& node) {
  if (const auto ready = ready_codes_.find(node.input(0)); ready != ready_codes_.end()) return ready->second;
  std::string kind = node.string_attribute("activations", "");
  std::string key = kind;
  if (kind == "static") {
    key = concat(kind, node.float_attribute("activation_scale", 0), " ",
                 node.int_attribute("activation_low", 0), " ", node.int_attribute("activation_high", 0));
  }
  Dynamic& made = dynamics_[{emit_.batch().resolve(node.input(0)), key}];
  if (made.codes == nullptr)
    made = kind == "static" ? static_codes(node, true) : dynamic(node.input(0), kind);
  return made;
}

// Of codes less their zero points, f32 [N].
Value* WeightLowering::column_sums(const Weight& weight, const Tensor& codes, const Tensor& points) {
  Value*& made = column_sums_[&weight];
  if (made) return made;
  const int64_t rows = codes.dim(0), columns = codes.dim(1);
  Tensor sums = Tensor::zeros(DType::F32, {columns});
  for (int64_t n = 0; n < columns; ++n) {
    int64_t sum = 0;
    for (int64_t k = 0; k < rows; ++k)
      sum += codes.int_at(k * columns + n) - points.int_at(points.size() == 1 ? 0 : n);
    sums.set(n, static_cast<double>(sum));
  }
  return made = emit_.constant(std::move(sums), weight.name + "_sums");
}

// Both operands are u8: of u8 by s8 some processors' kernels saturate their sums.
Value* WeightLowering::integer_product(const Node& node, const Weight& weight) {
  Codes& columns = integer_codes_[&weight];
  if (columns.codes == nullptr) {
    const std::optional<ColumnCodes> codes = to_columns(weight.codes);
    if (!codes) {
      refuse(weight,
             "MatMulInteger takes integers with one scale, or one per output; convert with "
             "--granularity channel, or export it with --style qdq or nbits");
    }
    columns.codes = emit_.constant(codes->codes, weight.name + "_quantized");
    columns.scales = emit_.constant(codes->scales, weight.name + "_scale");
    columns.points = emit_.constant(codes->points, weight.name + "_zero_point");
  }
  const Dynamic x = coded_input(node);
  if (Value* coded = coded_product(node, x, columns)) return coded;
  Value* sum = emit_.add("MatMulInteger", {x.codes, columns.codes, x.point, columns.points});
  sum = emit_.cast(sum, DType::F32);
  if (x.shift) {
    const Value* codes = columns.codes;
    const Value* points = columns.points;
    sum = emit_.add(
        "Sub", {sum, emit_.add("Mul", {x.shift, column_sums(weight, *codes->tensor(), *points->tensor())})});
  }
  return with_bias(emit_.add("Mul", {sum, emit_.add("Mul", {x.scale, columns.scales})}), node.input(2));
}

// In the style qdq: an input that calibration gave a scale passes through its codes.
Value* WeightLowering::rounded_input(const Node& node) {
  if (node.string_attribute("activations", "") != "static") return node.input(0);
  Value*& made =
      rounded_[{emit_.batch().resolve(node.input(0)), node.float_attribute("activation_scale", 0)}];
  if (made) return made;
  const Dynamic codes = static_codes(node, false);
  return made = emit_.add("DequantizeLinear", {codes.codes, codes.scale, codes.point});
}

Value* WeightLowering::linear(const Node& node) {
  const Weight& weight = weight_of(node.input(1));
  Value* product = nullptr;
  const bool adds_bias = weight.is_quantized && options_.style == WeightStyle::QOperator;
  if (!weight.is_quantized) {
    product = emit_.add("MatMul", {node.input(0), dense_matrix(weight)});
  } else if (options_.style == WeightStyle::NBits) {
    product = block_product(node, weight);
  } else if (options_.style == WeightStyle::QOperator) {
    product = integer_product(node, weight);
  } else {
    product = emit_.add("MatMul", {rounded_input(node), dequantized(weight)});
  }
  return adds_bias ? product : with_bias(product, node.input(2));
}

Value* WeightLowering::block_lookup(const Weight& weight, Value* ids) {
  const Blocks blocks = blocks_of(weight, true);
  const int64_t cols = weight.codes.shape()[1];
  const int64_t padded = (cols + blocks.size - 1) / blocks.size * blocks.size;
  Value* codes = weight.shared
                     ? emit_.reshape(blocks.codes, {weight.codes.shape()[0], padded * blocks.bits / 8})
                     : blocks.codes;
  Value* rows = emit_.add_microsoft("GatherBlockQuantized", {codes, ids, blocks.scales, blocks.points},
                                    {{"bits", int64_t{blocks.bits}},
                                     {"block_size", blocks.size},
                                     {"gather_axis", int64_t{0}},
                                     {"quantize_axis", int64_t{1}}});
  return padded == cols ? rows : emit_.slice(rows, -1, 0, cols);
}

// Only the rows that are asked for are dequantized, except codes of less than a byte, and by groups: runtimes
// fuse that themselves.
Value* WeightLowering::code_lookup(const Weight& weight, Value* ids) {
  const QuantScheme& scheme = weight.codes.scheme;
  const Codes parts = codes_of(weight);
  const Attributes rows = {{"axis", int64_t{0}}};
  const bool by_rows = scheme.granularity == Granularity::Channel && scheme.axis == 0;
  if (is_sub_byte(scheme.code) || !is_integer(scheme.code) ||
      (!by_rows && scheme.granularity != Granularity::Tensor)) {
    if (emit_.opset() < 21 && (is_sub_byte(scheme.code) || scheme.granularity == Granularity::Group)) {
      refuse(weight,
             "DequantizeLinear takes such from version 21 of ai.onnx on; export it with --style qdq, nbits "
             "or plain");
    }
    return emit_.add("Gather", {dequantized_table(weight), ids}, rows);
  }
  Value* codes = emit_.add("Gather", {parts.codes, ids}, rows);
  if (!by_rows) return emit_.add("DequantizeLinear", {codes, parts.scales, parts.points});
  const auto column = [&](Value* vector) {
    return emit_.add("Gather", {emit_.reshape(vector, {-1, 1}), ids}, rows);
  };
  Value* values = emit_.cast(codes, DType::F32);
  if (parts.points) values = emit_.add("Sub", {values, emit_.cast(column(parts.points), DType::F32)});
  return emit_.add("Mul", {values, column(parts.scales)});
}

Value* WeightLowering::embedding(const Node& node) {
  const Weight& weight = weight_of(node.input(0));
  Value* ids = node.input(1);
  if (weight.is_quantized && options_.style == WeightStyle::NBits) return block_lookup(weight, ids);
  if (weight.is_quantized) return code_lookup(weight, ids);
  Value* rows = emit_.add("Gather", {codes_of(weight).codes, ids}, {{"axis", int64_t{0}}});
  return weight.dense.dtype() == DType::F32 ? rows : emit_.cast(rows, DType::F32);
}

}  // namespace quern::passes
