#include "runtime/plain/coded_convolution.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/cpu/linear.h"
#include "runtime/plain/parallel.h"
#include "runtime/reference/sample_range.h"

namespace quern::runtime::plain {
namespace {

using cpu::ActivationCode;
using cpu::ActivationFormat;
using cpu::BlockInfo;
using reference::SampleRange;
using reference::Windows;

struct Free {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
};
using Memory = std::unique_ptr<std::byte, Free>;

Memory allocate(int64_t bytes) {
  return Memory(static_cast<std::byte*>(
      ::operator new (static_cast<size_t>(std::max<int64_t>(bytes, 64)), std::align_val_t{64})));
}

cpu::LinearScratch& scratch_for(int threads) {
  thread_local std::unique_ptr<cpu::LinearScratch> kept;
  if (!kept || kept->threads() < threads) kept = std::make_unique<cpu::LinearScratch>(threads);
  return *kept;
}

// Where the taps of each output position lie along one axis; -1: nowhere.
struct Axis {
  int64_t input = 1;
  int64_t output = 1;
  int64_t taps = 1;
  std::vector<int32_t> sources = {0};  // [output, taps]

  Axis() = default;
  Axis(const KernelContext& context, const Windows& w, size_t axis, bool transposed)
      : input(transposed ? w.output[axis] : w.input[axis]),
        output(transposed ? w.input[axis] : w.output[axis]),
        taps(w.kernel[axis]) {
    sources.assign(static_cast<size_t>(context.checked_count(DType::I32, {output, taps})), -1);
    for (int64_t o = 0; o < output; ++o) {
      for (int64_t t = 0; t < taps; ++t) {
        int64_t at = 0;
        if (transposed) {
          at = o + w.pads_begin[axis] - t * w.dilations[axis];
          if (at % w.strides[axis] != 0) continue;
          at /= w.strides[axis];
        } else {
          at = o * w.strides[axis] + t * w.dilations[axis] - w.pads_begin[axis];
        }
        if (at >= 0 && at < input) sources[static_cast<size_t>(o * taps + t)] = static_cast<int32_t>(at);
      }
    }
  }
  const int32_t* of(int64_t position) const { return sources.data() + position * taps; }
};

ActivationFormat format_for(const PackedSpec& weight, const ActivationScheme& scheme) {
  using Kind = ActivationScheme::Kind;
  if (scheme.kind == Kind::None) return cpu::activation_format(weight, cpu::ActivationMode::A16);
  cpu::ActivationRange range{
      .kind = cpu::ActivationRange::Kind::Fixed, .scale = 1, .lowest = -127, .highest = 127};
  if (scheme.kind == Kind::TokenAsymmetric) range.lowest = -255, range.highest = 255;
  if (scheme.kind == Kind::Static) {
    range.lowest = static_cast<int32_t>(scheme.lowest);
    range.highest = static_cast<int32_t>(scheme.highest);
  }
  return cpu::activation_format(weight, cpu::ActivationMode::A8, cpu::active_isa(), range);
}

// To the nearest, halves to even; |x| < 2^22.
int32_t rounded(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: the last bit of the sum is worth 1
  return std::bit_cast<int32_t>(x + kMagic) - std::bit_cast<int32_t>(kMagic);
}

class Convolver {
 public:
  Convolver(const KernelContext& context, const CodedConvolution& c)
      : c_(c), format_(format_for(c.weight->spec(), c.scheme)) {
    const size_t n = c.windows->kernel.size();
    for (size_t i = 0; i < n; ++i) axes_[3 - n + i] = Axis(context, *c.windows, i, c.transposed);
    plane_ = axes_[0].input * axes_[1].input * axes_[2].input;
    positions_ = axes_[0].output * axes_[1].output * axes_[2].output;
    element_ = format_.code == ActivationCode::F32 ? 4 : format_.code == ActivationCode::S8 ? 1 : 2;
    // Codes of two bytes lie in an order of their own within each four columns.
    in_order_ = element_ != 2 || c.channels % 4 == 0;
    pixel_ = c.channels * element_;
    context.checked_count(DType::U8, {plane_, pixel_});
    image_ = allocate(plane_ * pixel_);
    // As many rows as keep the weights of a few tiles in the cache beside them.
    constexpr int64_t kBytes = int64_t{1} << 20;
    constexpr int64_t kLeast = 64, kMost = 1024;
    batch_rows_ = std::clamp<int64_t>(kBytes / format_.row_stride(), kLeast, kMost);
    batch_rows_ = std::min(batch_rows_, positions_);
    rows_ = allocate(cpu::Activations::byte_size(format_, batch_rows_));
    results_ = allocate(batch_rows_ * outputs() * 4);
  }

  void run(const float* x, const float* bias, float* y) {
    for (int64_t n = 0; n < c_.batch; ++n) {
      const float* sample = x + n * c_.channels * plane_;
      float* out = y + n * outputs() * positions_;
      range_ =
          reference::sample_range(c_.scheme, std::span(sample, static_cast<size_t>(c_.channels * plane_)));
      if (format_.code != ActivationCode::F32 && std::isnan(range_.scale)) {
        std::fill_n(out, outputs() * positions_, range_.scale);
        continue;
      }
      encode(sample);
      for (int64_t first = 0; first < positions_; first += batch_rows_)
        multiply(first, std::min(batch_rows_, positions_ - first), bias, out);
    }
  }

 private:
  int64_t outputs() const { return c_.weight->spec().rows; }

  // Where column c of a pixel lies, in elements (ActivationCode).
  static int64_t slot(ActivationCode code, int64_t c) {
    return code == ActivationCode::S16Pairs ? c / 4 * 4 + c % 2 * 2 + c % 4 / 2 : c;
  }

  // The sample as [plane, C] of codes.
  void encode(const float* x) {
    for_row_shares(plane_, c_.channels, [&](int, int64_t first, int64_t count) {
      for (int64_t c = 0; c < c_.channels; ++c)
        encode_channel(c, x + c * plane_ + first, count, image_.get() + first * pixel_);
    });
  }

  void encode_channel(int64_t c, const float* x, int64_t count, std::byte* out) const {
    if (format_.code == ActivationCode::F32) {
      for (int64_t i = 0; i < count; ++i) std::memcpy(out + i * pixel_ + c * 4, x + i, 4);
      return;
    }
    if (format_.code == ActivationCode::S8) {
      return round_channel(x, count, [&](int64_t i, int32_t code) {
        reinterpret_cast<int8_t*>(out)[i * pixel_ + c] = static_cast<int8_t>(code);
      });
    }
    if (in_order_ && format_.code == ActivationCode::S8HiLo) {
      return round_channel(x, count, [&](int64_t i, int32_t code) {
        int8_t* four = reinterpret_cast<int8_t*>(out) + i * pixel_ + c / 4 * 8 + c % 4;
        const int32_t hi = (code + 128) >> 8;
        four[0] = static_cast<int8_t>(hi);
        four[4] = static_cast<int8_t>(code - 256 * hi);
      });
    }
    const int64_t at = in_order_ ? slot(format_.code, c) : c;
    round_channel(x, count, [&](int64_t i, int32_t code) {
      reinterpret_cast<int16_t*>(out)[i * c_.channels + at] = static_cast<int16_t>(code);
    });
  }

  template <class Store>
  void round_channel(const float* x, int64_t count, const Store& store) const {
    constexpr int64_t kBlock = 256;
    std::array<int32_t, kBlock> codes;
    const SampleRange range = range_;
    for (int64_t first = 0; first < count; first += kBlock) {
      const int64_t length = std::min(kBlock, count - first);
      if (range.scale == 0) {
        codes.fill(0);
      } else {
        for (int64_t i = 0; i < length; ++i) {
          const float quotient = x[first + i] / range.scale;
          codes[static_cast<size_t>(i)] = rounded(std::min(std::max(quotient, range.lowest), range.highest));
        }
      }
      for (int64_t i = 0; i < length; ++i) store(first + i, codes[static_cast<size_t>(i)]);
    }
  }

  void multiply(int64_t first, int64_t count, const float* bias, float* y) {
    const cpu::Activations input = cpu::Activations::place(
        format_, count, {rows_.get(), static_cast<size_t>(cpu::Activations::byte_size(format_, count))});
    for_row_shares(count, format_.padded_cols, [&](int, int64_t from, int64_t rows) {
      for (int64_t r = from; r < from + rows; ++r) {
        std::byte* row = input.codes + r * format_.row_stride();
        gather(first + r, row);
        if (format_.blocks() > 0) describe(row, input.info + r, count);
      }
    });
    auto* results = reinterpret_cast<float*>(results_.get());
    const cpu::LinearOp op{.weight = c_.weight,
                           .input = &input,
                           .bias = bias,
                           .y = results,
                           .y_stride = outputs(),
                           .rows = count};
    cpu::check_linear(op);
    constexpr int64_t kWorthAThread = 1 << 19;  // multiply-adds
    const int threads = count * format_.cols * outputs() < 2 * kWorthAThread ? 1 : most_shares();
    cpu::LinearScratch& scratch = scratch_for(threads);
    for_shares(threads, 1, [&](int, int64_t from, int64_t shares) {
      for (int64_t thread = from; thread < from + shares; ++thread)
        cpu::linear({&op, 1}, static_cast<int>(thread), threads, scratch);
    });
    for_row_shares(outputs(), count, [&](int, int64_t from, int64_t channels) {
      for (int64_t m = from; m < from + channels; ++m) {
        float* to = y + m * positions_ + first;
        for (int64_t r = 0; r < count; ++r) to[r] = results[r * outputs() + m];
      }
    });
  }

  // The window of an output position as a row of codes.
  void gather(int64_t position, std::byte* row) const {
    std::byte* end = row + format_.row_bytes();
    std::byte* out = row;
    const int64_t w = position % axes_[2].output;
    const int64_t h = position / axes_[2].output % axes_[1].output;
    const int64_t d = position / axes_[2].output / axes_[1].output;
    const int32_t* at_w = axes_[2].of(w);
    for (int64_t i = 0; i < axes_[0].taps; ++i) {
      for (int64_t j = 0; j < axes_[1].taps; ++j) {
        const int64_t at_d = axes_[0].of(d)[i], at_h = axes_[1].of(h)[j];
        if (at_d < 0 || at_h < 0) {
          std::memset(out, 0, static_cast<size_t>(axes_[2].taps * pixel_));
          out += axes_[2].taps * pixel_;
          continue;
        }
        out = gather_line(image_.get() + (at_d * axes_[1].input + at_h) * axes_[2].input * pixel_, at_w, out);
      }
    }
    std::memset(out, 0, static_cast<size_t>(end - out));
    if (!in_order_) arrange(row);
  }

  // Pixels side by side are copied together.
  std::byte* gather_line(const std::byte* line, const int32_t* sources, std::byte* out) const {
    const int64_t taps = axes_[2].taps;
    for (int64_t t = 0; t < taps;) {
      int64_t length = 1;
      if (sources[t] < 0) {
        while (t + length < taps && sources[t + length] < 0) ++length;
        std::memset(out, 0, static_cast<size_t>(length * pixel_));
      } else {
        while (t + length < taps && sources[t + length] == sources[t] + length) ++length;
        std::memcpy(out, line + sources[t] * pixel_, static_cast<size_t>(length * pixel_));
      }
      out += length * pixel_;
      t += length;
    }
    return out;
  }

  // Of 16-bit codes in the order of the columns, in the order of the kernels.
  void arrange(std::byte* row) const {
    for (int64_t k = 0; k < format_.cols; k += 4) {
      std::array<int16_t, 4> four;
      std::memcpy(four.data(), row + k * 2, sizeof four);
      if (format_.code == ActivationCode::S16Pairs) {
        const std::array<int16_t, 4> pairs = {four[0], four[2], four[1], four[3]};
        std::memcpy(row + k * 2, pairs.data(), sizeof pairs);
        continue;
      }
      std::array<int8_t, 8> bytes;
      for (size_t i = 0; i < 4; ++i) {
        const int32_t hi = (four[i] + 128) >> 8;
        bytes[i] = static_cast<int8_t>(hi);
        bytes[i + 4] = static_cast<int8_t>(four[i] - 256 * hi);
      }
      std::memcpy(row + k * 2, bytes.data(), sizeof bytes);
    }
  }

  // Scales of a row's blocks, and minus the sums of their codes.
  void describe(const std::byte* row, BlockInfo* info, int64_t rows) const {
    for (int64_t begin = 0; begin < format_.padded_cols; begin += format_.block, info += rows) {
      const int64_t count = std::min(format_.block, format_.padded_cols - begin);
      int32_t sum = 0;
      if (format_.code == ActivationCode::S8) {
        const auto* codes = reinterpret_cast<const int8_t*>(row) + begin;
        for (int64_t i = 0; i < count; ++i) sum += codes[i];
      } else if (format_.code == ActivationCode::S16Pairs) {
        const auto* codes = reinterpret_cast<const int16_t*>(row) + begin;
        for (int64_t i = 0; i < count; ++i) sum += codes[i];
      } else {
        const auto* codes = reinterpret_cast<const int8_t*>(row) + begin * 2;
        for (int64_t i = 0; i < count * 2; ++i) sum += codes[i] * (i % 8 < 4 ? 256 : 1);
      }
      *info = {.scale = range_.scale, .offset = -sum};
    }
  }

  const CodedConvolution& c_;
  ActivationFormat format_;
  std::array<Axis, 3> axes_;
  int64_t plane_ = 0;      // elements of a channel of x
  int64_t positions_ = 0;  // of a channel of y
  int64_t element_ = 0;    // bytes of a code
  int64_t pixel_ = 0;      // bytes of the channels of a pixel
  bool in_order_ = false;  // pixels may be copied as they are
  int64_t batch_rows_ = 0;
  SampleRange range_;
  Memory image_, rows_, results_;
};

}  // namespace

bool takes_packed_convolution(const PackedSpec& weight) {
  if (!weight.has_kernels()) return false;
  return cpu::activation_format(weight, cpu::ActivationMode::A16).code != ActivationCode::BF16;
}

void convolve_codes(const KernelContext& context, const CodedConvolution& convolution, const float* x,
                    const float* bias, float* y) {
  Convolver(context, convolution).run(x, bias, y);
}

}  // namespace quern::runtime::plain
