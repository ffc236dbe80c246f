// The oracle of attention.h, in double precision and without blocks, and the choice among kernels.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ir/float_types.h"
#include "runtime/cpu/attention.h"
#include "runtime/cpu/dispatch.h"
#include "runtime/cpu/isa.h"

namespace quern::cpu {

QUERN_DECLARE_KERNELS(AttentionKernels, attention_kernels)

namespace {

int64_t key_index(const AttentionShape& shape, int64_t slot, int64_t d) {
  return (slot / 16 * shape.head_size + d) * 16 + slot % 16;
}
int64_t value_index(const AttentionShape& shape, int64_t slot, int64_t d) {
  return shape.key_elements() + (d / 16 * kCacheBlock + slot) * 16 + d % 16;
}

double get(const AttentionShape& shape, const std::byte* head, int64_t index) {
  if (shape.cache_dtype == DType::F16) return f16_to_f32(reinterpret_cast<const uint16_t*>(head)[index]);
  return reinterpret_cast<const float*>(head)[index];
}
void set(const AttentionShape& shape, std::byte* head, int64_t index, float value) {
  if (shape.cache_dtype == DType::F16) {
    reinterpret_cast<uint16_t*>(head)[index] = f32_to_f16(std::clamp(value, -65504.0f, 65504.0f));
  } else {
    reinterpret_cast<float*>(head)[index] = value;
  }
}

void append(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot, const float* k,
            const float* v) {
  block += head * shape.head_bytes();
  for (int64_t d = 0; d < shape.head_size; ++d) set(shape, block, key_index(shape, slot, d), k[d]);
  for (int64_t d = 0; d < shape.padded_value_size(); ++d) {
    set(shape, block, value_index(shape, slot, d), d < shape.value_size ? v[d] : 0.0f);
  }
}

void copy_slots(const AttentionShape& shape, int64_t head, const std::byte* from, int64_t from_slot,
                std::byte* to, int64_t to_slot, int64_t count) {
  from += head * shape.head_bytes();
  to += head * shape.head_bytes();
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t d = 0; d < shape.head_size; ++d) {
      const double key = get(shape, from, key_index(shape, from_slot + i, d));
      set(shape, to, key_index(shape, to_slot + i, d), static_cast<float>(key));
    }
    for (int64_t d = 0; d < shape.padded_value_size(); ++d) {
      const double value = get(shape, from, value_index(shape, from_slot + i, d));
      set(shape, to, value_index(shape, to_slot + i, d), static_cast<float>(value));
    }
  }
}

void attend_row(const AttentionShape& shape, const AttentionTile& tile, int64_t token, int64_t h) {
  const int64_t position = tile.first_position + token, head = tile.first_head + h;
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  const float* q = tile.q + token * tile.q_stride + h * shape.head_size;
  const auto head_of = [&](int64_t j) {
    return tile.blocks[j / kCacheBlock] + head / shape.group() * shape.head_bytes();
  };
  std::vector<double> scores;
  double top = shape.sinks != nullptr ? shape.sinks[head] : -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j <= position; ++j) {
    double s = 0;
    for (int64_t d = 0; d < shape.head_size; ++d) {
      s += q[d] * get(shape, head_of(j), key_index(shape, j % kCacheBlock, d));
    }
    s *= shape.scale;
    if (shape.softcap > 0) s = shape.softcap * std::tanh(s / shape.softcap);
    if (shape.slopes != nullptr) s += shape.slopes[head] * static_cast<double>(j - position);
    scores.push_back(s);
    top = std::max(top, s);
  }
  double total = shape.sinks != nullptr ? std::exp(shape.sinks[head] - top) : 0;
  for (double& s : scores) total += s = std::exp(s - top);
  for (int64_t d = 0; d < shape.value_size; ++d) {
    double sum = 0;
    for (int64_t j = first; j <= position; ++j) {
      sum += scores[static_cast<size_t>(j - first)] *
             get(shape, head_of(j), value_index(shape, j % kCacheBlock, d));
    }
    tile.out[token * tile.out_stride + h * shape.value_size + d] = static_cast<float>(sum / total);
  }
}

void attend(const AttentionShape& shape, const AttentionTile& tile, float*) {
  for (int64_t t = 0; t < tile.tokens; ++t) {
    for (int64_t h = 0; h < tile.heads; ++h) attend_row(shape, tile, t, h);
  }
}

// The oracle doesn't split the work: everything happens in finish().
void attend_span(const AttentionShape&, const AttentionTile&, int64_t, float*, float*) {}
void finish(const AttentionShape& shape, const AttentionTile& tile, float*, int64_t, int64_t) {
  attend(shape, tile, nullptr);
}

}  // namespace

const AttentionKernels& reference_attention_kernels() {
  static constexpr AttentionKernels kKernels = {append, copy_slots, attend, attend_span, finish};
  return kKernels;
}

const AttentionKernels& attention_kernels() {
  return reference_forced() ? reference_attention_kernels() : attention_kernels(active_isa());
}

}  // namespace quern::cpu
