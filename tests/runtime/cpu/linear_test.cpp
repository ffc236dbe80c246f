#include "runtime/cpu/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/runtime/cpu/weights.h"

namespace quern::cpu {
namespace {

using namespace test;

struct Product {
  std::vector<float> y;
  std::string implementation;
};

// x [rows, k] times weight, with the kernels of `isa`.
std::vector<float> product(const PackedTensor& weight, const std::vector<float>& x, int64_t rows,
                           ActivationMode mode, Isa isa, int threads = 1) {
  const ActivationFormat format = activation_format(weight.spec(), mode, isa);
  const OwnedActivations input(format, rows, x.data(), isa);
  std::vector<float> y(static_cast<size_t>(rows * weight.rows()), -1.0F);
  const LinearOp op{
      .weight = &weight, .input = &input.view, .y = y.data(), .y_stride = weight.rows(), .rows = rows};
  check_linear(op);
  ThreadTeam team(threads);
  LinearScratch scratch(threads);
  linear({&op, 1}, team, scratch);
  return y;
}

// What the kernel should compute, in double precision, and how far from it a correct kernel may be.
struct Bound {
  double value;
  double error;
};

// `x`: what the kernel multiplies with (decoded). Float sums: K products added one after another err by at
// most K * 2^-24 of the sum of magnitudes; block sums likewise, a block's conversion and two multiplications
// besides.
Bound expected(const std::vector<float>& w, const float* x, int64_t additions) {
  Bound out{0, 0};
  double magnitude = 0;
  for (size_t k = 0; k < w.size(); ++k) {
    const double term = double{w[k]} * double{x[k]};
    out.value += term;
    magnitude += std::fabs(term);
  }
  out.error = static_cast<double>(additions + 4) * std::ldexp(1.0, -24) * magnitude + 1e-30;
  return out;
}

void expect_near_reference(const PackedTensor& weight, const std::vector<float>& x, int64_t rows,
                           ActivationMode mode, Isa isa, int threads, const std::string& what) {
  const std::vector<float> y = product(weight, x, rows, mode, isa, threads);
  const ActivationFormat format = activation_format(weight.spec(), mode, isa);
  const OwnedActivations input(format, rows, x.data(), isa);
  const int64_t additions = format.block == 0 ? weight.cols() : format.blocks();
  std::vector<float> decoded(static_cast<size_t>(rows * weight.cols()));
  const auto width = static_cast<size_t>(weight.cols());
  for (int64_t r = 0; r < rows; ++r) {
    decode_activations(input.view, r, std::span(decoded).subspan(static_cast<size_t>(r) * width, width));
  }
  std::vector<float> w(width);
  for (int64_t n = 0; n < weight.rows(); ++n) {
    weight.dequantize_row(n, w);
    for (int64_t r = 0; r < rows; ++r) {
      const Bound bound = expected(w, decoded.data() + r * weight.cols(), additions);
      // The magnitudes of a block's terms are those of codes less the zero point; what is subtracted is
      // exact.
      ASSERT_NEAR(y[static_cast<size_t>(r * weight.rows() + n)], bound.value, bound.error)
          << what << " output " << n << " row " << r;
    }
  }
}

TEST(Linear, EveryFormatAgreesWithTheReference) {
  for (const Isa isa : supported_isas()) {
    for (const Format& format : all_formats()) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {33, 67}, {70, 400}}) {
        const PackedTensor weight = random_weight(n, k, format);
        for (const int64_t rows : {1, 2, 7}) {
          for (const ActivationMode mode : {ActivationMode::A16, ActivationMode::A8, ActivationMode::BF16}) {
            expect_near_reference(weight, random_floats(rows * k, 3), rows, mode, isa, 1,
                                  std::string(to_string(isa)) + " " + to_string(format) + " " +
                                      std::to_string(n) + "x" + std::to_string(k) + " rows " +
                                      std::to_string(rows) + " mode " +
                                      std::to_string(static_cast<int>(mode)));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

std::vector<Format> typical_formats() {
  return {float_format(DType::F32),          float_format(DType::F16),
          float_format(DType::BF16),         channel_format(DType::I8, true),
          channel_format(DType::U8, false),  group_format(DType::I8, true, 32),
          group_format(DType::I4, true, 32), group_format(DType::U4, false, 128),
          channel_format(DType::I4, true)};
}

TEST(Linear, ManyRowsOnSeveralThreadsAgreeWithTheReference) {
  for (const Isa isa : supported_isas()) {
    for (const Format& format : typical_formats()) {
      // More columns than a panel, more tiles than a group of them.
      const PackedTensor weight = random_weight(150, 1100, format);
      for (const int64_t rows : {17, 129}) {
        if (isa == Isa::Portable && rows > 17) continue;
        for (const ActivationMode mode : {ActivationMode::A16, ActivationMode::A8}) {
          expect_near_reference(
              weight, random_floats(rows * 1100, 4), rows, mode, isa, 3,
              std::string(to_string(isa)) + " " + to_string(format) + " rows " + std::to_string(rows));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// The promise that speculative decoding, prefix reuse and batching stand on.
TEST(Linear, ARowsBitsDoNotDependOnItsCompany) {
  constexpr int64_t kRows = 200;
  constexpr int64_t kColumns = 1072;
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::Portable) continue;
    for (const Format& format : typical_formats()) {
      const PackedTensor weight = random_weight(100, kColumns, format);
      const std::vector<float> x = random_floats(kRows * kColumns, 5);
      for (const ActivationMode mode : {ActivationMode::A16, ActivationMode::A8, ActivationMode::BF16}) {
        const std::vector<float> whole = product(weight, x, kRows, mode, isa, 2);
        std::vector<int64_t> chunks = {32, 64, 96, 97, 129};
        for (int64_t rows = 1; rows <= 17; ++rows) chunks.push_back(rows);
        for (const int64_t chunk : chunks) {
          const int64_t first = 37 % (kRows - chunk);
          const std::vector<float> part_x(x.begin() + first * kColumns,
                                          x.begin() + (first + chunk) * kColumns);
          for (const int threads : {1, 3}) {
            const std::vector<float> part = product(weight, part_x, chunk, mode, isa, threads);
            ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + first * 100))
                << to_string(isa) << " " << to_string(format) << " rows " << chunk << " threads " << threads;
          }
        }
      }
    }
  }
}

// Exact integers whatever the codes: a kernel that saturates or overflows anywhere fails here. With every
// scale a power of two and one block per group, the float arithmetic is exact as well.
TEST(Linear, ExtremeCodesDoNotSaturate) {
  for (const Isa isa : supported_isas()) {
    for (const DType code : {DType::I8, DType::U8, DType::I4, DType::U4}) {
      for (const bool symmetric : {true, false}) {
        for (const int64_t group : {32, 256, 4096}) {
          const int64_t k = 4096;
          const int bits = bit_width(code);
          const bool is_signed = is_signed_integer(code);
          const int64_t low = is_signed ? -(1 << (bits - 1)) : 0;
          const int64_t high = low + (1 << bits) - 1;
          QuantizedTensor weight;
          weight.scheme = {code, symmetric, Granularity::Group, 1, group};
          weight.codes = Tensor::zeros(code, {16, k});
          weight.scales = Tensor::zeros(DType::F32, {16, k / group});
          for (int64_t i = 0; i < weight.scales.size(); ++i) weight.scales.set(i, 1.0);
          if (!symmetric) weight.zero_points = Tensor::zeros(code, weight.scales.shape());
          // Outputs: all low, all high, alternating, and with the zero point at the other end.
          for (int64_t n = 0; n < 16; ++n) {
            for (int64_t i = 0; i < k; ++i) {
              const bool top = (n & 1) != 0 || ((n & 2) != 0 && i % 2 == 0);
              weight.codes.set_int(n * k + i, top ? high : low);
            }
            for (int64_t g = 0; !symmetric && g < k / group; ++g) {
              weight.zero_points.set_int(n * (k / group) + g, (n & 4) != 0 ? low : high);
            }
          }
          const PackedTensor packed = pack(weight);
          std::vector<float> x(static_cast<size_t>(7 * k));
          for (int64_t r = 0; r < 7; ++r) {
            for (int64_t i = 0; i < k; ++i) {
              const bool negative = r == 1 || (r >= 2 && i % r == 0);
              x[static_cast<size_t>(r * k + i)] = negative ? -1.0F : 1.0F;
            }
          }
          for (const ActivationMode mode : {ActivationMode::A16, ActivationMode::A8}) {
            for (const int64_t rows : {1, 7}) {
              const std::vector<float> y = product(packed, x, rows, mode, isa);
              std::vector<float> w(static_cast<size_t>(k));
              for (int64_t n = 0; n < 16; ++n) {
                packed.dequantize_row(n, w);
                for (int64_t r = 0; r < rows; ++r) {
                  double want = 0;
                  double magnitude = 0;
                  for (int64_t i = 0; i < k; ++i) {
                    want += double{w[static_cast<size_t>(i)]} * x[static_cast<size_t>(r * k + i)];
                    magnitude += std::fabs(w[static_cast<size_t>(i)]);
                  }
                  ASSERT_NEAR(y[static_cast<size_t>(r * 16 + n)], want, 1e-6 * magnitude + 1e-30)
                      << to_string(isa) << " " << to_string(weight.scheme) << " mode "
                      << static_cast<int>(mode) << " output " << n << " row " << r;
                }
              }
            }
          }
        }
      }
    }
  }
}

// The byte dot products that this machine may lack, by the portable kernels: their inputs and their sums are
// the same code on the machines that have them.
TEST(Linear, ByteInputsGiveTheBitsOfWordInputs) {
  for (const Format& format : all_formats()) {
    if (format.dtype != DType::Undefined) continue;
    const PackedTensor weight = random_weight(40, 610, format);
    for (const int64_t rows : {1, 3, 9}) {
      const std::vector<float> x = random_floats(rows * 610, 6);
      for (const ActivationMode mode : {ActivationMode::A16, ActivationMode::A8}) {
        const std::vector<float> words = product(weight, x, rows, mode, Isa::Portable);
        ActivationFormat bytes = activation_format(weight.spec(), mode, Isa::Portable);
        ASSERT_EQ(bytes.code, ActivationCode::S16Pairs);
        bytes.code = mode == ActivationMode::A8 ? ActivationCode::S8 : ActivationCode::S8HiLo;
        const OwnedActivations input(bytes, rows, x.data(), Isa::Portable);
        std::vector<float> y(words.size());
        const LinearOp op{
            .weight = &weight, .input = &input.view, .y = y.data(), .y_stride = 40, .rows = rows};
        LinearScratch scratch(1);
        linear({&op, 1}, 0, 1, scratch);
        ASSERT_EQ(y, words) << to_string(format) << " rows " << rows;
      }
    }
  }
}

TEST(Linear, BF16InputsOfBF16Weights) {
  const PackedTensor weight = random_weight(40, 601, float_format(DType::BF16));
  for (const int64_t rows : {1, 4, 9}) {
    const std::vector<float> x = random_floats(rows * 601, 7);
    ActivationFormat format = activation_format(weight.spec(), ActivationMode::A16, Isa::Portable);
    format.code = ActivationCode::BF16;
    format.bits = 16;
    const OwnedActivations input(format, rows, x.data(), Isa::Portable);
    std::vector<float> y(static_cast<size_t>(rows * 40));
    const LinearOp op{.weight = &weight, .input = &input.view, .y = y.data(), .y_stride = 40, .rows = rows};
    LinearScratch scratch(1);
    linear({&op, 1}, 0, 1, scratch);
    std::vector<float> w(601);
    std::vector<float> decoded(601);
    for (int64_t r = 0; r < rows; ++r) {
      decode_activations(input.view, r, decoded);
      for (int64_t n = 0; n < 40; ++n) {
        weight.dequantize_row(n, w);
        const Bound bound = expected(w, decoded.data(), 601);
        ASSERT_NEAR(y[static_cast<size_t>(r * 40 + n)], bound.value, bound.error);
      }
    }
  }
}

TEST(Linear, SixteenBitInputsAreNearlyExact) {
  const Format format = group_format(DType::I4, true, 32);
  const PackedTensor weight = random_weight(64, 2048, format);
  const std::vector<float> x = random_floats(2048, 8);
  std::vector<float> w(2048);
  for (const Isa isa : supported_isas()) {
    const std::vector<float> y = product(weight, x, 1, ActivationMode::A16, isa);
    for (int64_t n = 0; n < 64; ++n) {
      weight.dequantize_row(n, w);
      const Bound bound = expected(w, x.data(), 64);
      // Half a step of each block's scale, max |x| / 32639, times the magnitudes of its weights.
      double error = bound.error;
      for (size_t begin = 0; begin < 2048; begin += 32) {
        float largest = 0;
        double weights = 0;
        for (size_t k = begin; k < begin + 32; ++k) {
          largest = std::max(largest, std::fabs(x[k]));
          weights += std::fabs(w[k]);
        }
        error += 0.5001 * largest / 32639 * weights;
      }
      EXPECT_NEAR(y[static_cast<size_t>(n)], bound.value, error);
    }
  }
}

TEST(Linear, NonFiniteInputsShow) {
  for (const Isa isa : supported_isas()) {
    for (const Format& format : typical_formats()) {
      const PackedTensor weight = random_weight(20, 100, format);
      for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
        std::vector<float> x = random_floats(300, 9);
        x[150] = bad;  // row 1
        const std::vector<float> y = product(weight, x, 3, ActivationMode::A16, isa);
        for (size_t n = 0; n < 20; ++n) {
          EXPECT_TRUE(std::isfinite(y[n])) << to_string(format);
          EXPECT_FALSE(std::isfinite(y[20 + n])) << to_string(format);
          EXPECT_TRUE(std::isfinite(y[40 + n])) << to_string(format);
        }
      }
    }
  }
}

TEST(Linear, ZeroAndTinyInputsGiveZero) {
  for (const Isa isa : supported_isas()) {
    const PackedTensor weight = random_weight(20, 100, group_format(DType::I8, false, 32));
    std::vector<float> x(100, 0.0F);
    EXPECT_EQ(product(weight, x, 1, ActivationMode::A16, isa), std::vector<float>(20, 0.0F));
    x[3] = 1e-39F;
    EXPECT_EQ(product(weight, x, 1, ActivationMode::A16, isa), std::vector<float>(20, 0.0F));
  }
}

// ---- Epilogues.

struct Epilogue {
  bool bias, gated, row_scale, residual, lists;
  Unary activation;
};

TEST(Linear, EpiloguesAgreeWithTheReference) {
  const std::vector<Epilogue> cases = {
      {true, false, false, false, false, Unary::Identity},
      {true, false, false, true, false, Unary::GeluTanh},
      {false, true, false, false, false, Unary::Silu},
      {true, true, true, true, true, Unary::Gelu},
      {false, false, true, true, true, Unary::Relu},
      {true, false, false, false, true, Unary::GeluQuick},
  };
  constexpr int64_t kN = 75;
  constexpr int64_t kK = 96;
  constexpr int64_t kInputs = 40;
  const std::vector<float> x = random_floats(kInputs * kK, 10);
  const std::vector<float> bias = random_floats(kN, 11);
  const std::vector<float> up_bias = random_floats(kN, 12);
  const std::vector<float> scales = random_floats(kInputs, 13);
  std::vector<int32_t> input_rows;
  std::vector<int32_t> output_rows;
  for (int32_t i = 0; i < 30; ++i) {
    input_rows.push_back(i * 7 % 40);
    output_rows.push_back(i * 11 % 40);
  }
  for (const Isa isa : supported_isas()) {
    for (const Format& format : {float_format(DType::F32), group_format(DType::I4, true, 32)}) {
      const PackedTensor weight = random_weight(kN, kK, format, 1);
      const PackedTensor up = random_weight(kN, kK, format, 2);
      for (const Epilogue& c : cases) {
        for (const int64_t rows : {1, 5, 30}) {
          const auto run = [&](bool reference) {
            const ForcedKernels forced(isa, reference);
            const OwnedActivations input(activation_format(weight.spec(), ActivationMode::A16), kInputs,
                                         x.data());
            std::vector<float> y = random_floats(kInputs * 80, 14);  // the residual, in place
            const LinearOp op{.weight = &weight,
                              .up = c.gated ? &up : nullptr,
                              .input = &input.view,
                              .bias = c.bias ? bias.data() : nullptr,
                              .up_bias = c.bias && c.gated ? up_bias.data() : nullptr,
                              .activation = c.activation,
                              .row_scale = c.row_scale ? scales.data() : nullptr,
                              .residual = c.residual ? y.data() : nullptr,
                              .residual_stride = 80,
                              .y = y.data(),
                              .y_stride = 80,
                              .rows = rows,
                              .input_rows = c.lists ? input_rows.data() : nullptr,
                              .output_rows = c.lists ? output_rows.data() : nullptr};
            check_linear(op);
            LinearScratch scratch(2);
            ThreadTeam team(2);
            linear({&op, 1}, team, scratch);
            return y;
          };
          const std::vector<float> fast = run(false);
          const std::vector<float> slow = run(true);
          for (size_t i = 0; i < fast.size(); ++i) {
            ASSERT_NEAR(fast[i], slow[i], 3e-4 * (1 + std::fabs(slow[i]))) << to_string(isa) << " " << i;
          }
        }
      }
    }
  }
}

// ---- Several products at once.

TEST(Linear, ProductsInOneCallAreProductsApart) {
  const std::vector<int64_t> widths = {130, 16, 40, 16};
  for (const int64_t rows : {1, 20, 80}) {
    const std::vector<float> x = random_floats(rows * 256, 15);
    std::vector<PackedTensor> weights;
    for (size_t i = 0; i < widths.size(); ++i) {
      weights.push_back(
          random_weight(widths[i], 256, group_format(DType::I8, true, 64), static_cast<uint32_t>(i)));
    }
    const OwnedActivations input(activation_format(weights[0].spec(), ActivationMode::A16), rows, x.data());
    for (const int threads : {1, 2, 3, 8}) {
      for (const LinearPartition partition : {LinearPartition::Together, LinearPartition::InOrder}) {
        std::vector<std::vector<float>> y;
        std::vector<LinearOp> ops;
        for (const int64_t width : widths) y.emplace_back(static_cast<size_t>(rows * width), -1.0F);
        for (size_t i = 0; i < widths.size(); ++i) {
          ops.push_back({.weight = &weights[i],
                         .input = &input.view,
                         .y = y[i].data(),
                         .y_stride = widths[i],
                         .rows = rows});
        }
        ThreadTeam team(threads);
        LinearScratch scratch(threads);
        linear(ops, team, scratch, partition);
        for (size_t i = 0; i < widths.size(); ++i) {
          EXPECT_EQ(y[i], product(weights[i], x, rows, ActivationMode::A16, active_isa()))
              << i << " of " << threads;
        }
      }
    }
  }
}

TEST(Linear, ProductsInOrderAddToOneOutput) {
  const PackedTensor first = random_weight(100, 64, float_format(DType::F32), 1);
  const PackedTensor second = random_weight(100, 64, float_format(DType::F32), 2);
  const std::vector<float> x = random_floats(64, 16);
  const OwnedActivations input(activation_format(first.spec(), ActivationMode::A16), 1, x.data());
  std::vector<float> want = product(first, x, 1, ActivationMode::A16, active_isa());
  const std::vector<float> more = product(second, x, 1, ActivationMode::A16, active_isa());
  for (size_t i = 0; i < want.size(); ++i) want[i] = more[i] + want[i];
  std::vector<float> y(100, 0.0F);
  const LinearOp one{.weight = &first, .input = &input.view, .residual = y.data(), .y = y.data(), .rows = 1};
  LinearOp two = one;
  two.weight = &second;
  const std::vector<LinearOp> ops = {one, two};
  ThreadTeam team(3);
  LinearScratch scratch(3);
  linear(ops, team, scratch, LinearPartition::InOrder);
  EXPECT_EQ(y, want);
}

// ---- Choosing kernels.

TEST(Linear, TheReferenceRunsWhenForced) {
  const PackedTensor weight = random_weight(50, 300, group_format(DType::I4, true, 32));
  const std::vector<float> x = random_floats(300, 17);
  const ForcedKernels forced(supported_isas().back(), true);
  const ActivationFormat format = activation_format(weight.spec(), ActivationMode::A8);
  EXPECT_EQ(format.code, ActivationCode::F32);  // no kernel rounds the inputs
  const OwnedActivations input(format, 1, x.data());
  EXPECT_EQ(linear_implementation(input.view), "reference");
  std::vector<float> y(50);
  const LinearOp op{.weight = &weight, .input = &input.view, .y = y.data(), .y_stride = 50, .rows = 1};
  LinearScratch scratch(1);
  linear({&op, 1}, 0, 1, scratch);
  std::vector<float> w(300);
  for (int64_t n = 0; n < 50; ++n) {
    weight.dequantize_row(n, w);
    double sum = 0;
    for (size_t k = 0; k < 300; ++k) sum += double{w[k]} * double{x[k]};
    EXPECT_EQ(y[static_cast<size_t>(n)], static_cast<float>(sum));  // to the bit: double sums, rounded once
  }
}

TEST(Linear, NamesItsImplementation) {
  const PackedTensor weight = random_weight(16, 16, float_format(DType::F32));
  const std::vector<float> x(16, 1.0F);
  for (const Isa isa : supported_isas()) {
    const ForcedKernels forced(isa);
    const OwnedActivations input(activation_format(weight.spec(), ActivationMode::A16), 1, x.data());
    EXPECT_EQ(linear_implementation(input.view), to_string(isa));
  }
}

TEST(Linear, CheckFindsWhatDoesNotFit) {
  const PackedTensor weight = random_weight(20, 64, group_format(DType::I4, true, 32));
  const PackedTensor other = random_weight(20, 48, group_format(DType::I4, true, 32));
  const PackedTensor floats = random_weight(20, 64, float_format(DType::F32));
  const std::vector<float> x(64 * 3, 1.0F);
  const OwnedActivations input(activation_format(weight.spec(), ActivationMode::A16), 3, x.data());
  std::vector<float> y(60);
  const LinearOp good{.weight = &weight, .input = &input.view, .y = y.data(), .y_stride = 20, .rows = 3};
  EXPECT_NO_THROW(check_linear(good));
  const auto broken = [&](auto change) {
    LinearOp op = good;
    change(op);
    EXPECT_THROW(check_linear(op), Error);
  };
  const std::vector<int32_t> list = {0, 3, 1};
  broken([&](LinearOp& op) { op.weight = nullptr; });
  broken([&](LinearOp& op) { op.weight = &other; });
  broken([&](LinearOp& op) { op.weight = &floats; });
  broken([&](LinearOp& op) { op.up = &floats; });
  broken([&](LinearOp& op) { op.rows = 4; });
  broken([&](LinearOp& op) { op.y = nullptr; });
  broken([&](LinearOp& op) { op.y_stride = 19; });
  broken([&](LinearOp& op) { op.input_rows = list.data(); });
}

TEST(Activations, RefuseMemoryThatIsTooSmall) {
  const PackedTensor weight = random_weight(20, 64, group_format(DType::I4, true, 32));
  const ActivationFormat format = activation_format(weight.spec(), ActivationMode::A16);
  Tensor memory = Tensor::zeros(DType::U8, {Activations::byte_size(format, 3)});
  const std::span<std::byte> bytes(memory.mutable_bytes(), static_cast<size_t>(memory.byte_size()));
  EXPECT_NO_THROW(Activations::place(format, 3, bytes));
  EXPECT_THROW(Activations::place(format, 3, bytes.first(bytes.size() - 1)), Error);
  EXPECT_THROW(Activations::place(format, 1, bytes.subspan(4)), Error);
}

}  // namespace
}  // namespace quern::cpu
