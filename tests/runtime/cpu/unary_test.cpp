#include "runtime/cpu/unary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace quern::cpu {
namespace {

double exact(Unary function, double x) {
  switch (function) {
    case Unary::Identity:
      return x;
    case Unary::Relu:
      return x > 0 ? x : 0;
    case Unary::Silu:
      return x / (1 + std::exp(-x));
    case Unary::Gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Unary::GeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Unary::GeluQuick:
      return x / (1 + std::exp(-1.702 * x));
    case Unary::Sigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::Tanh:
      return std::tanh(x);
    case Unary::Erf:
      return std::erf(x);
    case Unary::Exp:
      return std::exp(x);
  }
  return 0;
}

// Allowed error: `relative` units of the result, `absolute` of 1 (the Gelus lose relative accuracy in their
// tails).
struct Case {
  Unary function;
  double relative;
  double absolute;
};
constexpr double kUlp = 1.2e-7;
// GeluQuick rounds an argument of up to 34 before the exponential: 34 * 2^-24, or 17 units.
const Case kCases[] = {
    {Unary::Identity, 0, 0},           {Unary::Relu, 0, 0},
    {Unary::Silu, 4 * kUlp, 1e-37},    {Unary::Gelu, 4 * kUlp, 2e-6},
    {Unary::GeluTanh, 4 * kUlp, 1e-6}, {Unary::GeluQuick, 20 * kUlp, 1e-37},
    {Unary::Sigmoid, 4 * kUlp, 1e-37}, {Unary::Tanh, 3 * kUlp, 0},
    {Unary::Erf, 6 * kUlp, 0},         {Unary::Exp, 2 * kUlp, 1e-44},
};

TEST(Unary, AgreesWithDoublePrecision) {
  std::vector<float> x;
  for (double v = -20; v <= 20; v += 0.00371) x.push_back(static_cast<float>(v));
  for (double v = 1e-30; v < 1; v *= 3.7) {
    x.push_back(static_cast<float>(v));
    x.push_back(static_cast<float>(-v));
  }
  for (const Isa isa : supported_isas()) {
    for (const Case& c : kCases) {
      std::vector<float> y(x.size());
      apply_unary(c.function, x.data(), y.data(), static_cast<int64_t>(x.size()), isa);
      for (size_t i = 0; i < x.size(); ++i) {
        const double want = exact(c.function, x[i]);
        ASSERT_NEAR(y[i], want, c.relative * std::fabs(want) + c.absolute)
            << to_string(isa) << " function " << static_cast<int>(c.function) << " of " << x[i];
      }
    }
  }
}

TEST(Unary, ExpKeepsItsEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {-inf, -200.0F, -104.0F, -100.0F, -90.0F, 88.0F, 89.0F, inf, std::nanf("")};
  for (const Isa isa : supported_isas()) {
    std::vector<float> y(x.size());
    apply_unary(Unary::Exp, x.data(), y.data(), static_cast<int64_t>(x.size()), isa);
    EXPECT_EQ(y[0], 0.0F);
    EXPECT_EQ(y[1], 0.0F);
    EXPECT_NEAR(y[3], std::exp(-100.0), 1e-44);
    EXPECT_NEAR(y[4], std::exp(-90.0), 1e-44);
    EXPECT_NEAR(y[5] / std::exp(88.0), 1.0, 1e-6);
    EXPECT_EQ(y[6], inf);
    EXPECT_EQ(y[7], inf);
    EXPECT_TRUE(std::isnan(y[8])) << to_string(isa);
  }
}

TEST(Unary, NanComesThrough) {
  const float nan = std::nanf("");
  for (const Isa isa : supported_isas()) {
    for (const Case& c : kCases) {
      float y = 0;
      apply_unary(c.function, &nan, &y, 1, isa);
      EXPECT_TRUE(std::isnan(y)) << to_string(isa) << " function " << static_cast<int>(c.function);
    }
  }
}

TEST(Unary, AnElementDoesNotDependOnItsPlace) {
  std::vector<float> x(100);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.173F - 8.0F;
  for (const Isa isa : supported_isas()) {
    for (const Case& c : kCases) {
      std::vector<float> whole(x.size());
      apply_unary(c.function, x.data(), whole.data(), 100, isa);
      for (const int64_t cut : {1, 15, 16, 17, 63}) {
        std::vector<float> parts(x.size() + 1, -7.0F);
        apply_unary(c.function, x.data(), parts.data(), cut, isa);
        EXPECT_EQ(parts[static_cast<size_t>(cut)], -7.0F);  // nothing past the end
        apply_unary(c.function, x.data() + cut, parts.data() + cut, 100 - cut, isa);
        for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(parts[i], whole[i]);
      }
    }
  }
}

}  // namespace
}  // namespace quern::cpu
