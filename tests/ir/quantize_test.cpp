#include "ir/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "tests/support/expect_error.h"

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;

Tensor random_matrix(int64_t rows, int64_t cols, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.1F, 1.0F);
  Tensor tensor = Tensor::zeros(DType::F32, {rows, cols});
  for (float& value : tensor.mutable_data<float>()) value = normal(random);
  return tensor;
}

QuantizeOptions options_of(DType code, bool symmetric, Granularity granularity, int64_t group = 0) {
  QuantizeOptions options;
  options.scheme = {.code = code, .symmetric = symmetric, .granularity = granularity, .group_size = group};
  options.scheme.axis = granularity == Granularity::Group ? 1 : 0;
  return options;
}

// The formulas of the header, one element at a time in double.
void expect_follows_the_formulas(const Tensor& weight, const QuantizeOptions& options,
                                 const QuantizedTensor& q) {
  const QuantScheme& scheme = options.scheme;
  const int bits = bit_width(scheme.code);
  const bool is_signed = is_signed_integer(scheme.code);
  const int64_t cols = weight.dim(1);
  const int64_t group =
      scheme.granularity == Granularity::Group ? scheme.group_size : std::max<int64_t>(cols, 1);
  const int64_t groups = (cols + group - 1) / group;
  for (int64_t n = 0; n < weight.dim(0); ++n) {
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t s = scheme.granularity == Granularity::Tensor    ? 0
                        : scheme.granularity == Granularity::Channel ? n
                                                                     : n * groups + k / group;
      const auto scale = static_cast<float>(q.scales.at(s));
      const int64_t middle = is_signed ? 0 : int64_t{1} << (bits - 1);
      const int64_t zero = q.zero_points.defined() ? q.zero_points.int_at(s) : middle;
      const int64_t low = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
      const int64_t high = low + (int64_t{1} << bits) - 1;
      const auto value = static_cast<float>(weight.at(n * cols + k));
      const int64_t code = std::clamp(
          static_cast<int64_t>(std::nearbyint(value / (scale == 0 ? 1 : scale))) + zero, low, high);
      ASSERT_EQ(q.codes.int_at(n * cols + k), code) << "row " << n << " column " << k;
    }
  }
}

TEST(Quantize, FollowsTheFormulasForEverySchemeAndOddSizes) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{3, 64}, {5, 37}, {17, 33}, {1, 1}, {0, 4}, {4, 0}}) {
    const Tensor weight = random_matrix(rows, cols);
    for (const DType code : {DType::I8, DType::U8, DType::I4, DType::U4}) {
      for (const bool symmetric : {true, false}) {
        for (const DType scales : {DType::F32, DType::F16}) {
          for (const auto& [granularity, group] : {std::pair{Granularity::Tensor, 0},
                                                   {Granularity::Channel, 0},
                                                   {Granularity::Group, 32},
                                                   {Granularity::Group, 5}}) {
            QuantizeOptions options = options_of(code, symmetric, granularity, group);
            options.scale_dtype = scales;
            SCOPED_TRACE(concat(to_string(options.scheme), " ", rows, "x", cols));
            QuantizeError error;
            const QuantizedTensor q = quantize(weight, options, &error);
            q.check();
            expect_follows_the_formulas(weight, options, q);
            const Tensor back = dequantize(q);
            double noise = 0;
            double worst = 0;
            for (int64_t i = 0; i < weight.size(); ++i) {
              const double difference = weight.at(i) - back.at(i);
              noise += difference * difference;
              worst = std::max(worst, std::abs(difference));
            }
            EXPECT_NEAR(error.noise, noise, 1e-4 * noise + 1e-12);
            EXPECT_NEAR(static_cast<double>(error.max_error), worst, 1e-6);
          }
        }
      }
    }
  }
}

TEST(Quantize, ScalesFollowTheRanges) {
  const Tensor weight = Tensor::from<float>({2, 4}, {-4, 1, 2, 3, 0.5F, 1, 1.5F, 7});
  QuantizeOptions options = options_of(DType::I4, true, Granularity::Channel);
  options.range = SymmetricRange::Restricted;
  EXPECT_EQ(quantize(weight, options).scales.to_floats(), (std::vector<float>{4.0F / 7, 1.0F}));
  options.range = SymmetricRange::Full;
  const QuantizedTensor full = quantize(weight, options);
  EXPECT_EQ(full.scales.to_floats(), (std::vector<float>{0.5F, -0.875F}));
  EXPECT_EQ(full.codes.to_ints(), (std::vector<int64_t>{-8, 2, 4, 6, -1, -1, -2, -8}));
  const QuantizedTensor asymmetric = quantize(weight, options_of(DType::U4, false, Granularity::Channel));
  EXPECT_EQ(asymmetric.scales.to_floats(), (std::vector<float>{7.0F / 15, 7.0F / 15}));
  EXPECT_EQ(asymmetric.zero_points.to_ints(), (std::vector<int64_t>{9, 0}));
}

TEST(Quantize, BestIsNoWorseThanEitherRange) {
  const Tensor weight = random_matrix(64, 128);
  QuantizeOptions options = options_of(DType::I4, true, Granularity::Group, 32);
  std::map<SymmetricRange, double> noise;
  for (const SymmetricRange range :
       {SymmetricRange::Restricted, SymmetricRange::Full, SymmetricRange::Best}) {
    options.range = range;
    QuantizeError error;
    quantize(weight, options, &error);
    noise[range] = error.noise;
  }
  EXPECT_LT(noise[SymmetricRange::Best], noise[SymmetricRange::Restricted]);
  EXPECT_LT(noise[SymmetricRange::Best], noise[SymmetricRange::Full]);
}

TEST(Quantize, ZerosAndConstantsAreExact) {
  const Tensor weight = Tensor::from<float>({3, 4}, {0, 0, 0, 0, 3, 3, 3, 3, -3, -3, -3, -3});
  for (const bool symmetric : {true, false}) {
    for (const DType code : {DType::I4, DType::U4, DType::I8, DType::U8}) {
      for (const Granularity granularity : {Granularity::Channel, Granularity::Group}) {
        const QuantizedTensor q = quantize(weight, options_of(code, symmetric, granularity, 4));
        const std::vector<float> back = dequantize(q).to_floats();
        for (size_t i = 0; i < back.size(); ++i) {
          EXPECT_NEAR(back[i], weight.at(static_cast<int64_t>(i)), 1e-6) << to_string(q.scheme);
        }
      }
    }
  }
}

TEST(Quantize, RefusesWhatIsNotFiniteAndSaysWhere) {
  Tensor weight = random_matrix(20, 40);
  weight.set(7 * 40 + 3, std::numeric_limits<double>::quiet_NaN());
  const QuantizeOptions options = options_of(DType::I8, true, Granularity::Channel);
  EXPECT_QUERN_ERROR(quantize(weight, options), ErrorCode::BadData, "element 283", "nan");
  weight.set(7 * 40 + 3, std::numeric_limits<double>::infinity());
  EXPECT_QUERN_ERROR(quantize(weight, options_of(DType::I8, true, Granularity::Tensor)), ErrorCode::BadData,
                     "element 283", "inf");
}

TEST(Quantize, ScalesThatOverflowF16AreAnErrorAndTinyOnesAreDefined) {
  Tensor weight = Tensor::from<float>({2, 2}, {1, 2, 1e8F, 0});
  QuantizeOptions options = options_of(DType::I8, true, Granularity::Channel);
  options.scale_dtype = DType::F16;
  EXPECT_QUERN_ERROR(quantize(weight, options), ErrorCode::BadData, "overflows f16", "row 1", "f32 scales");
  options.scale_dtype = DType::F32;
  EXPECT_NEAR(dequantize(quantize(weight, options)).at(2), 1e8, 10);
  options.scale_dtype = DType::F16;
  const Tensor tiny = Tensor::from<float>({1, 2}, {1e-9F, -1e-9F});
  EXPECT_EQ(dequantize(quantize(tiny, options)).to_floats(), (std::vector<float>{0, 0}));
  const Tensor huge = Tensor::from<float>({1, 2}, {3e38F, -3e38F});
  const std::vector<float> back =
      dequantize(quantize(huge, options_of(DType::U8, false, Granularity::Channel))).to_floats();
  EXPECT_TRUE(std::isfinite(back[0]) && std::isfinite(back[1]));
  EXPECT_NEAR(back[0] / 3e38F, 1, 0.01);
}

TEST(Quantize, AcceptsHalfPrecisionWeightsAndRefusesOtherThings) {
  const Tensor weight = random_matrix(4, 32);
  const QuantizeOptions options = options_of(DType::I8, true, Granularity::Channel);
  const Tensor half = weight.cast(DType::F16);
  EXPECT_TRUE(identical(quantize(half, options).codes, quantize(half.cast(DType::F32), options).codes));
  EXPECT_QUERN_ERROR(quantize(Tensor::zeros(DType::I64, {2, 2}), options), ErrorCode::InvalidArgument, "i64");
  EXPECT_QUERN_ERROR(quantize(Tensor::zeros(DType::F32, {2}), options), ErrorCode::InvalidArgument, "[2]");
  EXPECT_QUERN_ERROR(quantize(weight, options_of(DType::I2, true, Granularity::Channel)),
                     ErrorCode::Unsupported, "i2");
  EXPECT_QUERN_ERROR(quantize(weight, options_of(DType::I8, true, Granularity::Group, 0)),
                     ErrorCode::InvalidArgument, "group size");
}

TEST(Quantize, LargeMatricesOnSeveralThreadsGiveTheSameAsTheirParts) {
  const int64_t rows = 2048;
  const int64_t cols = 515;
  const Tensor weight = random_matrix(rows, cols);
  const QuantizeOptions options = options_of(DType::I4, false, Granularity::Group, 32);
  QuantizeError error;
  const QuantizedTensor whole = quantize(weight, options, &error);
  QuantizeError parts_error;
  for (int64_t first = 0; first < rows; first += 256) {
    const QuantizedTensor part = quantize_rows(
        weight.data<float>().subspan(static_cast<size_t>(first * cols), static_cast<size_t>(256 * cols)),
        cols, options, {}, &parts_error, first);
    const int64_t bytes = part.codes.byte_size();
    EXPECT_EQ(
        std::memcmp(part.codes.bytes(), whole.codes.bytes() + first * cols / 2, static_cast<size_t>(bytes)),
        0);
  }
  EXPECT_DOUBLE_EQ(error.signal, parts_error.signal);
  EXPECT_DOUBLE_EQ(error.noise, parts_error.noise);
}

}  // namespace
}  // namespace quern
