#include "ir/packed_tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "ir/float_types.h"

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;

Tensor random_floats(const Shape& shape, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  Tensor out = Tensor::zeros(dtype, shape);
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, normal(random));
  return out;
}

// Any codes, any positive scales: what a scheme may hold, not what a quantizer would make.
QuantizedTensor random_quantized(int64_t n, int64_t k, const QuantScheme& scheme, DType scale_dtype,
                                 uint32_t seed) {
  std::mt19937 random(seed);
  QuantizedTensor out;
  out.scheme = scheme;
  out.codes = Tensor::zeros(scheme.code, {n, k});
  const int64_t levels = int64_t{1} << scheme.code_bits();
  const int64_t least = is_signed_integer(scheme.code) ? -levels / 2 : 0;
  const auto any_code = [&] { return static_cast<int64_t>(random()) % levels + least; };
  for (int64_t i = 0; i < out.codes.size(); ++i) {
    if (is_integer(scheme.code)) {
      out.codes.set_int(i, any_code());
    } else {
      out.codes.set(i, std::normal_distribution<double>(0, 3)(random));
    }
  }
  Shape shape;
  if (scheme.granularity == Granularity::Channel) shape = {n};
  if (scheme.granularity == Granularity::Group) shape = {n, (k + scheme.group_size - 1) / scheme.group_size};
  out.scales = Tensor::zeros(scale_dtype, shape);
  for (int64_t i = 0; i < out.scales.size(); ++i) {
    out.scales.set(i, std::uniform_real_distribution<float>(1e-3F, 0.1F)(random));
  }
  if (!scheme.symmetric) {
    out.zero_points = Tensor::zeros(scheme.code, shape);
    for (int64_t i = 0; i < out.zero_points.size(); ++i) out.zero_points.set_int(i, any_code());
  }
  return out;
}

std::vector<QuantScheme> schemes() {
  std::vector<QuantScheme> out;
  for (const DType code : {DType::I8, DType::U8, DType::I4, DType::U4}) {
    for (const bool symmetric : {true, false}) {
      out.push_back({code, symmetric, Granularity::Tensor, 0, 0});
      out.push_back({code, symmetric, Granularity::Channel, 0, 0});
      for (const int64_t group : {16, 32, 48, 128})
        out.push_back({code, symmetric, Granularity::Group, 1, group});
    }
  }
  for (const int bits : {3, 2}) {
    for (const DType code : {DType::I4, DType::U4}) {
      for (const bool symmetric : {true, false}) {
        out.push_back({code, symmetric, Granularity::Channel, 0, 0, bits});
        out.push_back({code, symmetric, Granularity::Group, 1, 32, bits});
      }
    }
  }
  for (const DType code : {DType::F8E4M3, DType::F8E5M2}) {
    out.push_back({code, true, Granularity::Channel, 0, 0});
    out.push_back({code, true, Granularity::Group, 1, 48});
  }
  return out;
}

const std::vector<Shape> kShapes = {{1, 1}, {16, 16}, {17, 31}, {5, 100}, {33, 129}, {48, 256}};

TEST(PackedTensor, FloatsComeBackBitForBit) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const Shape& shape : kShapes) {
      const Tensor weight = random_floats(shape, dtype, 1);
      const PackedTensor packed = pack(weight);
      EXPECT_EQ(packed.byte_size(), packed.spec().byte_size());
      EXPECT_TRUE(identical(unpack(packed), weight)) << to_string(dtype) << " " << to_string(shape);
      EXPECT_EQ(packed.dequantize().to_floats(), weight.to_floats());
    }
  }
}

TEST(PackedTensor, QuantizedTensorsComeBackBitForBit) {
  for (const QuantScheme& scheme : schemes()) {
    for (const Shape& shape : kShapes) {
      for (const DType scale_dtype : {DType::F32, DType::F16}) {
        const QuantizedTensor weight = random_quantized(shape[0], shape[1], scheme, scale_dtype, 2);
        const PackedTensor packed = pack(weight);
        const QuantizedTensor back = unpack_quantized(packed);
        const std::string what = to_string(scheme) + " " + to_string(shape);
        back.check();
        EXPECT_TRUE(identical(back.codes, weight.codes)) << what;
        EXPECT_TRUE(identical(back.scales, weight.scales)) << what;
        if (!scheme.symmetric) {
          EXPECT_TRUE(identical(back.zero_points, weight.zero_points)) << what;
        }
        EXPECT_EQ(packed.dequantize().to_floats(), dequantize(weight).to_floats()) << what;
      }
    }
  }
}

// The bytes are a file format: spelled out here for one weight of each kind.
TEST(PackedTensor, LayoutOfEightBitCodes) {
  const QuantScheme scheme{DType::I8, false, Granularity::Group, 1, 16};
  const QuantizedTensor weight = random_quantized(18, 40, scheme, DType::F16, 3);
  const PackedTensor packed = pack(weight);
  const PackedSpec& spec = packed.spec();
  EXPECT_EQ(spec.padded_cols(), 48);
  EXPECT_EQ(spec.group_stride(), 32 + 16 + 16 * 16);
  EXPECT_EQ(spec.tile_stride(), 3 * 304 + 48);
  const int64_t n = 17;
  const int64_t k = 22;  // tile 1, lane 1, group 1, step 1, byte 2
  const std::byte* group = packed.tile(1) + 304;
  EXPECT_EQ(static_cast<int64_t>(group[48 + 64 + 4 + 2]), weight.codes.int_at(n * 40 + k) + 128);
  EXPECT_EQ(static_cast<int64_t>(group[32 + 1]), weight.zero_points.int_at(n * 3 + 1) + 128);
  const uint16_t scale = weight.scales.data<uint16_t>()[n * 3 + 1];
  EXPECT_EQ(static_cast<int>(group[2]) | static_cast<int>(group[3]) << 8, scale);
}

TEST(PackedTensor, LayoutOfFourBitCodes) {
  const QuantScheme scheme{DType::I4, true, Granularity::Channel, 0, 0};
  const QuantizedTensor weight = random_quantized(16, 16, scheme, DType::F32, 4);
  const PackedTensor packed = pack(weight);
  EXPECT_EQ(packed.byte_size(), 64 + 16 * 16 / 2);
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t k = 0; k < 16; ++k) {
      const auto byte = static_cast<int64_t>(packed.data()[64 + k / 8 * 64 + n * 4 + k % 4]);
      EXPECT_EQ(byte >> (k % 8 < 4 ? 0 : 4) & 15, weight.codes.int_at(n * 16 + k) + 8);
    }
  }
}

TEST(PackedTensor, TilesPackedApartAreTilesPackedTogether) {
  const QuantizedTensor weight =
      random_quantized(70, 50, {DType::U4, false, Granularity::Group, 1, 32}, DType::F16, 5);
  const PackedTensor whole = pack(weight);
  const PackedSpec& spec = whole.spec();
  std::vector<std::byte> bytes(static_cast<size_t>(spec.tile_stride()));
  for (int64_t t = 0; t < spec.tiles(); ++t) {
    pack_tiles(spec, weight, t, 1, bytes);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), whole.tile(t)));
  }
  EXPECT_THROW(pack_tiles(spec, weight, spec.tiles(), 1, bytes), Error);
  EXPECT_THROW(pack_tiles(spec, weight, 0, 2, bytes), Error);
}

TEST(PackedTensor, WideningKeepsEveryNumber) {
  int widened = 0;
  for (const QuantScheme& scheme : schemes()) {
    for (const Shape& shape : kShapes) {
      const PackedTensor packed = pack(random_quantized(shape[0], shape[1], scheme, DType::F16, 7));
      const PackedTensor wide = widen(packed);
      EXPECT_TRUE(wide.spec().has_kernels());
      EXPECT_EQ(wide.dequantize().to_floats(), packed.dequantize().to_floats())
          << to_string(scheme) << " " << to_string(shape);
      if (packed.spec().has_kernels()) {
        EXPECT_EQ(wide.data(), packed.data()) << "copied for nothing";
      } else {
        ++widened;
      }
    }
  }
  EXPECT_GT(widened, 0);
}

TEST(PackedTensor, EightBitFloatsWithPowersOfTwoWidenToBf16) {
  QuantizedTensor weight =
      random_quantized(20, 40, {DType::F8E4M3, true, Granularity::Channel, 0, 0}, DType::F32, 8);
  EXPECT_EQ(widen(pack(weight)).spec().layout, PackedLayout::F32Tile16);
  for (int64_t i = 0; i < weight.scales.size(); ++i)
    weight.scales.set(i, std::ldexp(1.0, static_cast<int>(i) - 10));
  EXPECT_EQ(widen(pack(weight)).spec().layout, PackedLayout::BF16PairTile16);
  EXPECT_EQ(widen(pack(weight)).dequantize().to_floats(), dequantize(weight).to_floats());
}

TEST(PackedTensor, LargeWeightsPackOnSeveralThreads) {
  const Tensor weight = random_floats({1024, 1030}, DType::F32, 6);
  EXPECT_TRUE(identical(unpack(pack(weight)), weight));
}

TEST(PackedTensor, CountsItsBits) {
  const QuantScheme scheme{DType::I4, true, Granularity::Group, 1, 32};
  EXPECT_DOUBLE_EQ(PackedSpec::for_quantized({256, 1024}, scheme, DType::F16).bits_per_weight(), 4.5);
  EXPECT_DOUBLE_EQ(PackedSpec::for_float({256, 1024}, DType::BF16).bits_per_weight(), 16.0);
  const QuantScheme three{DType::I4, true, Granularity::Group, 1, 64, 3};
  EXPECT_DOUBLE_EQ(PackedSpec::for_quantized({256, 1024}, three, DType::F16).bits_per_weight(), 3.25);
  const QuantScheme two{DType::U4, false, Granularity::Group, 1, 64, 2};
  EXPECT_DOUBLE_EQ(PackedSpec::for_quantized({256, 1024}, two, DType::F16).bits_per_weight(), 2.375);
}

TEST(PackedTensor, RefusesWhatHasNoLayout) {
  EXPECT_THROW(PackedSpec::for_float({4, 4}, DType::F8E4M3), Error);
  EXPECT_THROW(PackedSpec::for_float({4}, DType::F32), Error);
  EXPECT_THROW(PackedSpec::for_float({0, 4}, DType::F32), Error);
  EXPECT_THROW(PackedSpec::for_quantized({4, 4}, {DType::I8, true, Granularity::Group, 1, 24}, DType::F32),
               Error);
  EXPECT_THROW(PackedSpec::for_quantized({4, 4}, {DType::I8, true, Granularity::Channel, 1, 0}, DType::F32),
               Error);
  EXPECT_THROW(PackedSpec::for_quantized({4, 4}, {DType::U2, true, Granularity::Channel, 0, 0}, DType::F32),
               Error);
}

TEST(PackedTensor, RefusesBytesThatDoNotFit) {
  const PackedSpec spec = PackedSpec::for_float({16, 16}, DType::F32);
  EXPECT_NO_THROW(PackedTensor(spec, Tensor::zeros(DType::U8, {spec.byte_size()})));
  EXPECT_THROW(PackedTensor(spec, Tensor::zeros(DType::U8, {spec.byte_size() - 1})), Error);
  PackedSpec huge = spec;
  huge.rows = int64_t{1} << 31;
  huge.cols = int64_t{1} << 31;
  EXPECT_THROW(huge.check(), Error);
  PackedSpec unknown = spec;
  unknown.layout = static_cast<PackedLayout>(77);
  EXPECT_THROW(unknown.check(), Error);
  PackedSpec mixed =
      PackedSpec::for_quantized({16, 16}, {DType::I4, true, Granularity::Channel, 0, 0}, DType::F32);
  mixed.layout = PackedLayout::U8Tile16Step4;
  EXPECT_THROW(mixed.check(), Error);
}

}  // namespace
}  // namespace quern
