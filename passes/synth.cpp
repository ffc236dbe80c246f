#include "passes/synth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/artifact/generation_config.h"
#include "formats/artifact/writer.h"
#include "formats/onnx/export.h"
#include "ir/error.h"
#include "ir/near_names.h"
#include "ir/parallel_for.h"
#include "passes/synth_graphs.h"
#include "passes/weights/weight_view.h"

namespace quern::passes {
namespace {

using Granularity = QuantScheme::Granularity;

const std::map<std::string, DecoderShape>& shapes() {
  static const std::map<std::string, DecoderShape> table = {
      // TinyLlama 1.1B (Zhang et al. 2024).
      {"llama-1.1b",
       {.layers = 22,
        .width = 2048,
        .mlp_width = 5632,
        .heads = 32,
        .kv_heads = 4,
        .head_size = 64,
        .vocabulary = 32000}},
      // SmolLM 135M.
      {"llama-135m",
       {.layers = 30,
        .width = 576,
        .mlp_width = 1536,
        .heads = 9,
        .kv_heads = 3,
        .head_size = 64,
        .vocabulary = 49152,
        .tied = true}},
  };
  return table;
}

// Random bits by position (SplitMix64; Steele, Lea and Flood 2014): the same in any order, so in parallel.
uint64_t random_bits(uint64_t seed, uint64_t position) {
  uint64_t z = seed + (position + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// FNV-1a.
uint64_t seed_of(const std::string& name, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325U ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3U;
  return hash;
}

constexpr int64_t kWorthAThread = 1 << 18;
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

void fill_with_bytes(Tensor& tensor, uint64_t seed) {
  std::byte* out = tensor.mutable_bytes();
  const int64_t size = tensor.byte_size();
  parallel_for((size + 7) / 8, {.least = kWorthAThread / 8}, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const uint64_t bits = random_bits(seed, static_cast<uint64_t>(i));
      std::memcpy(out + 8 * i, &bits, static_cast<size_t>(std::min<int64_t>(8, size - 8 * i)));
    }
  });
  // Padding bits of a last byte of 4-bit codes are zero.
  if (bit_width(tensor.dtype()) == 4 && tensor.size() % 2 != 0) out[size - 1] &= std::byte{0xF};
}

// Uniform with variance 1/inputs.
Tensor random_floats(const Shape& shape, int64_t inputs, uint64_t seed) {
  Tensor tensor = Tensor::zeros(DType::F32, shape);
  const std::span<float> out = tensor.mutable_data<float>();
  const float reach = std::sqrt(3.0F / static_cast<float>(inputs));
  parallel_for(tensor.size(), {.least = kWorthAThread}, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const uint64_t bits = random_bits(seed, static_cast<uint64_t>(i)) >> 40;
      out[static_cast<size_t>(i)] = reach * (static_cast<float>(bits) * 0x1p-23F - 1.0F);
    }
  });
  return tensor;
}

Tensor transposed(const Tensor& matrix) {
  const int64_t rows = matrix.dim(0);
  const int64_t cols = matrix.dim(1);
  Tensor result = Tensor::zeros(DType::F32, {cols, rows});
  WeightView(matrix).transposed().read_rows(0, cols, result.mutable_data<float>());
  return result;
}

void fill_with(Tensor& tensor, double value) {
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, value);
}

// Random codes; the scales give the weights a variance of 1/cols.
QuantizedTensor random_codes(const Shape& shape, const QuantizeOptions& options, uint64_t seed) {
  QuantizedTensor weight = quantize_rows({}, shape[1], options);
  const QuantScheme& scheme = options.scheme;
  weight.codes = Tensor::zeros(scheme.code, shape);
  fill_with_bytes(weight.codes, seed);
  if (scheme.granularity != Granularity::Tensor) {
    Shape scales = weight.scales.shape();
    scales[0] = shape[0];
    weight.scales = Tensor::zeros(options.scale_dtype, scales);
    if (!scheme.symmetric) weight.zero_points = Tensor::zeros(scheme.code, scales);
  }
  const double steps = std::exp2(bit_width(scheme.code));
  fill_with(weight.scales, std::sqrt(12.0 / static_cast<double>(shape[1])) / steps);
  if (!scheme.symmetric) fill_with(weight.zero_points, steps / 2);
  return weight;
}

Constant random_weight(const Shape& shape, const WeightSettings& settings, uint64_t seed) {
  if (settings.is_quantized() && settings.weights != "int8" && settings.weights != "int4") {
    throw_error(ErrorCode::Unsupported, "random weights are made as fp32, fp16, bf16, int8 and int4, not ",
                settings.weights);
  }
  if (settings.is_quantized()) return pack(random_codes(shape, settings.quantize_options(), seed));
  const Tensor floats = random_floats(shape, shape[1], seed);
  const DType dtype = settings.float_dtype().value_or(DType::F32);
  return pack(dtype == DType::F32 ? floats : floats.cast(dtype));
}

// Reports progress by the elements that are done.
class Progress {
 public:
  explicit Progress(const SynthOptions& options) : options_(options) {}
  void next(const Value& value) {
    if (!options_.progress) return;
    options_.progress(value.name(),
                      static_cast<double>(done_) / static_cast<double>(options_.shape.parameters()));
    done_ += product(value.shape()).constant();
  }

 private:
  const SynthOptions& options_;
  int64_t done_ = 0;
};

bool is_random(const Value& value) {
  return value.shape().size() == 2;
}

}  // namespace

int64_t DecoderShape::parameters() const {
  const int64_t attention = width * head_size * (2 * heads + 2 * kv_heads);
  const int64_t layer = attention + 3 * width * mlp_width + 2 * width;
  return layers * layer + vocabulary * width * (tied ? 1 : 2) + width;
}

void DecoderShape::check() const {
  constexpr int64_t kMost = int64_t{1} << 20;
  for (const auto& [name, value] : {std::pair<const char*, int64_t>{"layers", layers},
                                    {"width", width},
                                    {"mlp width", mlp_width},
                                    {"heads", heads},
                                    {"KV heads", kv_heads},
                                    {"head size", head_size},
                                    {"vocabulary", vocabulary},
                                    {"context", context}}) {
    if (value < 1 || value > kMost) {
      throw_error(ErrorCode::InvalidArgument, "a decoder's ", name, " must be from 1 to ", kMost, ", not ",
                  value);
    }
  }
  if (heads % kv_heads != 0) {
    throw_error(ErrorCode::InvalidArgument, heads, " heads are no multiple of ", kv_heads, " KV heads");
  }
  if (head_size % 2 != 0) {
    throw_error(ErrorCode::InvalidArgument, "rotary positions need an even head size, not ", head_size);
  }
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const auto& [name, shape] : shapes()) names.push_back(name);
  return names;
}

DecoderShape named_shape(const std::string& name) {
  const auto found = shapes().find(name);
  if (found != shapes().end()) return found->second;
  std::string all;
  for (const std::string& each : shape_names()) all += (all.empty() ? "" : ", ") + each;
  throw_error(ErrorCode::InvalidArgument, "there is no shape '", name, "'", did_you_mean(name, shape_names()),
              "; known are ", all);
}

void synthesize_artifact(const SynthOptions& options, const std::filesystem::path& target) {
  options.shape.check();
  const std::unique_ptr<Graph> graph = canonical_decoder(options.shape);
  Progress progress(options);
  artifact::Writer writer(target);
  writer.write_graph(*graph, [&](const Value& value) -> Constant {
    if (!is_random(value)) return *value.constant();
    progress.next(value);
    const Shape shape = *as_constant(value.shape());
    return with_context("making weight '" + value.name() + "'", [&] {
      return random_weight(shape, options.weights, seed_of(value.name(), options.seed));
    });
  });
  artifact::GenerationConfig config;
  config.context_length = options.shape.context;
  writer.add_attachment(artifact::kGeneration, config.to_json());
  writer.finish();
}

void synthesize_onnx(const SynthOptions& options, const std::filesystem::path& target) {
  options.shape.check();
  const std::unique_ptr<Graph> graph = exported_decoder(options.shape);
  Progress progress(options);
  onnx_format::ExportOptions export_options;
  export_options.external_over = 0;
  export_options.data = [&](const Value& value) {
    if (!is_random(value) || is_rotary_table(value)) return *value.tensor();
    progress.next(value);
    const Shape shape = *as_constant(value.shape());
    if (value.name() == kEmbedding) return random_floats(shape, shape[1], seed_of(kEmbedding, options.seed));
    if (value.name() == kHead && options.shape.tied) {
      return transposed(random_floats({shape[1], shape[0]}, shape[0], seed_of(kEmbedding, options.seed)));
    }
    return random_floats(shape, shape[0], seed_of(value.name(), options.seed));
  };
  onnx_format::export_model(*graph, target, export_options);
}

}  // namespace quern::passes
