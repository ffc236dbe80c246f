// The oracle of attention.h, in double precision and without blocks, and the choice among kernels.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ir/float_types.h"
#include "runtime/cpu/attention.h"
#include "runtime/cpu/cached_codes.h"
#include "runtime/cpu/dispatch.h"
#include "runtime/cpu/isa.h"

namespace quern::cpu {

QUERN_DECLARE_KERNELS(AttentionKernels, attention_kernels)

namespace {

// One KV head's part of a block.
class Head {
 public:
  Head(const AttentionShape& shape, const std::byte* block, int64_t head)
      : shape_(shape),
        at_(const_cast<std::byte*>(block) + head * shape.head_bytes()),
        channels_(shape.has_scales() && shape.key_scales != nullptr
                      ? shape.key_scales + head * shape.head_size
                      : nullptr) {}

  double key(int64_t slot, int64_t d) const {
    const double code = shape_.cache_dtype == DType::I4
                            ? nibble(key_byte(slot, d), d % 2)
                            : element(at_, (slot / 16 * shape_.head_size + d) * 16 + slot % 16);
    return code * scale(slot) * channel(d);
  }
  double value(int64_t slot, int64_t d) const {
    const double code = shape_.cache_dtype == DType::I4
                            ? nibble(value_byte(slot, d), d % 16 / 8)
                            : element(at_ + shape_.key_bytes(), value_index(slot, d));
    return code * scale(kCacheBlock + slot);
  }
  void set(int64_t slot, const float* k, const float* v) {
    const int64_t padded = shape_.padded_value_size();
    std::vector<float> keys(k, k + shape_.head_size), values(v, v + shape_.value_size);
    values.resize(static_cast<size_t>(padded));
    if (shape_.has_scales()) {
      for (size_t d = 0; d < keys.size(); ++d)
        keys[d] /= static_cast<float>(channel(static_cast<int64_t>(d)));
      set_scale(slot, encode(keys));
      set_scale(kCacheBlock + slot, encode(values));
    }
    keys.resize(static_cast<size_t>(padded_head_size()));
    for (int64_t d = 0; d < padded_head_size(); ++d) set_key(slot, d, keys[static_cast<size_t>(d)]);
    for (int64_t d = 0; d < padded; ++d) set_value(slot, d, values[static_cast<size_t>(d)]);
  }
  // Its elements as they are, codes of codes.
  void copy(const Head& from, int64_t from_slot, int64_t slot) {
    for (int64_t d = 0; d < padded_head_size(); ++d)
      set_key(slot, d, from.code(from.key(from_slot, d), from.scale(from_slot) * channel(d)));
    for (int64_t d = 0; d < shape_.padded_value_size(); ++d)
      set_value(slot, d, from.code(from.value(from_slot, d), from.scale(kCacheBlock + from_slot)));
    if (!shape_.has_scales()) return;
    set_scale(slot, static_cast<float>(from.scale(from_slot)));
    set_scale(kCacheBlock + slot, static_cast<float>(from.scale(kCacheBlock + from_slot)));
  }

 private:
  int64_t value_index(int64_t slot, int64_t d) const { return (d / 16 * kCacheBlock + slot) * 16 + d % 16; }
  std::byte* key_byte(int64_t slot, int64_t d) const {
    return at_ + (slot / 16 * ((shape_.head_size + 1) / 2) + d / 2) * 16 + slot % 16;
  }
  std::byte* value_byte(int64_t slot, int64_t d) const {
    return at_ + shape_.key_bytes() + (d / 16 * kCacheBlock + slot) * 8 + d % 8;
  }
  static double nibble(const std::byte* p, int64_t high) {
    return (std::to_integer<int>(*p) >> (4 * high) & 15) - 8;
  }
  static void set_nibble(std::byte* p, int64_t high, float code) {
    const int bits = static_cast<int>(code) + 8;
    *p = static_cast<std::byte>(high != 0 ? (std::to_integer<int>(*p) & 15) | bits << 4
                                          : (std::to_integer<int>(*p) & 240) | bits);
  }
  // Nibbles come in pairs.
  int64_t padded_head_size() const {
    return shape_.cache_dtype == DType::I4 ? (shape_.head_size + 1) / 2 * 2 : shape_.head_size;
  }
  double channel(int64_t d) const {
    return channels_ == nullptr || d >= shape_.head_size ? 1.0 : channels_[d];
  }
  float* scales() const { return reinterpret_cast<float*>(at_ + shape_.key_bytes() + shape_.value_bytes()); }
  double scale(int64_t i) const { return shape_.has_scales() ? scales()[i] : 1.0; }
  void set_scale(int64_t i, float scale) { scales()[i] = scale; }
  double code(double x, double scale) const {
    return !shape_.has_scales() ? x : scale == 0 ? 0.0 : std::nearbyint(x / scale);
  }

  double element(const std::byte* p, int64_t index) const {
    if (shape_.cache_dtype == DType::F16) return f16_to_f32(reinterpret_cast<const uint16_t*>(p)[index]);
    if (shape_.cache_dtype == DType::I8) return reinterpret_cast<const int8_t*>(p)[index];
    return reinterpret_cast<const float*>(p)[index];
  }
  void set_element(std::byte* p, int64_t index, double value) {
    if (shape_.cache_dtype == DType::F16) {
      reinterpret_cast<uint16_t*>(p)[index] =
          f32_to_f16(std::clamp(static_cast<float>(value), -65504.0f, 65504.0f));
    } else if (shape_.cache_dtype == DType::I8) {
      reinterpret_cast<int8_t*>(p)[index] = static_cast<int8_t>(value);
    } else {
      reinterpret_cast<float*>(p)[index] = static_cast<float>(value);
    }
  }
  void set_key(int64_t slot, int64_t d, double x) {
    if (shape_.cache_dtype == DType::I4) return set_nibble(key_byte(slot, d), d % 2, static_cast<float>(x));
    set_element(at_, (slot / 16 * shape_.head_size + d) * 16 + slot % 16, x);
  }
  void set_value(int64_t slot, int64_t d, double x) {
    if (shape_.cache_dtype == DType::I4)
      return set_nibble(value_byte(slot, d), d % 16 / 8, static_cast<float>(x));
    set_element(at_ + shape_.key_bytes(), value_index(slot, d), x);
  }

  // Makes codes of `x` and returns their scale (cached_codes.h).
  float encode(std::vector<float>& x) const {
    float extreme = 0;
    for (const float each : x) {
      if (!std::isfinite(each)) {
        std::fill(x.begin(), x.end(), 0.0F);
        return std::numeric_limits<float>::quiet_NaN();
      }
      if (std::abs(each) > std::abs(extreme) || (each < 0 && each == -extreme)) extreme = each;
    }
    const bool wide = shape_.cache_dtype == DType::I8;
    const float least = wide ? -127.0F : -8.0F, most = wide ? 127.0F : 7.0F;
    const auto codes_by = [&](float scale) {
      std::vector<float> codes;
      for (const float each : x)
        codes.push_back(scale == 0 ? 0.0F : std::clamp(std::nearbyint(each / scale), least, most));
      return codes;
    };
    if (wide || extreme == 0) {
      const float scale = std::abs(extreme) / most;
      x = codes_by(scale);
      return scale;
    }
    std::vector<float> best;
    double best_error = std::numeric_limits<double>::infinity(), fitted = 0;
    for (const float range : kCodeRanges) {
      const std::vector<float> codes = codes_by(extreme / range);
      double error = 0, xq = 0, qq = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        error += std::pow(static_cast<double>(x[i]) - static_cast<double>(codes[i] * (extreme / range)), 2);
        xq += static_cast<double>(x[i]) * static_cast<double>(codes[i]);
        qq += static_cast<double>(codes[i]) * static_cast<double>(codes[i]);
      }
      if (error >= best_error) continue;
      best_error = error;
      best = codes;
      fitted = qq > 0 ? xq / qq : 0;
    }
    x = best;
    return static_cast<float>(fitted);
  }

  const AttentionShape& shape_;
  std::byte* at_;
  const float* channels_;
};

void append(const AttentionShape& shape, std::byte* block, int64_t head, int64_t slot, const float* k,
            const float* v) {
  Head(shape, block, head).set(slot, k, v);
}

void copy_slots(const AttentionShape& shape, int64_t head, const std::byte* from, int64_t from_slot,
                std::byte* to, int64_t to_slot, int64_t count) {
  const Head source(shape, from, head);
  Head target(shape, to, head);
  for (int64_t i = 0; i < count; ++i) target.copy(source, from_slot + i, to_slot + i);
}

void attend_row(const AttentionShape& shape, const AttentionTile& tile, int64_t token, int64_t h) {
  const int64_t position = tile.first_position + token, head = tile.first_head + h;
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  const float* q = tile.q + token * tile.q_stride + h * shape.head_size;
  const auto head_of = [&](int64_t j) {
    return Head(shape, tile.blocks[j / kCacheBlock], head / shape.group());
  };
  std::vector<double> scores;
  double top = shape.sinks != nullptr ? shape.sinks[head] : -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j <= position; ++j) {
    double s = 0;
    const Head at = head_of(j);
    for (int64_t d = 0; d < shape.head_size; ++d) s += q[d] * at.key(j % kCacheBlock, d);
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
      sum += scores[static_cast<size_t>(j - first)] * head_of(j).value(j % kCacheBlock, d);
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
