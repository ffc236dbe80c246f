#include "formats/onnx/import.h"

#include <gtest/gtest.h>

#include "tests/formats/onnx/onnx_text.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"

namespace quern::onnx_format {
namespace {

using test::import_proto;
using test::import_text;
using test::parse_text;

std::filesystem::path fixture(const std::string& name) {
  return quern::test::source_path("tests/formats/onnx/fixtures/" + name);
}

const Node* node_of(const Graph& graph, const std::string& output) {
  const Value* value = graph.find_value(output);
  return value ? value->producer() : nullptr;
}

TEST(OnnxImport, InputsOutputsConstantsAndNodes) {
  const auto model =
      import_text("g (float[batch, 4] x) => (float[batch, 4] y) { t = Relu(x) y = Add(t, x) }");
  const Graph& graph = *model.graph;
  EXPECT_EQ(graph.name(), "g");
  ASSERT_EQ(graph.inputs().size(), 1U);
  EXPECT_EQ(to_string(graph.inputs()[0]->type()), "f32 [batch, 4]");
  ASSERT_EQ(graph.nodes().size(), 2U);
  EXPECT_TRUE(graph.nodes()[1]->is("Add"));
  EXPECT_EQ(graph.nodes()[1]->opset(), 17);
  EXPECT_EQ(graph.nodes()[1]->input(0)->producer(), graph.nodes()[0]);
  ASSERT_EQ(graph.outputs().size(), 1U);
  EXPECT_EQ(graph.outputs()[0].name, "y");
  EXPECT_EQ(graph.opsets().at(""), 17);
  EXPECT_EQ(graph.metadata().at("onnx.ir_version"), "8");
}

TEST(OnnxImport, DimensionsAreSymbolicSums) {
  const auto model = import_proto([] {
    auto proto = parse_text(
        "g (float[past, 4] x, float[s, 4] z) => (float[total, 4] y) { y = Concat<axis = 0>(x, z) }");
    proto.mutable_graph()
        ->mutable_output(0)
        ->mutable_type()
        ->mutable_tensor_type()
        ->mutable_shape()
        ->mutable_dim(0)
        ->set_dim_param("past + s");
    return proto;
  }());
  const SymShape& shape = model.graph->outputs()[0].value->shape();
  EXPECT_EQ(shape[0], Dim::symbol("past") + Dim::symbol("s"));
}

TEST(OnnxImport, NamelessDimensionsDoNotCollideWithThoseOfAFile) {
  const auto model = import_proto([] {
    auto proto = parse_text("g (float[a, b] x) => (float[a, b] y) { y = Relu(x) }");
    auto* shape =
        proto.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape();
    shape->mutable_dim(0)->set_dim_param(Dim::fresh().to_string());
    shape->mutable_dim(1)->clear_dim_param();
    return proto;
  }());
  const SymShape& shape = model.graph->inputs()[0]->shape();
  EXPECT_FALSE(shape[0] == shape[1]);
  EXPECT_FALSE(shape[0] == Dim::fresh());
}

TEST(OnnxImport, ConstantNodesBecomeConstants) {
  const auto model = import_text(R"(g (float[2] x) => (float[2] y) {
    a = Constant<value_int = 5>()
    b = Constant<value_ints = [1, 2, 3]>()
    c = Constant<value_float = 1.5>()
    d = Constant<value_floats = [1.5, 2.5]>()
    e = Constant<value_string = "text">()
    f = Constant<value_strings = ["one", "two"]>()
    h = Constant<value = float[2] {3.0, 4.0}>()
    y = Add(x, h)
  })");
  const Graph& graph = *model.graph;
  EXPECT_EQ(graph.nodes().size(), 1U);
  const auto tensor = [&](const char* name) { return *graph.find_value(name)->tensor(); };
  EXPECT_TRUE(identical(tensor("a"), Tensor::scalar<int64_t>(5)));
  EXPECT_TRUE(identical(tensor("b"), Tensor::from<int64_t>({3}, {1, 2, 3})));
  EXPECT_TRUE(identical(tensor("c"), Tensor::scalar<float>(1.5F)));
  EXPECT_TRUE(identical(tensor("d"), Tensor::from<float>({2}, {1.5F, 2.5F})));
  EXPECT_EQ(tensor("e").strings(), std::vector<std::string>{"text"});
  EXPECT_EQ(tensor("e").shape(), Shape{});
  EXPECT_EQ(tensor("f").strings(), (std::vector<std::string>{"one", "two"}));
  EXPECT_TRUE(identical(tensor("h"), Tensor::from<float>({2}, {3, 4})));
}

// fixtures/element_types.onnx holds each type twice, in raw_data and in the field that ONNX assigns to it.
TEST(OnnxImport, EveryElementType) {
  const auto model = import_model(fixture("element_types.onnx"));
  int types = 0;
  for (const Value* value : model.graph->constants()) {
    const std::string& name = value->name();
    if (name == "STRING.typed" || name.ends_with(".raw")) continue;
    const Tensor& typed = *value->tensor();
    const Tensor& raw = *model.graph->find_value(name.substr(0, name.size() - 6) + ".raw")->tensor();
    EXPECT_TRUE(identical(typed, raw)) << name;
    std::vector<float> expected = {0, 1, 2, 3, 4};
    if (typed.dtype() == DType::Bool) expected = {0, 1, 0, 1, 0};
    if (typed.dtype() == DType::U2 || typed.dtype() == DType::I2) expected = {0, 1, 0, 1, 1};
    if (typed.dtype() == DType::F8E8M0) expected = {1, 2, 4, 8, 16};
    EXPECT_EQ(typed.to_floats(), expected) << name;
    ++types;
  }
  EXPECT_EQ(types, 23);
  EXPECT_EQ(model.graph->find_value("STRING.typed")->tensor()->strings(),
            (std::vector<std::string>{"a", "žluť"}));
}

TEST(OnnxImport, LargeRawDataIsAViewWhereItIsAligned) {
  std::string data(8000, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * i >> 3);
  int views = 0;
  // One byte more in a name moves the data by one byte: with one of four names it is aligned to four.
  for (const char* name : {"w", "ww", "www", "wwww"}) {
    auto proto = parse_text("g (float[1] x) => (float[1] y) { y = Relu(x) }");
    auto& tensor = *proto.mutable_graph()->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(onnx::TensorProto::FLOAT);
    tensor.add_dims(2000);
    tensor.set_raw_data(data);
    const auto model = import_proto(proto);
    const Tensor& read = *model.graph->find_value(name)->tensor();
    EXPECT_TRUE(std::equal(data.begin(), data.end(), reinterpret_cast<const char*>(read.bytes())));
    views += read.is_view() ? 1 : 0;
  }
  EXPECT_EQ(views, 1);
}

TEST(OnnxImport, AnInputWithAnInitializerIsAConstant) {
  const auto model = import_text(
      "<ir_version: 3, opset_import: [\"\" : 8]> g (float[2] x, float[2] w) => (float[2] y) <float[2] w = "
      "{1.0, 2.0}> "
      "{ y = Add(x, w) }");
  EXPECT_EQ(model.graph->inputs().size(), 1U);
  EXPECT_TRUE(model.graph->find_value("w")->is_constant());
}

TEST(OnnxImport, SparseInitializersBecomeDense) {
  auto proto = parse_text("g (float[1] x) => (float[1] y) { y = Relu(x) }");
  auto& linear = *proto.mutable_graph()->add_sparse_initializer();
  *linear.mutable_values() =
      parse_text("g () => (float[1] y) <float[2] w = {5.0, 7.0}> { y = Relu(w) }").graph().initializer(0);
  linear.mutable_indices()->set_data_type(onnx::TensorProto::INT64);
  linear.mutable_indices()->add_dims(2);
  linear.mutable_indices()->add_int64_data(1);
  linear.mutable_indices()->add_int64_data(5);
  linear.add_dims(2);
  linear.add_dims(3);
  auto& pairs = *proto.mutable_graph()->add_sparse_initializer();
  pairs = linear;
  pairs.mutable_values()->set_name("v");
  pairs.mutable_indices()->add_dims(2);
  pairs.mutable_indices()->clear_int64_data();
  for (const int64_t index : {0, 1, 1, 2}) pairs.mutable_indices()->add_int64_data(index);
  const auto model = import_proto(proto);
  EXPECT_TRUE(
      identical(*model.graph->find_value("w")->tensor(), Tensor::from<float>({2, 3}, {0, 5, 0, 0, 0, 7})));
  EXPECT_TRUE(
      identical(*model.graph->find_value("v")->tensor(), Tensor::from<float>({2, 3}, {0, 5, 0, 0, 0, 7})));
  pairs.mutable_indices()->set_int64_data(0, 2);
  EXPECT_QUERN_ERROR(import_proto(proto), ErrorCode::InvalidModel, "'v'", "index 2", "outside");
  pairs.mutable_indices()->set_int64_data(0, 0);
  pairs.set_dims(0, int64_t{1} << 40);
  EXPECT_QUERN_ERROR(import_proto(proto), ErrorCode::Unsupported, "'v'", "too large");
}

TEST(OnnxImport, NodesMayStandInAnyOrder) {
  const auto model = import_text("g (float[2] x) => (float[2] y) { y = Neg(b) b = Exp(a) a = Abs(x) }");
  ASSERT_EQ(model.graph->nodes().size(), 3U);
  EXPECT_TRUE(model.graph->nodes()[0]->is("Abs"));
  EXPECT_TRUE(model.graph->nodes()[2]->is("Neg"));
}

TEST(OnnxImport, OmittedInputsAndOutputs) {
  auto proto = parse_text("g (float[2] x) => (float[2] y) { y = Dropout(x, a, b) }");
  auto& node = *proto.mutable_graph()->mutable_node(0);
  node.set_input(1, "");
  node.set_input(2, "");
  node.add_output("");
  const auto model = import_proto(proto);
  EXPECT_EQ(model.graph->nodes()[0]->inputs().size(), 1U);
  EXPECT_EQ(model.graph->nodes()[0]->output(1), nullptr);
}

// Both branches name their values alike, and as the graph around them names its own.
TEST(OnnxImport, BranchesHaveTheirOwnNames) {
  const auto model = import_text(R"(g (float[2] x, bool c) => (float[2] y) {
    t = Exp(x)
    y = If(c) <then_branch = a () => (float[2] y) { t = Abs(x) y = Add(t, t) },
               else_branch = b () => (float[2] y) { y = Neg(t) }>
  })");
  const Node* choice = node_of(*model.graph, "y");
  const Graph& then_branch = *choice->subgraph("then_branch");
  const Graph& else_branch = *choice->subgraph("else_branch");
  EXPECT_EQ(then_branch.find_value("y")->producer()->input(0)->graph(), &then_branch);
  EXPECT_EQ(else_branch.find_value("y")->producer()->input(0), model.graph->find_value("t"));
  EXPECT_EQ(then_branch.parent(), choice);
}

// A node that an earlier node's sub-graph needs must be built first.
TEST(OnnxImport, CapturedValuesCountForTheOrder) {
  const auto model = import_text(R"(g (float[2] x, bool c) => (float[2] y) {
    y = If(c) <then_branch = a () => (float[2] r) { r = Neg(t) }, else_branch = b () => (float[2] r) { r = Abs(x) }>
    t = Exp(x)
  })");
  EXPECT_TRUE(model.graph->nodes()[0]->is("Exp"));
}

TEST(OnnxImport, FunctionsAreInlined) {
  const auto model = import_model(fixture("functions.onnx"));
  const Graph& graph = *model.graph;
  std::vector<std::string> ops;
  for (const Node* node : graph.nodes()) ops.push_back(node->op());
  EXPECT_EQ(ops, (std::vector<std::string>{"LeakyRelu", "If", "LeakyRelu", "If", "Abs", "Exp"}));
  // The attribute that the caller gave, and the default of the inner function where it gave none.
  EXPECT_EQ(graph.nodes()[0]->float_attribute("alpha", -1), 0.5F);
  EXPECT_EQ(graph.nodes()[2]->float_attribute("alpha", -1), 0.25F);
  // Outputs have the caller's names, what is inside has the node's name in front.
  EXPECT_EQ(node_of(graph, "h"), graph.nodes()[0]);
  EXPECT_EQ(node_of(graph, "z"), graph.nodes()[3]);
  EXPECT_EQ(graph.nodes()[2]->output()->name(), "second/h");
  // Branches inside a function see the values of the function.
  EXPECT_EQ(graph.nodes()[3]->subgraph("else_branch")->nodes()[0]->input(0), graph.nodes()[2]->output());
  EXPECT_EQ(to_string(graph.find_value("out")->type()), "f32 [n]");
}

TEST(OnnxImport, MetadataIsKept) {
  auto proto = parse_text("g (float[2] x) => (float[2] y) { y = Neg(x) }");
  proto.set_producer_name("maker");
  proto.set_producer_version("2.1");
  proto.set_domain("org.example");
  proto.set_model_version(7);
  proto.set_doc_string("words");
  auto& entry = *proto.add_metadata_props();
  entry.set_key("author");
  entry.set_value("žluť");
  const auto model = import_proto(proto);
  const std::map<std::string, std::string> expected = {{"author", "žluť"},
                                                       {"onnx.doc_string", "words"},
                                                       {"onnx.domain", "org.example"},
                                                       {"onnx.ir_version", "8"},
                                                       {"onnx.model_version", "7"},
                                                       {"onnx.producer_name", "maker"},
                                                       {"onnx.producer_version", "2.1"}};
  EXPECT_EQ(model.graph->metadata(), expected);
}

TEST(OnnxImport, AWrongDeclaredShapeIsAWarningOnly) {
  const auto model = import_text("g (float[2] x) => (float[3] y) { y = Relu(x) }");
  EXPECT_EQ(to_string(model.graph->find_value("y")->type()), "f32 [2]");
  ASSERT_EQ(model.warnings.size(), 1U);
  EXPECT_NE(model.warnings[0].find("'y'"), std::string::npos);
}

TEST(OnnxImport, TypesOfUnknownOperatorsAreTheDeclaredOnes) {
  const auto model = import_text(
      "<ir_version: 8, opset_import: [\"\" : 17, \"custom\" : 3]> g (float[n, 2] x) => (float16[n, 7] y) "
      "{ y = custom.Thing(x) }");
  EXPECT_EQ(to_string(model.graph->find_value("y")->type()), "f16 [n, 7]");
  EXPECT_EQ(model.graph->nodes()[0]->opset(), 3);
}

TEST(OnnxImport, MicrosoftOperatorsNeedNoImport) {
  const auto model = import_text("g (float[2] x) => (float[2] y) { y = com.microsoft.QuickGelu(x) }");
  EXPECT_TRUE(model.graph->nodes()[0]->is("QuickGelu", "com.microsoft"));
  EXPECT_EQ(model.graph->nodes()[0]->opset(), 1);
}

TEST(OnnxImport, TheNamedOnnxDomainIsTheEmptyOne) {
  const auto model = import_text(
      "<ir_version: 8, opset_import: [\"ai.onnx\" : 17]> g (float[2] x) => (float[2] y) { y = "
      "ai.onnx.Relu(x) }");
  EXPECT_TRUE(model.graph->nodes()[0]->is("Relu"));
  EXPECT_EQ(model.graph->nodes()[0]->opset(), 17);
}

}  // namespace
}  // namespace quern::onnx_format
