// Clipping, least squares, half-quadratic, few bits and 8-bit floats.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ir/quantize.h"
#include "ir/segment_quantizer.h"
#include "tests/support/expect_error.h"

namespace quern {
namespace {

using Granularity = QuantScheme::Granularity;

// Heavy tails: what clipping is for.
Tensor heavy_tailed(int64_t rows, int64_t cols, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::student_t_distribution<float> wide(4);
  Tensor tensor = Tensor::zeros(DType::F32, {rows, cols});
  for (float& value : tensor.mutable_data<float>()) value = wide(random);
  return tensor;
}

QuantizeOptions grouped(int bits, bool symmetric, int64_t group = 64) {
  QuantizeOptions options;
  options.scheme = {.code = symmetric ? DType::I4 : DType::U4,
                    .symmetric = symmetric,
                    .granularity = Granularity::Group,
                    .axis = 1,
                    .group_size = group,
                    .bits = bits == 4 ? 0 : bits};
  options.scale_dtype = DType::F16;
  return options;
}

double noise_of(const Tensor& weight, const QuantizeOptions& options) {
  QuantizeError error;
  const QuantizedTensor q = quantize(weight, options, &error);
  const std::vector<float> values = dequantize(q).to_floats();
  double noise = 0;
  for (int64_t i = 0; i < weight.size(); ++i) {
    const double importance =
        options.importance.empty() ? 1.0 : double{options.importance[static_cast<size_t>(i % weight.dim(1))]};
    noise += importance * std::pow(double{values[static_cast<size_t>(i)]} - weight.at(i), 2);
  }
  if (options.importance.empty()) {
    EXPECT_NEAR(error.noise, noise, 1e-4 * noise);
  }
  return noise;
}

TEST(ScaleSearch, FewerBitsUseTheirCodesAndNoOthers) {
  const Tensor weight = heavy_tailed(32, 100);
  for (const int bits : {4, 3, 2}) {
    for (const bool symmetric : {true, false}) {
      const QuantizedTensor q = quantize(weight, grouped(bits, symmetric));
      q.check();
      const int64_t low = symmetric ? -(1 << (bits - 1)) : 0;
      for (int64_t i = 0; i < q.codes.size(); ++i) {
        ASSERT_GE(q.codes.int_at(i), low);
        ASSERT_LT(q.codes.int_at(i), low + (1 << bits));
      }
    }
  }
  EXPECT_LT(noise_of(weight, grouped(4, true)), noise_of(weight, grouped(3, true)));
  EXPECT_LT(noise_of(weight, grouped(3, true)), noise_of(weight, grouped(2, true)));
}

TEST(ScaleSearch, LeastSquaresAndMeanSquareClippingNeverErrMore) {
  const Tensor weight = heavy_tailed(64, 256);
  for (const int bits : {4, 3, 2}) {
    for (const bool symmetric : {true, false}) {
      QuantizeOptions options = grouped(bits, symmetric);
      const double nearest = noise_of(weight, options);
      options.clip.kind = ClipKind::MeanSquare;
      const double clipped = noise_of(weight, options);
      options.clip.kind = ClipKind::None;
      options.method = ScaleMethod::LeastSquares;
      const double fitted = noise_of(weight, options);
      EXPECT_LT(clipped, nearest) << bits;
      EXPECT_LE(fitted, clipped * 1.0001) << bits;
    }
  }
}

TEST(ScaleSearch, LeastSquaresSparesWhatIsImportant) {
  const Tensor weight = heavy_tailed(64, 128);
  std::vector<float> importance(128, 0.01F);
  for (size_t i = 0; i < importance.size(); i += 8) importance[i] = 10;
  QuantizeOptions options = grouped(3, true);
  options.method = ScaleMethod::LeastSquares;
  const QuantizedTensor blind = quantize(weight, options);
  options.importance = importance;
  const QuantizedTensor weighted = quantize(weight, options);
  const auto error = [&](const QuantizedTensor& q) {
    const std::vector<float> values = dequantize(q).to_floats();
    double sum = 0;
    for (int64_t i = 0; i < weight.size(); ++i) {
      sum += double{importance[static_cast<size_t>(i % 128)]} *
             std::pow(double{values[static_cast<size_t>(i)]} - weight.at(i), 2);
    }
    return sum;
  };
  EXPECT_LT(error(weighted), 0.9 * error(blind));
}

TEST(ScaleSearch, HalfQuadraticLowersTheErrorThatItIsAbout) {
  const Tensor weight = heavy_tailed(64, 256);
  QuantizeOptions options = grouped(3, true);
  const auto norm = [&] {
    const std::vector<float> values = dequantize(quantize(weight, options)).to_floats();
    double sum = 0;
    for (int64_t i = 0; i < weight.size(); ++i)
      sum += std::pow(std::fabs(double{values[static_cast<size_t>(i)]} - weight.at(i)), 0.7);
    return sum;
  };
  const double nearest = norm();
  options.method = ScaleMethod::HalfQuadratic;
  EXPECT_LT(norm(), nearest);
}

TEST(ScaleSearch, PercentileCutsTheTail) {
  Tensor weight = Tensor::zeros(DType::F32, {1, 1000});
  for (int64_t i = 0; i < 1000; ++i)
    weight.set(i, (i % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(i + 1) / 1000);
  weight.set(999, -50);
  QuantizeOptions options;
  options.range = SymmetricRange::Restricted;
  EXPECT_FLOAT_EQ(static_cast<float>(quantize(weight, options).scales.at(0)), 50.0F / 127);
  options.clip = {.kind = ClipKind::Percentile, .percentile = 99.9};
  EXPECT_FLOAT_EQ(static_cast<float>(quantize(weight, options).scales.at(0)), 0.999F / 127);
  options.scheme.code = DType::U8;
  options.scheme.symmetric = false;
  options.clip.percentile = 99;  // half a percent on either side
  const QuantizedTensor q = quantize(weight, options);
  EXPECT_NEAR(q.scales.at(0), (0.991 + 0.990) / 255, 0.01 / 255);
}

TEST(ScaleSearch, DivergenceCutsAnOutlierAndKeepsWhatIsEven) {
  std::vector<double> histogram(1024, 10.0);
  EXPECT_EQ(least_divergence_cut(histogram, 8), 1024);
  for (size_t i = 0; i < histogram.size(); ++i)
    histogram[i] = i < 64 ? 1000 * std::exp(-std::pow(static_cast<double>(i) / 20, 2)) : 0;
  histogram.back() = 1;
  const int64_t cut = least_divergence_cut(histogram, 8);
  EXPECT_LE(cut, 128);
  EXPECT_GE(cut, 40);
  EXPECT_EQ(least_divergence_cut(std::vector<double>(4, 1.0), 8), 4);
  EXPECT_EQ(least_divergence_cut(std::vector<double>(1024, 0.0), 8), 1024);
}

TEST(ScaleSearch, EightBitFloatsAreWithinTheirPrecision) {
  const Tensor weight = heavy_tailed(16, 64);
  for (const DType code : {DType::F8E4M3, DType::F8E5M2}) {
    QuantizeOptions options;
    options.scheme.code = code;
    const QuantizedTensor q = quantize(weight, options);
    q.check();
    const std::vector<float> values = dequantize(q).to_floats();
    const double step = code == DType::F8E4M3 ? 1.0 / 16 : 1.0 / 8;
    for (int64_t n = 0; n < 16; ++n) {
      int exponent = 0;
      EXPECT_EQ(std::frexp(q.scales.at(n), &exponent), 0.5) << "not a power of two";
      for (int64_t k = 0; k < 64; ++k) {
        const double w = weight.at(n * 64 + k);
        // Half a step of the significand, or of the smallest number.
        const double smallest = q.scales.at(n) * (code == DType::F8E4M3 ? 0x1p-10 : 0x1p-17);
        EXPECT_LE(std::fabs(double{values[static_cast<size_t>(n * 64 + k)]} - w),
                  std::max(step * std::fabs(w), smallest) * 1.0001);
      }
    }
  }
}

TEST(ScaleSearch, ZerosAndConstantsAreDefined) {
  for (const ScaleMethod method :
       {ScaleMethod::Range, ScaleMethod::LeastSquares, ScaleMethod::HalfQuadratic}) {
    for (const ClipKind clip :
         {ClipKind::None, ClipKind::Percentile, ClipKind::MeanSquare, ClipKind::Divergence}) {
      for (const bool symmetric : {true, false}) {
        for (const float value : {0.0F, 0.25F, -3.0F}) {
          QuantizeOptions options = grouped(4, symmetric, 32);
          options.method = method;
          options.clip.kind = clip;
          Tensor weight = Tensor::zeros(DType::F32, {16, 40});
          for (float& each : weight.mutable_data<float>()) each = value;
          for (const float back : dequantize(quantize(weight, options)).to_floats())
            EXPECT_NEAR(back, value, 0.002F * std::fabs(value))
                << to_string(method) << to_string(options.clip);
        }
      }
    }
  }
}

TEST(ScaleSearch, ImportanceOfZeroEverywhereStillGivesCodes) {
  const Tensor weight = heavy_tailed(4, 32);
  const std::vector<float> importance(32, 0.0F);
  QuantizeOptions options = grouped(4, true, 32);
  options.method = ScaleMethod::LeastSquares;
  options.importance = importance;
  for (const float value : dequantize(quantize(weight, options)).to_floats())
    EXPECT_TRUE(std::isfinite(value));
}

TEST(ScaleSearch, RefusesWhatMakesNoSense) {
  const Tensor weight = heavy_tailed(4, 32);
  const std::vector<float> short_importance(31, 1.0F);
  QuantizeOptions options = grouped(4, true);
  options.importance = short_importance;
  EXPECT_QUERN_ERROR(quantize(weight, options), ErrorCode::InvalidArgument, "importance of 31");
  options = {};
  options.scheme.granularity = Granularity::Tensor;
  options.clip.kind = ClipKind::MeanSquare;
  EXPECT_QUERN_ERROR(quantize(weight, options), ErrorCode::Unsupported, "per channel or group");
  options = {};
  options.scheme.code = DType::F8E4M3;
  options.scheme.symmetric = false;
  EXPECT_QUERN_ERROR(quantize(weight, options), ErrorCode::InvalidArgument, "no zero points");
  options = {};
  options.scheme.bits = 5;
  EXPECT_QUERN_ERROR(quantize(weight, options), ErrorCode::Unsupported, "5 bits");
}

TEST(ScaleSearch, ClipRulesReadAsTheyAreWritten) {
  for (const char* text : {"none", "percentile:99.9", "mse", "kl"})
    EXPECT_EQ(to_string(parse_clip_rule(text)), text);
  for (const char* text : {"percentile:", "percentile:20", "percentile:x", "entropy", ""})
    EXPECT_QUERN_ERROR(parse_clip_rule(text), ErrorCode::InvalidArgument, "percentile:99.9");
}

}  // namespace
}  // namespace quern
