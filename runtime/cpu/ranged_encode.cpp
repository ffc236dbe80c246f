#include "runtime/cpu/ranged_encode.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quern::cpu {
namespace {

struct Range {
  float scale = 0;  // 0: all codes are 0; NaN: so is the row
  float lowest = 0;
  float highest = 0;
};

Range range_of(const ActivationRange& range, const float* x, int64_t count) {
  if (range.kind == ActivationRange::Kind::Fixed) {
    float broken = 0;
    for (int64_t i = 0; i < count; ++i) broken = std::isnan(x[i]) ? x[i] : broken;
    return {std::isnan(broken) ? broken : range.scale, static_cast<float>(range.lowest),
            static_cast<float>(range.highest)};
  }
  float least = 0, most = 0, broken = 0;
  for (int64_t i = 0; i < count; ++i) {
    least = std::min(least, x[i]);
    most = std::max(most, x[i]);
    broken += x[i] * 0.0F;  // NaN where x is not finite
  }
  if (std::isnan(broken)) return {.scale = std::numeric_limits<float>::quiet_NaN()};
  if (range.kind == ActivationRange::Kind::Row) return {std::max(most, -least) / 127.0F, -127.0F, 127.0F};
  const float scale = (most - least) / 255.0F;
  if (scale == 0) return {};
  const float zero = std::nearbyint(std::clamp(-least / scale, 0.0F, 255.0F));
  return {scale, -zero, 255.0F - zero};
}

// Stores codes where the kernels look for them (ActivationCode).
class CodeWriter {
 public:
  CodeWriter(InputKind kind, std::byte* row) : kind_(kind), row_(row) {}
  void operator()(int64_t k, int32_t code) const {
    if (kind_ == InputKind::S8) {
      reinterpret_cast<int8_t*>(row_)[k] = static_cast<int8_t>(code);
    } else if (kind_ == InputKind::S16Pairs) {
      reinterpret_cast<int16_t*>(row_)[k / 4 * 4 + k % 2 * 2 + k % 4 / 2] = static_cast<int16_t>(code);
    } else {
      const int32_t hi = (code + 128) >> 8;
      reinterpret_cast<int8_t*>(row_)[k / 4 * 8 + k % 4] = static_cast<int8_t>(hi);
      reinterpret_cast<int8_t*>(row_)[k / 4 * 8 + 4 + k % 4] = static_cast<int8_t>(code - 256 * hi);
    }
  }

 private:
  InputKind kind_;
  std::byte* row_;
};

}  // namespace

void encode_ranged(const ActivationRange& range, const EncodeTask& task, int64_t first, int64_t count) {
  for (int64_t r = first; r < first + count; ++r) {
    const float* x = task.x + r * task.x_stride;
    const CodeWriter write(task.kind, task.codes + r * task.row_stride);
    const Range own = range_of(range, x, task.cols);
    const bool usable = own.scale > 0;
    BlockInfo* info = task.info + r;
    for (int64_t begin = 0; begin < task.padded_cols; begin += task.block, info += task.rows) {
      const int64_t end = std::min(begin + task.block, task.padded_cols);
      int32_t sum = 0;
      for (int64_t k = begin; k < end; ++k) {
        int32_t code = 0;
        if (usable && k < task.cols)
          code = static_cast<int32_t>(std::clamp(std::nearbyint(x[k] / own.scale), own.lowest, own.highest));
        write(k, code);
        sum += code;
      }
      *info = {.scale = own.scale, .offset = -sum};
    }
  }
}

}  // namespace quern::cpu
