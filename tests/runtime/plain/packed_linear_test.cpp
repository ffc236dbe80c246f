// Products with packed weights of every format, in graphs that are no decoders.
#include <gtest/gtest.h>

#include "ir/packed_tensor.h"
#include "ir/quantize.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "tests/runtime/plain/like_reference.h"

namespace quern::runtime {
namespace {

struct Format {
  DType code;
  int bits = 0;  // of integers in fewer bits than their dtype
};

PackedTensor packed(const Tensor& weight, const Format& format) {
  const DType code = format.code;
  if (code == DType::F16 || code == DType::BF16 || code == DType::F32) return pack(weight.cast(code));
  QuantizeOptions options;
  const bool grouped = is_sub_byte(code);
  options.scheme = {
      .code = code,
      .symmetric = true,
      .granularity = grouped ? QuantScheme::Granularity::Group : QuantScheme::Granularity::Channel,
      .axis = grouped ? 1 : 0,
      .group_size = grouped ? 16 : 0,
      .bits = format.bits};
  return pack(quantize(weight, options));
}

std::vector<float> product(const Tensor& x, const PackedTensor& weight, const char* implementation) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* input = rewriter.add_input("x", {DType::F32, SymShape{x.dim(0), x.dim(1)}});
  Value* constant = rewriter.add_constant(weight, "w");
  Node* node =
      rewriter.add_node({.op = "Linear", .domain = std::string(kQuernDomain), .inputs = {input, constant}});
  rewriter.add_output(node->output(), "y");
  rewriter.commit();
  RunOptions options;
  options.implementation = implementation;
  std::string ran;
  options.on_kernel = [&](const Node&, std::string_view name) { ran = std::string(name); };
  const auto found = Interpreter(graph).run({{"x", x}}, options).at("y").dense().to_floats();
  EXPECT_EQ(ran, *implementation == 0 ? "cpu" : implementation);
  return found;
}

TEST(PackedLinear, EveryFormatComputesWhatItsNumbersSay) {
  const Tensor weight = random_tensor(DType::F32, {21, 48}, 1);
  const Format formats[] = {{DType::F32}, {DType::F16},   {DType::BF16},  {DType::I8},     {DType::U8},
                            {DType::I4},  {DType::I4, 3}, {DType::I4, 2}, {DType::F8E4M3}, {DType::F8E5M2}};
  for (const Format& format : formats) {
    const PackedTensor codes = packed(weight, format);
    for (const int64_t rows : {1, 2, 9}) {
      const Tensor x = random_tensor(DType::F32, {rows, 48}, 2);
      const std::vector<float> expected = product(x, codes, "reference");
      const std::vector<float> found = product(x, codes, "");
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 5e-3)
            << to_string(format.code) << " of " << format.bits << " bits, " << rows << " rows, element " << i;
    }
  }
}

}  // namespace
}  // namespace quern::runtime
