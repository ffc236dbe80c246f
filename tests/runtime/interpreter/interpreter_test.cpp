#include "runtime/interpreter.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"
#include "runtime/kernel_table.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

ValueType f32(SymShape shape) {
  return {DType::F32, std::move(shape)};
}

Node* add_node(Rewriter& rewriter, const std::string& op, std::vector<Value*> inputs,
               const std::string& name) {
  return rewriter.add_node(
      {.op = op, .name = name, .inputs = std::move(inputs), .outputs = {{name + ".out"}}});
}

// sum = x + c; product = sum * x; root = Sqrt(y), which `product` does not need
struct Small {
  Graph graph;
  Value *x, *y, *sum, *product, *root;

  Small() {
    Rewriter rewriter(graph);
    x = rewriter.add_input("x", f32({Dim::symbol("n"), 2}));
    y = rewriter.add_input("y", f32({}));
    Value* c = rewriter.add_constant(Tensor::from<float>({2}, {1.0F, 2.0F}), "c");
    sum = add_node(rewriter, "Add", {x, c}, "add")->output();
    product = add_node(rewriter, "Mul", {sum, x}, "mul")->output();
    root = add_node(rewriter, "Sqrt", {y}, "sqrt")->output();
    rewriter.add_output(product, "product");
    rewriter.add_output(root, "root");
    rewriter.commit();
  }
  NamedValues inputs() const {
    return {{"x", Tensor::from<float>({1, 2}, {3.0F, 4.0F})}, {"y", Tensor::scalar(9.0F)}};
  }
};

TEST(Interpreter, ComputesOutputsByName) {
  const Small s;
  const NamedValues outputs = Interpreter(s.graph).run(s.inputs());
  EXPECT_EQ(outputs.at("product").tensor()->to_floats(), (std::vector<float>{12.0F, 24.0F}));
  EXPECT_EQ(outputs.at("product").tensor()->shape(), (Shape{1, 2}));
  EXPECT_EQ(outputs.at("root").tensor()->to_floats(), std::vector<float>{3.0F});
}

TEST(Interpreter, TellsWhichImplementationRanAndWhatItGave) {
  const Small s;
  std::vector<std::string> kernels;
  std::vector<std::string> values;
  RunOptions options;
  options.implementation = "reference";
  options.on_kernel = [&](const Node& node, std::string_view name) {
    kernels.push_back(node.name() + ":" + std::string(name));
  };
  options.on_value = [&](const Value& value, const RuntimeValue&) { values.push_back(value.name()); };
  Interpreter(s.graph).run(s.inputs(), options);
  EXPECT_EQ(kernels, (std::vector<std::string>{"add:reference", "mul:reference", "sqrt:reference"}));
  EXPECT_EQ(values, (std::vector<std::string>{"add.out", "mul.out", "sqrt.out"}));
}

TEST(Interpreter, RefusesWrongInputsByName) {
  const Small s;
  const Interpreter interpreter(s.graph);
  const Tensor x = Tensor::from<float>({1, 2}, {3.0F, 4.0F});
  const Tensor y = Tensor::scalar(9.0F);
  EXPECT_QUERN_ERROR(interpreter.run({{"x", x}}), ErrorCode::BadData, "'y'", "missing");
  EXPECT_QUERN_ERROR(interpreter.run({{"x", x}, {"y", y}, {"z", y}}), ErrorCode::BadData, "'z'", "'x', 'y'");
  EXPECT_QUERN_ERROR(interpreter.run({{"x", y}, {"y", y}}), ErrorCode::BadData, "'x'", "f32 []",
                     "f32 [n, 2]");
  EXPECT_QUERN_ERROR(interpreter.run({{"x", x.cast(DType::F64)}, {"y", y}}), ErrorCode::BadData, "'x'",
                     "f64");
  EXPECT_QUERN_ERROR(interpreter.run({{"x", x.reshaped({2, 1})}, {"y", y}}), ErrorCode::BadData, "'x'",
                     "[2, 1]");
}

TEST(Interpreter, NamesAllUnsupportedNodesAtOnce) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", f32({2}));
  Node* a = rewriter.add_node({.op = "Foo", .domain = "com.acme", .opset = 3, .name = "a", .inputs = {x}});
  Node* b = rewriter.add_node({.op = "Frobnicate", .opset = 17, .name = "b", .inputs = {a->output()}});
  Node* c = rewriter.add_node({.op = "Frobnicate", .opset = 17, .name = "c", .inputs = {b->output()}});
  rewriter.add_output(c->output(), "y");
  rewriter.commit();
  EXPECT_QUERN_ERROR(Interpreter(graph), ErrorCode::Unsupported, "3 nodes", "'a'", "com.acme", "version 3",
                     "'b', 'c'", "ai.onnx", "version 17", "export");
  EXPECT_QUERN_ERROR(check_supported(graph), ErrorCode::Unsupported, "3 nodes");
}

TEST(Interpreter, RefusesOutputsBeyondTheLimit) {
  Graph graph;
  Rewriter rewriter(graph);
  Value* row = rewriter.add_input("row", f32({1, Dim::symbol("n")}));
  Value* column = rewriter.add_input("column", f32({Dim::symbol("m"), 1}));
  rewriter.add_output(add_node(rewriter, "Add", {row, column}, "outer")->output(), "y");
  rewriter.commit();
  const NamedValues inputs{{"row", Tensor::zeros(DType::F32, {1, 1000})},
                           {"column", Tensor::zeros(DType::F32, {1000, 1})}};
  RunOptions options;
  options.limits.max_tensor_bytes = 4'000'000;
  EXPECT_EQ(Interpreter(graph).run(inputs, options).at("y").tensor()->size(), 1'000'000);
  options.limits.max_tensor_bytes = 3'999'999;
  EXPECT_QUERN_ERROR(Interpreter(graph).run(inputs, options), ErrorCode::OutOfMemory, "'outer'",
                     "[1000, 1000]", "3999999");
}

TEST(Evaluate, ComputesOnlyWhatIsWantedFromBoundValues) {
  const Small s;
  const Tensor six = Tensor::from<float>({1, 2}, {6.0F, 6.0F});
  const std::vector<const Value*> wanted{s.product};
  EXPECT_EQ(evaluate(wanted, {{s.sum, six}, {s.x, six}}).front().tensor()->to_floats(),
            (std::vector<float>{36.0F, 36.0F}));
  EXPECT_EQ(missing_inputs(wanted, {{s.sum, six}}), std::vector<const Value*>{s.x});
  EXPECT_TRUE(missing_inputs(std::vector<const Value*>{s.sum}, {{s.x, six}}).empty());
  EXPECT_QUERN_ERROR(evaluate(wanted), ErrorCode::InvalidArgument, "'mul.out'", "'x'");
}

TEST(KernelTable, PrefersSpecialisedKernelsAndTheNewestVersionBelow) {
  KernelTable table;
  table.add("", "Op", {"reference", 1, nullptr, nullptr});
  table.add("", "Op", {"reference", 13, nullptr, nullptr});
  table.add("", "Op",
            {"fast", 7, nullptr, [](const KernelContext& context) { return context.has_input(0); }});
  EXPECT_EQ(table.find("", "Op", 6).size(), 1u);
  const std::vector<const Kernel*> kernels = table.find("", "Op", 17);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0]->implementation, "fast");
  EXPECT_EQ(kernels[1]->since, 13);
  EXPECT_TRUE(table.find("", "Other", 17).empty());
  EXPECT_EQ(table.lowest_version("", "Op"), 1);

  Graph graph;
  Rewriter rewriter(graph);
  Node* node = rewriter.add_node({.op = "Op", .inputs = {}});
  rewriter.commit();
  const KernelContext none(*node, {}, {});
  const KernelContext one(*node, {Tensor::scalar(1.0F)}, {});
  EXPECT_EQ(select_kernel(kernels, "", none).implementation, "reference");
  EXPECT_EQ(select_kernel(kernels, "", one).implementation, "fast");
  EXPECT_EQ(select_kernel(kernels, "reference", one).implementation, "reference");
}

}  // namespace
}  // namespace quern::runtime
