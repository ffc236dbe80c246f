#include "ir/attribute_types.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "ir/schema.h"

namespace quern {
namespace {

// In the order of the alternatives of Attribute.
enum Kind : uint8_t { kInt, kFloat, kString, kInts, kFloats, kStrings, kTensor, kGraph, kType, kUnknown };

constexpr std::array<std::string_view, kUnknown> kKindNames = {
    "an int",   "a float", "a string", "a list of ints", "a list of floats", "a list of strings",
    "a tensor", "a graph", "a type"};

// In ai.onnx, versions 1 to 25, a name has one type whatever the operator, but for the names in kByOperator;
// com.microsoft keeps to these and adds its own. Each list sorted.
constexpr std::string_view kIntNames[] = {"align_corners",
                                          "allowzero",
                                          "antialias",
                                          "axis",
                                          "batch_axis",
                                          "batch_dims",
                                          "bits",
                                          "block_size",
                                          "blocksize",
                                          "broadcast",
                                          "causal",
                                          "ceil_mode",
                                          "center_point_box",
                                          "channels_last",
                                          "chunk_size",
                                          "count_include_pad",
                                          "detect_negative",
                                          "detect_positive",
                                          "do_rotary",
                                          "dtype",
                                          "end",
                                          "exclude_outside",
                                          "exclusive",
                                          "expert_weight_bits",
                                          "fmod",
                                          "gather_axis",
                                          "group",
                                          "hidden_size",
                                          "ignore_index",
                                          "input_forget",
                                          "interleaved",
                                          "inverse",
                                          "is_case_sensitive",
                                          "is_causal",
                                          "is_packed_batching",
                                          "is_test",
                                          "k",
                                          "keepdims",
                                          "kv_num_heads",
                                          "largest",
                                          "layout",
                                          "left_window_size",
                                          "linear_before_reset",
                                          "local_window_size",
                                          "mask_index_type",
                                          "max_gram_length",
                                          "max_skip_count",
                                          "maxsplit",
                                          "min_gram_length",
                                          "new_axis",
                                          "noop_with_empty_axes",
                                          "normalize_routing_weights",
                                          "num_groups",
                                          "num_heads",
                                          "num_outputs",
                                          "num_scan_inputs",
                                          "offset_group",
                                          "onesided",
                                          "output_datatype",
                                          "output_dtype",
                                          "output_height",
                                          "output_sequence",
                                          "output_width",
                                          "periodic",
                                          "precision",
                                          "q_num_heads",
                                          "qk_matmul_output_mode",
                                          "qk_output",
                                          "quantize_axis",
                                          "reverse",
                                          "right_window_size",
                                          "rotary_embedding_dim",
                                          "rotary_interleaved",
                                          "sample_size",
                                          "sampling_ratio",
                                          "saturate",
                                          "select_last_index",
                                          "size",
                                          "sliding_window_cache",
                                          "smooth_softmax",
                                          "softmax_precision",
                                          "sorted",
                                          "spatial",
                                          "start",
                                          "stash_type",
                                          "storage_order",
                                          "time_axis",
                                          "training_mode",
                                          "transA",
                                          "transB",
                                          "transBatchA",
                                          "transBatchB",
                                          "unidirectional",
                                          "upper",
                                          "value_int",
                                          "weight_prepacked"};
constexpr std::string_view kFloatNames[] = {"alpha",
                                            "beta",
                                            "bias",
                                            "clip",
                                            "cubic_coeff_a",
                                            "epsilon",
                                            "extrapolation_value",
                                            "gamma",
                                            "height_scale",
                                            "high",
                                            "lambd",
                                            "low",
                                            "mask_filter_value",
                                            "max",
                                            "mean",
                                            "min",
                                            "momentum",
                                            "qk_norm_epsilon",
                                            "ratio",
                                            "scale",
                                            "softcap",
                                            "spatial_scale",
                                            "swiglu_limit",
                                            "value_float",
                                            "width_scale"};
constexpr std::string_view kStringNames[] = {"activation",
                                             "activation_type",
                                             "approximate",
                                             "auto_pad",
                                             "case_change_action",
                                             "coordinate_transformation_mode",
                                             "delimiter",
                                             "direction",
                                             "equation",
                                             "k_quant_type",
                                             "keep_aspect_ratio_policy",
                                             "locale",
                                             "mode",
                                             "nearest_mode",
                                             "padding_mode",
                                             "pattern",
                                             "pixel_format",
                                             "reduction",
                                             "round_mode",
                                             "update_rule",
                                             "v_quant_type",
                                             "value_string"};
constexpr std::string_view kIntLists[] = {"axes",
                                          "consumed_inputs",
                                          "dilations",
                                          "directions",
                                          "ends",
                                          "kernel_shape",
                                          "ngram_counts",
                                          "ngram_indexes",
                                          "output_padding",
                                          "output_shape",
                                          "paddings",
                                          "pads",
                                          "perm",
                                          "pool_int64s",
                                          "pooled_shape",
                                          "qkv_hidden_sizes",
                                          "scan_input_axes",
                                          "scan_input_directions",
                                          "scan_output_axes",
                                          "scan_output_directions",
                                          "shape",
                                          "split",
                                          "starts",
                                          "strides",
                                          "value_ints"};
constexpr std::string_view kFloatLists[] = {"activation_alpha", "activation_beta", "scales", "value_floats",
                                            "weights"};
constexpr std::string_view kStringLists[] = {"activations", "pool_strings", "stopwords", "value_strings"};
constexpr std::string_view kGraphs[] = {"body", "else_branch", "then_branch"};

struct ByOperator {
  std::string_view domain, op, name;
  Kind kind;
};
constexpr ByOperator kByOperator[] = {
    {kOnnxDomain, "BitCast", "to", kInt},
    {kOnnxDomain, "CastLike", "to", kInt},
    {kOnnxDomain, "ConstantOfShape", "value", kTensor},
    {kOnnxDomain, "Dropout", "seed", kInt},
    {kOnnxDomain, "RandomNormal", "seed", kFloat},
    {kOnnxDomain, "RandomNormalLike", "seed", kFloat},
    {kOnnxDomain, "RandomUniform", "seed", kFloat},
    {kOnnxDomain, "RandomUniformLike", "seed", kFloat},
    {kOnnxDomain, "LpNormalization", "p", kInt},
    {kOnnxDomain, "Optional", "type", kType},
    {kMicrosoftDomain, "MatMulBnb4", "K", kInt},
    {kMicrosoftDomain, "MatMulBnb4", "N", kInt},
    {kMicrosoftDomain, "MatMulBnb4", "quant_type", kInt},
    {kMicrosoftDomain, "MatMulNBits", "K", kInt},
    {kMicrosoftDomain, "MatMulNBits", "N", kInt},
    {kMicrosoftDomain, "MoE", "activation_alpha", kFloat},
    {kMicrosoftDomain, "MoE", "activation_beta", kFloat},
    {kMicrosoftDomain, "QMoE", "activation_alpha", kFloat},
    {kMicrosoftDomain, "QMoE", "activation_beta", kFloat},
    {kMicrosoftDomain, "QMoE", "swiglu_fusion", kInt},
    {kMicrosoftDomain, "MoE", "swiglu_fusion", kInt},
    {kQuernDomain, "CachedAttention", "head_size", kInt},
    {kQuernDomain, "CachedAttention", "heads", kInt},
    {kQuernDomain, "CachedAttention", "kv_heads", kInt},
    {kQuernDomain, "CachedAttention", "layer", kInt},
    {kQuernDomain, "CachedAttention", "scale", kFloat},
    {kQuernDomain, "CachedAttention", "softcap", kFloat},
    {kQuernDomain, "CachedAttention", "value_head_size", kInt},
    {kQuernDomain, "CachedAttention", "window", kInt},
    {kQuernDomain, "Convolution", "activation_high", kInt},
    {kQuernDomain, "Convolution", "activation_low", kInt},
    {kQuernDomain, "Convolution", "activation_scale", kFloat},
    {kQuernDomain, "Convolution", "activations", kString},
    {kQuernDomain, "Convolution", "auto_pad", kString},
    {kQuernDomain, "Convolution", "dilations", kInts},
    {kQuernDomain, "Convolution", "group", kInt},
    {kQuernDomain, "Convolution", "kernel_shape", kInts},
    {kQuernDomain, "Convolution", "pads", kInts},
    {kQuernDomain, "Convolution", "static_activations", kString},
    {kQuernDomain, "Convolution", "strides", kInts},
    {kQuernDomain, "ConvolutionTranspose", "activation_high", kInt},
    {kQuernDomain, "ConvolutionTranspose", "activation_low", kInt},
    {kQuernDomain, "ConvolutionTranspose", "activation_scale", kFloat},
    {kQuernDomain, "ConvolutionTranspose", "activations", kString},
    {kQuernDomain, "ConvolutionTranspose", "auto_pad", kString},
    {kQuernDomain, "ConvolutionTranspose", "dilations", kInts},
    {kQuernDomain, "ConvolutionTranspose", "group", kInt},
    {kQuernDomain, "ConvolutionTranspose", "kernel_shape", kInts},
    {kQuernDomain, "ConvolutionTranspose", "output_padding", kInts},
    {kQuernDomain, "ConvolutionTranspose", "output_shape", kInts},
    {kQuernDomain, "ConvolutionTranspose", "pads", kInts},
    {kQuernDomain, "ConvolutionTranspose", "static_activations", kString},
    {kQuernDomain, "ConvolutionTranspose", "strides", kInts},
    {kQuernDomain, "Linear", "activation_high", kInt},
    {kQuernDomain, "Linear", "activation_low", kInt},
    {kQuernDomain, "Linear", "activation_scale", kFloat},
    {kQuernDomain, "Linear", "activations", kString},
    {kQuernDomain, "Linear", "scaled", kInt},
    {kQuernDomain, "Linear", "static_activations", kString},
    {kQuernDomain, "QuantizeWeight", "bits", kInt},
    {kQuernDomain, "QuantizeWeight", "clip", kString},
    {kQuernDomain, "QuantizeWeight", "code", kString},
    {kQuernDomain, "QuantizeWeight", "granularity", kString},
    {kQuernDomain, "QuantizeWeight", "group_size", kInt},
    {kQuernDomain, "QuantizeWeight", "method", kString},
    {kQuernDomain, "QuantizeWeight", "range", kString},
    {kQuernDomain, "QuantizeWeight", "scales", kString},
    {kQuernDomain, "QuantizeWeight", "symmetric", kInt},
    {kQuernDomain, "Rotary", "head_size", kInt},
    {kQuernDomain, "Rotary", "interleaved", kInt},
    {kQuernDomain, "Rotary", "long_scale", kFloat},
    {kQuernDomain, "Rotary", "original_context", kInt},
    {kQuernDomain, "Rotary", "scale", kFloat},
};

template <size_t N>
bool holds(const std::string_view (&sorted)[N], std::string_view name) {
  return std::binary_search(std::begin(sorted), std::end(sorted), name);
}

Kind kind_of(const Node& node, std::string_view name) {
  for (const ByOperator& row : kByOperator) {
    if (row.name == name && row.op == node.op() && row.domain == node.domain()) return row.kind;
  }
  if (node.domain() != kOnnxDomain && node.domain() != kMicrosoftDomain) return kUnknown;
  // The name of a type before version 6.
  if (name == "to" && node.is("Cast") && node.opset() >= 6) return kInt;
  if (holds(kIntNames, name)) return kInt;
  if (holds(kFloatNames, name)) return kFloat;
  if (holds(kStringNames, name)) return kString;
  if (holds(kIntLists, name)) return kInts;
  if (holds(kFloatLists, name)) return kFloats;
  if (holds(kStringLists, name)) return kStrings;
  if (holds(kGraphs, name)) return kGraph;
  return kUnknown;
}

}  // namespace

void check_attribute_types(const Node& node) {
  static_assert(std::variant_size_v<Attribute> == kUnknown);
  if (node.attributes().empty() || SchemaTable::instance().find(node) == nullptr) return;
  for (const auto& [name, attribute] : node.attributes()) {
    const Kind expected = kind_of(node, name);
    if (expected == kUnknown || attribute.index() == static_cast<size_t>(expected)) continue;
    throw_error(ErrorCode::InvalidModel, describe(node), ": attribute '", name, "' is ",
                kKindNames[attribute.index()], ", and the operator takes ", kKindNames[expected]);
  }
}

}  // namespace quern
