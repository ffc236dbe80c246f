#include "passes/cleanup/constant_content.h"

#include <algorithm>

namespace quern::passes {
namespace {

constexpr int64_t kSamples = 64;
constexpr int64_t kSampleBytes = 64;

void append_sample(const Tensor& tensor, std::string& out) {
  out += concat(to_string(tensor.dtype()), to_string(tensor.shape()), ":");
  if (tensor.dtype() == DType::String) {
    for (const std::string& text : tensor.strings()) out += text + '\0';
    return;
  }
  const int64_t size = tensor.byte_size();
  const auto append = [&](int64_t first, int64_t count) {
    out.append(reinterpret_cast<const char*>(tensor.bytes()) + first, static_cast<size_t>(count));
  };
  if (size <= kSamples * kSampleBytes) {
    if (size > 0) append(0, size);
    return;
  }
  for (int64_t i = 0; i < kSamples; ++i) append((size - kSampleBytes) / (kSamples - 1) * i, kSampleBytes);
}

bool same(const QuantizedTensor& a, const QuantizedTensor& b) {
  return a.scheme == b.scheme && identical(a.codes, b.codes) && identical(a.scales, b.scales) &&
         identical(a.zero_points, b.zero_points);
}

}  // namespace

std::string fingerprint(const Constant& constant) {
  std::string out;
  if (const auto* tensor = std::get_if<Tensor>(&constant)) {
    append_sample(*tensor, out);
  } else if (const auto* quantized = std::get_if<QuantizedTensor>(&constant)) {
    out += "quantized " + to_string(quantized->scheme);
    append_sample(quantized->codes, out);
    append_sample(quantized->scales, out);
  } else {
    const auto& packed = std::get<PackedTensor>(constant);
    out += concat("packed ", to_string(packed.spec().layout), to_string(packed.shape()));
    append_sample(packed.bytes(), out);
  }
  return out;
}

bool same_content(const Constant& a, const Constant& b) {
  if (a.index() != b.index()) return false;
  if (const auto* tensor = std::get_if<Tensor>(&a)) return identical(*tensor, std::get<Tensor>(b));
  if (const auto* quantized = std::get_if<QuantizedTensor>(&a))
    return same(*quantized, std::get<QuantizedTensor>(b));
  const auto& packed = std::get<PackedTensor>(a);
  return packed.spec() == std::get<PackedTensor>(b).spec() &&
         identical(packed.bytes(), std::get<PackedTensor>(b).bytes());
}

}  // namespace quern::passes
