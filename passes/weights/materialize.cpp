#include "passes/weights/materialize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "ir/rewriter.h"
#include "ir/schema.h"
#include "ir/weight_ops.h"
#include "passes/quantize/calibrate_weights.h"
#include "passes/weights/constant_expressions.h"
#include "passes/weights/weight_view.h"
#include "runtime/interpreter.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

// Of the floats of a block of rows.
constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kSmallBytes = int64_t{1} << 20;

Constant evaluate_whole(const Value& value) {
  const Value* wanted = &value;
  const runtime::RuntimeValue result = runtime::evaluate({&wanted, 1}).front();
  if (const QuantizedTensor* quantized = result.quantized()) return *quantized;
  if (const PackedTensor* packed = result.packed()) return *packed;
  return result.dense();
}

// PackWeight(QuantizeWeight(source)), with either or both.
struct Decision {
  bool pack = false;
  std::optional<QuantizeOptions> quantize;
  std::vector<float> importance;  // what quantize->importance shows
  const Value* source = nullptr;
};

Decision read_decision(const Value& value) {
  Decision decision{.source = &value};
  const auto made_by = [&](std::string_view op) {
    const Node* producer = decision.source->producer();
    return producer != nullptr && producer->is(op, kQuernDomain);
  };
  if (made_by("PackWeight")) {
    decision.pack = true;
    decision.source = decision.source->producer()->input(0);
  }
  if (made_by("QuantizeWeight")) {
    const Node& node = *decision.source->producer();
    if (node.has_attribute(kCalibrateAttribute)) {
      throw_error(
          ErrorCode::InvalidArgument, "'", weight_name(value),
          "' is to be quantized by what calibration shows, and nothing has calibrated it; run the pass "
          "calibrate-weights first");
    }
    decision.quantize = quantize_options(node);
    if (const Value* importance = node.input(1)) {
      if (importance->tensor() == nullptr) {
        throw_error(ErrorCode::InvalidModel, describe(node), ": the importance is no constant");
      }
      decision.importance = importance->tensor()->to_floats();
    }
    decision.source = node.input(0);
  }
  return decision;
}

// Appends the bytes of `part` behind what `whole` has got already.
void append(Tensor& whole, int64_t& used, const Tensor& part) {
  if (!part.defined()) return;
  std::memcpy(whole.mutable_bytes() + used, part.bytes(), static_cast<size_t>(part.byte_size()));
  used += part.byte_size();
}

class WeightBuilder {
 public:
  WeightBuilder(const Decision& decision, const WeightView& view)
      : decision_(decision), view_(view), dtype_(decision.source->dtype()) {
    // Sixteen rows are a tile of packed weights, and whole bytes of 4-bit codes and zero points.
    constexpr int64_t kGrain = 16;
    const int64_t row_bytes = 4 * std::max<int64_t>(1, view.cols());
    block_ = std::max(kGrain, kBlockBytes / row_bytes / kGrain * kGrain);
    block_ = std::min(block_, (view.rows() + kGrain - 1) / kGrain * kGrain);
    floats_.resize(static_cast<size_t>(block_ * view.cols()));
  }

  Constant build() {
    if (decision_.quantize) {
      find_range();
      return decision_.pack ? Constant(build_packed()) : Constant(build_quantized());
    }
    return decision_.pack ? Constant(build_packed()) : Constant(build_plain());
  }

  QuantizeError error;

 private:
  // body(first row, rows as floats) for all blocks.
  template <class Body>
  void for_blocks(const WeightView& view, const Body& body) {
    for (int64_t first = 0; first < view.rows(); first += block_) {
      const int64_t count = std::min(block_, view.rows() - first);
      const std::span<float> block(floats_.data(), static_cast<size_t>(count * view.cols()));
      view.read_rows(first, count, block);
      body(first, block);
    }
  }

  void find_range() {
    if (decision_.quantize->scheme.granularity != Granularity::Tensor) return;
    for_blocks(view_, [&](int64_t first, std::span<float> block) {
      range_.add(range_of(block, first * view_.cols()));
    });
  }

  QuantizedTensor quantize_block(int64_t first, std::span<const float> block) {
    return quantize_rows(block, view_.cols(), *decision_.quantize, range_, &error, first);
  }

  // A block of a weight that is stored as floats, in its dtype.
  Tensor float_block(std::span<const float> block) {
    const Shape shape = {static_cast<int64_t>(block.size()) / std::max<int64_t>(1, view_.cols()),
                         view_.cols()};
    const Tensor floats =
        Tensor::view(DType::F32, shape, nullptr, reinterpret_cast<const std::byte*>(block.data()),
                     static_cast<int64_t>(block.size_bytes()));
    if (dtype_ == DType::F32) return floats;
    Tensor rounded = floats.cast(dtype_);
    if (view_.precision() != view_.storage().dtype()) add_rounding_error(block, rounded);
    return rounded;
  }

  void add_rounding_error(std::span<const float> block, const Tensor& rounded) {
    const std::vector<float> after = rounded.to_floats();
    for (size_t i = 0; i < after.size(); ++i) {
      const double before = static_cast<double>(block[i]);
      const double difference = before - static_cast<double>(after[i]);
      error.add({before * before, difference * difference, static_cast<float>(std::fabs(difference))});
    }
  }

  PackedTensor build_packed() {
    const auto spec_for = [&](int64_t rows) {
      const Shape shape = {rows, view_.cols()};
      return decision_.quantize ? PackedSpec::for_quantized(shape, decision_.quantize->scheme,
                                                            decision_.quantize->scale_dtype)
                                : PackedSpec::for_float(shape, dtype_);
    };
    const PackedSpec whole = spec_for(view_.rows());
    Tensor bytes = Tensor::zeros(DType::U8, {whole.byte_size()});
    std::byte* out = bytes.mutable_bytes();
    // Codes are of the rounded numbers; a float weight is rounded here, where the error is counted.
    for_blocks(decision_.quantize ? view_ : view_.without_rounding(),
               [&](int64_t first, std::span<float> block) {
                 const PackedSpec spec = spec_for(static_cast<int64_t>(block.size()) / view_.cols());
                 const std::span<std::byte> part(out + first / PackedSpec::kTile * spec.tile_stride(),
                                                 static_cast<size_t>(spec.byte_size()));
                 if (decision_.quantize) {
                   pack_tiles(spec, quantize_block(first, block), 0, spec.tiles(), part);
                 } else {
                   pack_tiles(spec, float_block(block), 0, spec.tiles(), part);
                 }
               });
    return {whole, std::move(bytes)};
  }

  QuantizedTensor build_quantized() {
    QuantizedTensor whole = quantize_rows({}, view_.cols(), *decision_.quantize, range_);
    const QuantScheme& scheme = whole.scheme;
    whole.codes = Tensor::zeros(scheme.code, {view_.rows(), view_.cols()});
    if (scheme.granularity != Granularity::Tensor) {
      Shape shape = whole.scales.shape();
      shape[0] = view_.rows();
      whole.scales = Tensor::zeros(whole.scales.dtype(), shape);
      if (!scheme.symmetric) whole.zero_points = Tensor::zeros(scheme.code, shape);
    }
    int64_t codes = 0;
    int64_t scales = 0;
    int64_t zero_points = 0;
    for_blocks(view_, [&](int64_t first, std::span<float> block) {
      const QuantizedTensor part = quantize_block(first, block);
      append(whole.codes, codes, part.codes);
      if (scheme.granularity == Granularity::Tensor) return;
      append(whole.scales, scales, part.scales);
      append(whole.zero_points, zero_points, part.zero_points);
    });
    return whole;
  }

  Tensor build_plain() {
    Tensor whole = Tensor::zeros(dtype_, view_.shape());
    int64_t used = 0;
    for_blocks(view_.without_rounding(),
               [&](int64_t, std::span<float> block) { append(whole, used, float_block(block)); });
    return whole;
  }

  const Decision& decision_;
  const WeightView& view_;
  DType dtype_;
  int64_t block_ = 0;
  std::vector<float> floats_;
  ValueRange range_;
};

std::string format_of(const Constant& constant) {
  if (const auto* tensor = std::get_if<Tensor>(&constant)) return std::string(to_string(tensor->dtype()));
  if (const auto* quantized = std::get_if<QuantizedTensor>(&constant)) return to_string(quantized->scheme);
  const PackedSpec& spec = std::get<PackedTensor>(constant).spec();
  return spec.is_quantized() ? to_string(spec.scheme) : std::string(to_string(spec.dtype()));
}

}  // namespace

double WeightResult::bits_per_weight() const {
  const int64_t count = element_count(shape);
  return count == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(count);
}

nlohmann::json to_json(const WeightResult& result) {
  const double sqnr = result.error.sqnr_db();
  return {{"name", result.name},
          {"format", result.format},
          {"shape", result.shape},
          {"bytes", result.bytes},
          {"bits_per_weight", result.bits_per_weight()},
          {"sqnr_db", std::isfinite(sqnr) ? nlohmann::json(sqnr) : nlohmann::json(nullptr)},
          {"max_error", result.error.max_error}};
}

namespace {

Constant compute_weight(const Value& value, const std::string& name, WeightResult* result) {
  Decision decision = read_decision(value);
  if (decision.quantize) decision.quantize->importance = decision.importance;
  std::optional<WeightView> view = WeightView::of(*decision.source);
  const bool is_weight = decision.pack || decision.quantize || (view && view->shape().size() == 2);
  if (!is_weight) return evaluate_whole(value);
  if (!view) {
    Constant source = evaluate_whole(*decision.source);
    // Quantized anew: the error is that of the second time.
    if (const auto* quantized = std::get_if<QuantizedTensor>(&source); quantized && decision.quantize) {
      source = dequantize(*quantized);
    }
    const Tensor* tensor = std::get_if<Tensor>(&source);
    // Quantized constants that only have to be packed, for one.
    if (tensor == nullptr || tensor->rank() != 2 || !is_floating(tensor->dtype())) {
      Constant constant = evaluate_whole(value);
      if (result != nullptr) {
        *result = {.name = name,
                   .format = format_of(constant),
                   .shape = *as_constant(type_of(constant).shape.value()),
                   .bytes = byte_size(constant)};
      }
      return constant;
    }
    view = WeightView(*tensor);
  }
  WeightBuilder builder(decision, *view);
  Constant constant = builder.build();
  if (result != nullptr) {
    *result = {.name = name,
               .format = format_of(constant),
               .shape = view->shape(),
               .bytes = byte_size(constant),
               .error = builder.error};
  }
  return constant;
}

}  // namespace

Constant materialize(const Value& value, WeightResult* result) {
  if (value.is_constant()) return *value.constant();
  const std::string name = weight_name(value);
  return with_context("computing weight '" + name + "'", [&] {
    try {
      return compute_weight(value, name, result);
    } catch (const std::bad_alloc&) {
      throw_error(ErrorCode::OutOfMemory, "there is no memory for it");
    }
  });
}

bool is_worth_storing(const Value& value) {
  const Node* producer = value.producer();
  if (producer != nullptr && producer->domain() == kQuernDomain) return true;
  // A constant is a tensor: sequences and optionals of constants are made when the graph runs.
  if (value.type().kind != ValueType::Kind::Tensor || !value.has_shape()) return false;
  const auto shape = as_constant(value.shape());
  if (!shape) return false;
  int64_t source_bytes = 0;
  for (const Value* source : source_constants(const_cast<Value*>(&value)))
    source_bytes += byte_size(*source->constant());
  return quern::byte_size(value.dtype(), element_count(*shape)) <= std::max(kSmallBytes, 2 * source_bytes);
}

std::vector<StoredExpression> stored_expressions(const Graph& graph) {
  std::vector<StoredExpression> stored;
  std::map<std::string, int> parts;
  const ConstantExpressions expressions(graph);
  for (Value* root : expressions.roots()) {
    if (!is_worth_storing(*root)) continue;
    stored.push_back({root, weight_name(*root)});
    ++parts[stored.back().name];
  }
  std::map<std::string, int> next;
  for (StoredExpression& each : stored) {
    if (parts[each.name] > 1) each.name += concat(".", next[each.name]++);
  }
  return stored;
}

Value* replace_by_constant(Graph& graph, Value* expression, Constant constant, const std::string& name) {
  Rewriter rewriter(graph);
  Value* stored = rewriter.add_constant(std::move(constant));
  rewriter.replace(expression, stored);
  rewriter.commit();
  // Only now is the name free, if nothing else uses the weight.
  Rewriter renamer(graph);
  renamer.rename(stored, name);
  renamer.commit();
  return stored;
}

MaterializeWeights::MaterializeWeights()
    : Pass("materialize-weights", "compute quantized and packed weights, and all else that constants give") {}

PassReport MaterializeWeights::run(Graph& graph, PassContext& context) {
  PassReport report;
  for (Graph* each : all_graphs(graph)) {
    const std::vector<StoredExpression> stored = stored_expressions(*each);
    for (size_t i = 0; i < stored.size(); ++i) {
      const auto& [root, name] = stored[i];
      context.report_progress(name, static_cast<double>(i) / static_cast<double>(stored.size()));
      WeightResult result;
      Constant constant = materialize(*root, &result);
      if (!result.format.empty()) {
        report.notes.push_back(concat("'", name, "': ", result.format, ", ", result.error.sqnr_db(), " dB"));
      }
      replace_by_constant(*each, root, std::move(constant), name);
      ++report.changes;
    }
  }
  return report;
}

}  // namespace quern::passes
