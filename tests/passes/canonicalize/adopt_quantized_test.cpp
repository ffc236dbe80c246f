#include "ir/schema.h"
#include "tests/passes/pass_test.h"

namespace quern::test {
namespace {

// The reference kernels of the quantized operators are the oracle: the pass must change no number.
class AdoptQuantizedTest : public PassTest {
 protected:
  static constexpr int64_t kIn = 40, kOut = 6;

  Value* input(Rewriter& r) { return r.add_input("x", f32({sym("b"), kIn})); }
  Value* node(Rewriter& r, const char* op, std::vector<Value*> inputs, Attributes attributes = {},
              const char* domain = "") {
    return r
        .add_node(
            {.op = op, .domain = domain, .inputs = std::move(inputs), .attributes = std::move(attributes)})
        ->output();
  }
  static Tensor codes(DType dtype, Shape shape, int64_t low, int64_t count) {
    Tensor tensor = Tensor::zeros(dtype, std::move(shape));
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set_int(i, low + (i * 7 + i / 5) % count);
    return tensor;
  }
  static Tensor scales(Shape shape, DType dtype = DType::F32) {
    Tensor tensor = Tensor::zeros(dtype, std::move(shape));
    for (int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, (i % 3 == 1 ? -1 : 1) * (0.25 + 0.125 * (i % 5)));
    return tensor;
  }
  const QuantizedTensor& weight() {
    for (const Node* each : graph().nodes()) {
      if (each->is("Linear", kQuernDomain)) return *each->input(1)->quantized();
      if (each->is("Embedding", kQuernDomain)) return *each->input(0)->quantized();
    }
    throw std::runtime_error("no weight");
  }
};

struct Bits {
  int64_t bits;
  bool zero_points;
};

class MatMulNBitsTest : public AdoptQuantizedTest, public testing::WithParamInterface<Bits> {};

// 40 columns in blocks of 16: the last block is short, and its codes are padded.
TEST_P(MatMulNBitsTest, BecomesLinear) {
  const auto [bits, zero_points] = GetParam();
  build([&](Rewriter& r) {
    const int64_t bytes = 16 * bits / 8;
    const int64_t point_bytes = (3 * bits + 7) / 8;
    std::vector<Value*> inputs = {input(r), r.add_constant(codes(DType::U8, {kOut, 3, bytes}, 0, 251), "w"),
                                  r.add_constant(scales({kOut, 3}), "s")};
    if (zero_points) inputs.push_back(r.add_constant(codes(DType::U8, {kOut, point_bytes}, 0, 256), "z"));
    r.add_output(
        node(r, "MatMulNBits", inputs, {{"N", kOut}, {"K", kIn}, {"bits", bits}, {"block_size", int64_t{16}}},
             "com.microsoft"),
        "y");
  });
  expect_fires("adopt-quantized");
  expect_ops({"Linear"});
  EXPECT_EQ(bit_width(weight().scheme.code), bits);
  EXPECT_EQ(weight().scheme.symmetric, !zero_points);
  EXPECT_EQ(weight().scheme.group_size, 16);
}

INSTANTIATE_TEST_SUITE_P(Bits, MatMulNBitsTest,
                         testing::Values(Bits{2, false}, Bits{2, true}, Bits{4, false}, Bits{4, true},
                                         Bits{8, false}, Bits{8, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.bits) +
                                  (info.param.zero_points ? "_asymmetric" : "");
                         });

TEST_F(AdoptQuantizedTest, MatMulNBitsWithPermutedColumnsStays) {
  numeric_ = false;  // no kernel takes g_idx
  build([&](Rewriter& r) {
    r.add_output(
        node(r, "MatMulNBits",
             {input(r), r.add_constant(codes(DType::U8, {kOut, 3, 8}, 0, 251)),
              r.add_constant(scales({kOut, 3})), nullptr, r.add_constant(codes(DType::I32, {48}, 0, 3))},
             {{"N", kOut}, {"K", kIn}, {"bits", int64_t{4}}, {"block_size", int64_t{16}}}, "com.microsoft"),
        "y");
  });
  EXPECT_TRUE(has_reason(expect_no_match("adopt-quantized"), "g_idx"));
}

TEST_F(AdoptQuantizedTest, MatMulBnb4BecomesNumbers) {
  for (const int64_t type : {0, 1}) {
    build([&](Rewriter& r) {
      r.add_output(
          node(r, "MatMulBnb4",
               {input(r), r.add_constant(codes(DType::U8, {kIn * kOut / 2}, 0, 256)),
                r.add_constant(scales({kIn * kOut / 16}))},
               {{"N", kOut}, {"K", kIn}, {"block_size", int64_t{16}}, {"quant_type", type}}, "com.microsoft"),
          "y");
    });
    expect_fires("adopt-quantized");
    expect_ops({"Linear"});
  }
}

TEST_F(AdoptQuantizedTest, BlocksOfDequantizeLinear) {
  for (const DType dtype : {DType::I4, DType::U4, DType::I8}) {
    build([&](Rewriter& r) {
      const int64_t low = dtype == DType::U4 ? 0 : -8;
      Value* w =
          node(r, "DequantizeLinear",
               {r.add_constant(codes(dtype, {32, kOut}, low, 16), "w"), r.add_constant(scales({2, kOut}))},
               {{"axis", int64_t{0}}, {"block_size", int64_t{16}}});
      r.add_output(node(r, "MatMul", {r.add_input("x", f32({sym("b"), 32})), w}), "y");
    });
    expect_fires("adopt-quantized");
    expect_fires("fuse-linear");
    expect_ops({"Linear"});
    EXPECT_EQ(weight().scheme.axis, 1);
    EXPECT_EQ(weight().scheme.code, dtype);
    // An unsigned code without a zero point counts from 0.
    EXPECT_EQ(weight().scheme.symmetric, dtype != DType::U4);
  }
}

// What dynamic quantization makes of a product: activations were rounded for all rows at once, and are not
// any more.
TEST_F(AdoptQuantizedTest, DynamicProduct) {
  for (const DType dtype : {DType::I8, DType::U8}) {
    build([&](Rewriter& r) {
      Node* quantize =
          r.add_node({.op = "DynamicQuantizeLinear", .inputs = {input(r)}, .outputs = {{}, {}, {}}});
      Value* zero = r.add_constant(codes(dtype, {}, dtype == DType::U8 ? 120 : 0, 1));
      Value* product =
          node(r, "MatMulInteger",
               {quantize->outputs()[0],
                r.add_constant(codes(dtype, {kIn, kOut}, dtype == DType::U8 ? 0 : -120, 240), "w"),
                quantize->outputs()[2], zero});
      Value* real = node(r, "Cast", {product}, {{"to", int64_t{1}}});
      Value* scale = node(r, "Mul", {quantize->outputs()[1], r.add_constant(Tensor::scalar<float>(0.01F))});
      r.add_output(node(r, "Mul", {real, scale}), "y");
    });
    absolute_ = 0.3;  // 40 products of weights below 1.2 with inputs rounded to 1/50
    expect_fires("adopt-quantized");
    expect_ops({"Linear"});
    EXPECT_EQ(weight().scheme.code, dtype);
    EXPECT_EQ(weight().shape(), (Shape{kOut, kIn}));
  }
}

TEST_F(AdoptQuantizedTest, TablesOfCodes) {
  random_.int_limit = 10;
  build([&](Rewriter& r) {
    Value* ids = r.add_input("ids", i64({sym("b"), sym("s")}));
    r.add_output(node(r, "GatherBlockQuantized",
                      {r.add_constant(codes(DType::U8, {10, 16}, 0, 256), "table"), ids,
                       r.add_constant(scales({10, 2}))},
                      {{"bits", int64_t{4}},
                       {"block_size", int64_t{16}},
                       {"gather_axis", int64_t{0}},
                       {"quantize_axis", int64_t{1}}},
                      "com.microsoft"),
                 "y");
  });
  expect_fires("adopt-quantized");
  expect_ops({"Embedding"});
  EXPECT_EQ(weight().shape(), (Shape{10, 32}));

  build([&](Rewriter& r) {
    Value* ids = r.add_input("ids", i64({sym("b"), sym("s")}));
    Value* rows = node(r, "Gather", {r.add_constant(codes(DType::I8, {10, 12}, -100, 200), "table"), ids});
    r.add_output(node(r, "DequantizeLinear",
                      {rows, r.add_constant(Tensor::scalar<float>(0.02F)),
                       r.add_constant(codes(DType::I8, {}, 3, 1))}),
                 "y");
  });
  expect_fires("adopt-quantized");
  expect_ops({"Embedding"});
  EXPECT_FALSE(weight().scheme.symmetric);
}

}  // namespace
}  // namespace quern::test
