#include "runtime/cpu/row_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "runtime/cpu/isa.h"

namespace quern::cpu {
namespace {

constexpr int64_t kSizes[] = {1, 2, 8, 15, 16, 17, 48, 64, 65, 100, 192, 2048};

std::vector<float> random_row(int64_t n, unsigned seed, float spread = 2.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.3f, spread);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(random);
  return v;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, float tolerance,
                 const char* what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], tolerance * (1 + std::fabs(wanted[i])))
        << what << ", element " << i << " of " << got.size();
  }
}

class RowKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  RowKernelsTest() : forced_(GetParam()), kernels_(row_kernels()), reference_(reference_row_kernels()) {}

 private:
  ForcedKernels forced_;

 protected:
  const RowKernels& kernels_;
  const RowKernels& reference_;
};

TEST_P(RowKernelsTest, Norms) {
  for (const int64_t n : kSizes) {
    const auto x = random_row(n, 1), skip = random_row(n, 2), bias = random_row(n, 3), w = random_row(n, 4),
               shift = random_row(n, 5);
    for (int variant = 0; variant < 16; ++variant) {
      std::vector<float> out[2], sum[2];
      for (int i = 0; i < 2; ++i) {
        out[i].resize(x.size());
        sum[i].resize(x.size());
        NormRow row;
        row.x = x.data();
        row.skip = (variant & 1) != 0 ? skip.data() : nullptr;
        row.bias = (variant & 2) != 0 ? bias.data() : nullptr;
        row.weight = w.data();
        row.sum = (variant & 4) != 0 ? sum[i].data() : nullptr;
        row.out = out[i].data();
        row.size = n;
        row.epsilon = 1e-5f;
        const RowKernels& table = i == 0 ? kernels_ : reference_;
        if ((variant & 8) != 0) {
          row.shift = shift.data();
          table.layer_norm(row);
        } else {
          table.rms_norm(row);
        }
      }
      expect_near(out[0], out[1], 2e-5f, "normed");
      expect_near(sum[0], sum[1], 1e-6f, "sum");
    }
  }
}

TEST_P(RowKernelsTest, NormsInPlace) {
  const auto w = random_row(100, 4);
  for (const bool layer : {false, true}) {
    std::vector<float> fresh(100), x = random_row(100, 1), skip = random_row(100, 2), sum(100);
    NormRow row;
    row.x = x.data();
    row.skip = skip.data();
    row.weight = w.data();
    row.size = 100;
    row.epsilon = 1e-6f;
    row.out = fresh.data();
    row.sum = sum.data();
    (layer ? kernels_.layer_norm : kernels_.rms_norm)(row);
    row.out = skip.data();
    row.sum = x.data();
    (layer ? kernels_.layer_norm : kernels_.rms_norm)(row);
    EXPECT_EQ(skip, fresh);
    EXPECT_EQ(x, sum);
  }
}

TEST_P(RowKernelsTest, UnaryFunctions) {
  for (const Unary op : {Unary::Identity, Unary::Relu, Unary::Silu, Unary::Gelu, Unary::GeluTanh,
                         Unary::GeluQuick, Unary::Sigmoid, Unary::Tanh, Unary::Erf, Unary::Exp}) {
    for (const int64_t n : kSizes) {
      const auto x = random_row(n, 6, 4.0f), up = random_row(n, 7);
      std::vector<float> got(x.size()), wanted(x.size());
      kernels_.unary(op, x.data(), got.data(), n);
      reference_.unary(op, x.data(), wanted.data(), n);
      expect_near(got, wanted, 2e-6f, "unary");
      kernels_.activate_multiply(op, x.data(), up.data(), got.data(), n);
      reference_.activate_multiply(op, x.data(), up.data(), wanted.data(), n);
      expect_near(got, wanted, 1e-5f, "activate_multiply");
    }
  }
}

TEST_P(RowKernelsTest, BinaryFunctions) {
  for (const BinaryOp op : {BinaryOp::Add, BinaryOp::Subtract, BinaryOp::Multiply, BinaryOp::Divide,
                            BinaryOp::Maximum, BinaryOp::Minimum}) {
    for (const int64_t n : kSizes) {
      const auto a = random_row(n, 8), b = random_row(n, 9);
      std::vector<float> got(a.size()), wanted(a.size());
      kernels_.binary(op, a.data(), b.data(), got.data(), n);
      reference_.binary(op, a.data(), b.data(), wanted.data(), n);
      EXPECT_EQ(got, wanted);
      kernels_.binary_scalar(op, a.data(), 1.7f, got.data(), n);
      reference_.binary_scalar(op, a.data(), 1.7f, wanted.data(), n);
      EXPECT_EQ(got, wanted);
      kernels_.scalar_binary(op, 1.7f, b.data(), got.data(), n);
      reference_.scalar_binary(op, 1.7f, b.data(), wanted.data(), n);
      EXPECT_EQ(got, wanted);
    }
  }
}

TEST_P(RowKernelsTest, SoftmaxAndReductions) {
  for (const int64_t n : kSizes) {
    const auto x = random_row(n, 10, 5.0f);
    std::vector<float> got(x.size()), wanted(x.size());
    kernels_.softmax(x.data(), got.data(), n);
    reference_.softmax(x.data(), wanted.data(), n);
    expect_near(got, wanted, 2e-6f, "softmax");
    for (const ReduceOp op :
         {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min, ReduceOp::SumOfSquares}) {
      const float value = reference_.reduce(op, x.data(), n);
      EXPECT_NEAR(kernels_.reduce(op, x.data(), n), value, 1e-4f * (1 + std::fabs(value)));
    }
  }
}

TEST_P(RowKernelsTest, Rotates) {
  for (const bool interleaved : {false, true}) {
    for (const auto& [head_size, rotary_size] :
         {std::pair<int64_t, int64_t>{32, 32}, {80, 32}, {20, 10}, {48, 48}}) {
      const auto cos = random_row(rotary_size / 2, 12), sin = random_row(rotary_size / 2, 13);
      std::vector<float> x[2] = {random_row(3 * head_size, 14), random_row(3 * head_size, 14)};
      for (int i = 0; i < 2; ++i) {
        RotaryRow row;
        row.x = x[i].data();
        row.cos = cos.data();
        row.sin = sin.data();
        row.heads = 3;
        row.head_size = head_size;
        row.rotary_size = rotary_size;
        row.interleaved = interleaved;
        (i == 0 ? kernels_ : reference_).rotate(row);
      }
      expect_near(x[0], x[1], 2e-6f, "rotated");
    }
  }
}

TEST(RowReference, IsForced) {
  const ForcedKernels forced(active_isa(), true);
  EXPECT_EQ(&row_kernels(), &reference_row_kernels());
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, RowKernelsTest, testing::ValuesIn(supported_isas()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace quern::cpu
