// Models that break a rule: each gives one clear line that names the node, tensor or file.
#include <gtest/gtest.h>

#include <random>

#include "formats/onnx/import.h"
#include "tests/formats/onnx/onnx_text.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::onnx_format {
namespace {

using test::import_bytes;
using test::import_proto;
using test::import_text;
using test::parse_text;

void expect_invalid(const onnx::ModelProto& model, const std::vector<std::string>& parts) {
  EXPECT_TRUE(quern::test::throws_error([&] { import_proto(model); }, ErrorCode::InvalidModel, parts));
}

void expect_invalid(const std::string& text, const std::vector<std::string>& parts) {
  expect_invalid(parse_text(text), parts);
}

onnx::ModelProto with_initializer(const std::function<void(onnx::TensorProto&)>& fill) {
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Add(x, w) }");
  auto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  fill(tensor);
  return model;
}

TEST(BadOnnx, NotAModelAtAll) {
  EXPECT_QUERN_ERROR(import_bytes(""), ErrorCode::Corrupt, "m.onnx", "empty");
  EXPECT_QUERN_ERROR(import_bytes("hello, world"), ErrorCode::Corrupt, "m.onnx", "ONNX");
  EXPECT_QUERN_ERROR(import_bytes(std::string("\x80\x02}q\x00", 5)), ErrorCode::Corrupt, "m.onnx");
  EXPECT_QUERN_ERROR(import_bytes(std::string("\x08\x08", 2)), ErrorCode::Corrupt, "no graph");
  EXPECT_QUERN_ERROR(import_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
                     ErrorCode::Corrupt, "Git LFS pointer");
  EXPECT_QUERN_ERROR(import_model("/no/such/model.onnx"), ErrorCode::Io, "/no/such/model.onnx");
}

TEST(BadOnnx, ValuesDefinedTwiceOrNever) {
  expect_invalid("g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }", {"'y'", "another node"});
  expect_invalid("g (float[2] x) => (float[2] x) { x = Relu(x) }", {"'x'"});
  expect_invalid("g (float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }", {"'x'", "twice"});
  expect_invalid("g (float[2] x) => (float[2] w) <float[2] w = {1.0, 2.0}> { w = Relu(x) }",
                 {"'w'", "twice"});
  expect_invalid("g (float[2] x) => (float[2] y) { y = Relu(z) }", {"'y'", "Relu", "'z'", "defined nowhere"});
  expect_invalid("g (float[2] x) => (float[2] z) { y = Relu(x) }", {"output 'z'", "no node"});
  expect_invalid("g (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }", {"output 'y'", "twice"});
  // A value of a branch is not to be seen from outside.
  expect_invalid(R"(g (float[2] x, bool c) => (float[2] y) {
    z = If(c) <then_branch = a () => (float[2] t) { t = Abs(x) }, else_branch = b () => (float[2] u) { u = Neg(x) }>
    y = Neg(t)
  })",
                 {"'t'", "defined nowhere"});
}

TEST(BadOnnx, Cycles) {
  expect_invalid("g (float[2] x) => (float[2] y) { a = Add(x, b) b = Relu(a) y = Neg(b) }", {"'a'", "cycle"});
  expect_invalid("g (float[2] x) => (float[2] y) { y = Add(x, y) }", {"'y'", "cycle"});
  expect_invalid(R"(g (float[2] x, bool c) => (float[2] y) {
    y = If(c) <then_branch = a () => (float[2] t) { t = Abs(z) }, else_branch = b () => (float[2] u) { u = Neg(x) }>
    z = Neg(y)
  })",
                 {"cycle"});
}

TEST(BadOnnx, WrongTypes) {
  expect_invalid("g (float[2] x) => (int64[2] y) { y = Relu(x) }", {"'y'", "i64", "f32"});
  expect_invalid("g (float[2] x) => (float[3] y) { y = Constant<value = 5>() }", {"'y'", "value"});
  expect_invalid("g (float[2] x) => (float[2] y) { y = Constant<value_int = 1, value_float = 2.0>() }",
                 {"Constant"});
  expect_invalid("g (float[2] x) => (float[2] y) { y = Constant() }", {"Constant", "value_int"});
}

TEST(BadOnnx, TensorsWhoseDataDoesNotFitTheirShape) {
  const auto expect = [](const std::function<void(onnx::TensorProto&)>& fill,
                         const std::vector<std::string>& parts) {
    expect_invalid(with_initializer(fill), parts);
  };
  expect([](auto& t) { t.add_dims(2); }, {"'w'", "takes 2 elements", "0 are given"});
  expect([](auto& t) { t.add_dims(2), t.add_float_data(1); }, {"'w'", "1 are given"});
  expect([](auto& t) { t.add_dims(2), t.set_raw_data("12345"); }, {"'w'", "8 bytes", "5 are given"});
  expect([](auto& t) { t.add_dims(2), t.set_raw_data(std::string(4000, 'x')); }, {"'w'", "4000 are given"});
  expect([](auto& t) { t.add_dims(-2), t.add_float_data(1); }, {"'w'", "negative"});
  expect([](auto& t) { t.add_dims(int64_t{1} << 40), t.add_dims(int64_t{1} << 40); },
         {"'w'", "too many elements"});
  expect([](auto& t) { t.add_dims(int64_t{1} << 40); }, {"'w'", "0 are given"});
  expect([](auto& t) { t.set_data_type(0); }, {"'w'", "no type"});
  expect([](auto& t) { t.set_data_type(8), t.add_dims(1), t.set_raw_data("x"); }, {"'w'"});
  EXPECT_QUERN_ERROR(import_proto(with_initializer(
                         [](auto& t) { t.set_data_type(9), t.add_dims(1), t.set_raw_data("\x07"); })),
                     ErrorCode::Corrupt, "'w'", "bool");
}

TEST(BadOnnx, OperatorSets) {
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Relu(x) }");
  model.mutable_opset_import(0)->set_version(0);
  expect_invalid(model, {"ai.onnx", "version 0"});
  model.mutable_opset_import(0)->set_version(int64_t{1} << 60);
  expect_invalid(model, {"ai.onnx", "which cannot be"});
  model.mutable_opset_import(0)->set_domain("other");
  model.mutable_opset_import(0)->set_version(1);
  expect_invalid(model, {"'y'", "no version"});
}

TEST(BadOnnx, AttributesAndNodes) {
  expect_invalid("g (float[2] x) => (float[2] y) { y = Softmax<axis = 1, axis = 0>(x) }",
                 {"'y'", "'axis'", "twice"});
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Softmax<axis = 1>(x) }");
  auto& node = *model.mutable_graph()->mutable_node(0);
  node.mutable_attribute(0)->set_ref_attr_name("outer");
  expect_invalid(model, {"'y'", "'axis'", "function"});
  node.mutable_attribute(0)->clear_ref_attr_name();
  node.mutable_attribute(0)->clear_type();
  node.mutable_attribute(0)->clear_i();
  expect_invalid(model, {"'y'", "'axis'", "neither"});
  node.clear_attribute();
  node.clear_op_type();
  expect_invalid(model, {"'y'", "no operator"});
}

// Everything that is not supported is told at once.
TEST(BadOnnx, UnsupportedThingsAreListedTogether) {
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Add(x, w) }");
  for (const char* name : {"w", "v"}) {
    auto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::TensorProto::COMPLEX64);
    tensor.add_dims(0);
  }
  auto& map = *model.mutable_graph()->add_value_info();
  map.set_name("m");
  map.mutable_type()->mutable_map_type()->set_key_type(1);
  auto& attribute = *model.mutable_graph()->mutable_node(0)->add_attribute();
  attribute.set_name("list");
  attribute.set_type(onnx::AttributeProto::TENSORS);
  EXPECT_QUERN_ERROR(import_proto(model), ErrorCode::Unsupported, "4 things", "'w'", "'v'", "complex64",
                     "'m'", "'list'", "'y'");
}

onnx::ModelProto with_functions(const std::string& functions, const std::string& call) {
  return parse_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"f\" : 1]> g (float[2] x) => (float[2] y) { y = " + call +
      "(x) } " + functions);
}

std::string function(const std::string& name, const std::string& body) {
  return "<domain: \"f\", opset_import: [\"\" : 17, \"f\" : 1]> " + name + " (a) => (b) { " + body + " } ";
}

TEST(BadOnnx, Functions) {
  expect_invalid(with_functions(function("one", "b = f.one(a)"), "f.one"), {"one", "calls itself"});
  expect_invalid(with_functions(function("one", "b = f.two(a)") + function("two", "b = f.one(a)"), "f.one"),
                 {"calls itself"});
  expect_invalid(with_functions(function("one", "b = Neg(a)") + function("one", "b = Abs(a)"), "f.one"),
                 {"'one'", "twice"});
  expect_invalid(with_functions(function("one", "c = Neg(a)"), "f.one"), {"'b'", "no node"});
  expect_invalid(with_functions(function("one", "b = Neg(x)"), "f.one"), {"'x'", "defined nowhere"});
  auto model = with_functions(function("one", "b = Neg(a)"), "f.one");
  model.mutable_graph()->mutable_node(0)->add_input("x");
  expect_invalid(model, {"2 inputs", "takes 1"});
}

// Thirty functions that each call the next one twice: a billion nodes from two kilobytes.
TEST(BadOnnx, FunctionsThatGrowWithoutBound) {
  std::string functions;
  for (int i = 0; i < 30; ++i) {
    const std::string next = "f.f" + std::to_string(i + 1);
    functions += function("f" + std::to_string(i), "c = " + next + "(a) b = " + next + "(c)");
  }
  functions += function("f30", "b = Neg(a)");
  EXPECT_QUERN_ERROR(import_proto(with_functions(functions, "f.f0")), ErrorCode::Unsupported,
                     "more than 100000 nodes");
}

TEST(BadOnnx, FunctionsThatNestTooDeep) {
  std::string functions;
  for (int i = 0; i < 1000; ++i)
    functions += function("f" + std::to_string(i), "b = f.f" + std::to_string(i + 1) + "(a)");
  functions += function("f1000", "b = Neg(a)");
  EXPECT_QUERN_ERROR(import_proto(with_functions(functions, "f.f0")), ErrorCode::Unsupported, "64 deep");
}

TEST(BadOnnx, GraphsThatNestTooDeep) {
  onnx::GraphProto graph = parse_text("g () => (float[2] y) { y = Constant<value_int = 1>() }").graph();
  for (int i = 0; i < 2000; ++i) {
    onnx::GraphProto outer;
    auto& node = *outer.add_node();
    node.set_op_type("If");
    auto& attribute = *node.add_attribute();
    attribute.set_name("then_branch");
    attribute.set_type(onnx::AttributeProto::GRAPH);
    attribute.mutable_g()->Swap(&graph);
    graph.Swap(&outer);
  }
  onnx::ModelProto model;
  model.mutable_graph()->Swap(&graph);
  EXPECT_QUERN_ERROR(import_proto(model), ErrorCode::Corrupt, "nested too deeply");
}

TEST(BadOnnx, NamesInMessagesStayOnOneLineAndShort) {
  const std::string name = "line\nbreak" + std::string(100'000, 'x');
  auto model = parse_text("g (float[2] x) => (float[2] y) { y = Relu(x) }");
  model.mutable_graph()->mutable_node(0)->set_input(0, name);
  try {
    import_proto(model);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_LT(std::string(error.what()).size(), 1000U);
  }
}

std::string whole_model() {
  return quern::test::read_text(quern::test::source_path("tests/formats/onnx/fixtures/functions.onnx"));
}

// A cut may fall between two fields, where the rest is a model again, if a poor one.
TEST(BadOnnx, EveryTruncationIsAnErrorOrAModel) {
  const std::string whole = whole_model();
  int errors = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    try {
      import_bytes(whole.substr(0, size));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("m.onnx"), std::string::npos);
      ++errors;
    }
  }
  EXPECT_GT(errors, static_cast<int>(whole.size() * 9 / 10));
}

TEST(BadOnnx, FlippedBitsAreErrorsOrModels) {
  for (const char* name : {"functions.onnx", "element_types.onnx"}) {
    const std::string whole =
        quern::test::read_text(quern::test::source_path(std::string("tests/formats/onnx/fixtures/") + name));
    for (size_t bit = 0; bit < whole.size() * 8; bit += 5) {
      std::string damaged = whole;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      try {
        import_bytes(std::move(damaged));
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::Internal) << bit << ": " << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace quern::onnx_format
