// quantize-weights, pack-weights, tie-weights and materialize-weights.
#include <cmath>

#include "ir/schema.h"
#include "ir/weight_ops.h"
#include "passes/weights/materialize.h"
#include "passes/weights/weight_sites.h"
#include "tests/passes/pass_test.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using nlohmann::json;

Tensor random_tensor(Shape shape, unsigned seed, DType dtype = DType::F32) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor = Tensor::zeros(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(normal(random)));
  return tensor;
}

Value* transpose(Rewriter& r, Value* x) {
  return r.add_node({.op = "Transpose", .inputs = {x}, .attributes = {{"perm", std::vector<int64_t>{1, 0}}}})
      ->output();
}

Value* linear(Rewriter& r, Value* x, Value* w, const std::string& name) {
  return r.add_node({.op = "Linear", .domain = std::string(kQuernDomain), .name = name, .inputs = {x, w}})
      ->output();
}

// ids -> Embedding(embed [50, 40]) -> Linear(up [24, 40]) -> Linear(Transpose(down [24, 40])) ->
// Linear(head).
class WeightsTest : public PassTest {
 protected:
  enum class Head { Same, Transposed, Other };

  // By the oracle, for which a packed weight is the same numbers: kernels round the inputs of integer
  // weights.
  runtime::NamedValues evaluate() override {
    return runtime::Interpreter(graph()).run(random_.for_graph(graph()), {.implementation = "reference"});
  }

  void build_model(Head head = Head::Same, DType dtype = DType::F32) {
    random_.int_limit = 50;
    build([&](Rewriter& r) {
      Value* ids = r.add_input("ids", i64({sym("tokens")}));
      const Tensor table = random_tensor({50, 40}, 1, dtype);
      Value* embed = r.add_constant(table, "model.embed_tokens.weight");
      Value* up = r.add_constant(random_tensor({24, 40}, 2, dtype), "model.layers.0.mlp.up_proj.weight");
      Value* down = r.add_constant(random_tensor({24, 40}, 3, dtype), "onnx::MatMul_77");
      Value* x = r.add_node({.op = "Embedding",
                             .domain = std::string(kQuernDomain),
                             .name = "/model/embed_tokens/Gather",
                             .inputs = {embed, ids}})
                     ->output();
      x = linear(r, x, up, "/model/layers.0/mlp/up_proj/MatMul");
      x = linear(r, x, transpose(r, down), "/model/layers.0/mlp/down_proj/MatMul");
      Value* last = embed;
      if (head == Head::Transposed) last = transpose(r, r.add_constant(transposed(table), "onnx::MatMul_99"));
      if (head == Head::Other) last = r.add_constant(random_tensor({50, 40}, 4, dtype), "lm_head.weight");
      r.add_output(linear(r, x, last, "/lm_head/MatMul"), "logits");
    });
  }

  static Tensor transposed(const Tensor& x) {
    Tensor result = Tensor::zeros(x.dtype(), {x.dim(1), x.dim(0)});
    for (int64_t i = 0; i < x.dim(0); ++i) {
      for (int64_t j = 0; j < x.dim(1); ++j) result.set(j * x.dim(0) + i, x.at(i * x.dim(1) + j));
    }
    return result;
  }

  std::map<std::string, std::string> formats() {
    std::map<std::string, std::string> result;
    for (const passes::WeightSite& site : passes::find_weight_sites(graph())) {
      const Node* node = site.value->producer();
      result[site.name] = node != nullptr && node->is("QuantizeWeight", kQuernDomain)
                              ? to_string(quantize_options(*node).scheme)
                              : std::string(to_string(site.value->dtype()));
    }
    return result;
  }
};

TEST_F(WeightsTest, FindsEachWeightOnceWithTheNamesUsersKnow) {
  build_model();
  const std::vector<passes::WeightSite> sites = passes::find_weight_sites(graph());
  ASSERT_EQ(sites.size(), 3u);
  EXPECT_EQ(sites[0].name, "model.embed_tokens.weight");
  EXPECT_TRUE(sites[0].is_embedding);
  EXPECT_EQ(sites[0].uses.size(), 2u);
  EXPECT_EQ(sites[0].names.back(), "/lm_head/MatMul");
  EXPECT_EQ(sites[2].name, "model.layers.0.mlp.down_proj.weight");  // the exporter only numbered it
  EXPECT_EQ(sites[2].rows, 40);
  EXPECT_EQ(sites[2].cols, 24);
}

TEST_F(WeightsTest, Int8IsTheDefaultAndClose) {
  build_model();
  // The logits spread by about 195. Each of three products adds noise of about 1.2% of the spread (a step of
  // max/127, uniform): 4 in all, and none of some hundred may be off by more than five of that.
  absolute_ = 20;
  relative_ = 0.02;
  EXPECT_EQ(expect_fires("quantize-weights").changes, 3);
  for (const auto& [name, format] : formats()) EXPECT_EQ(format, "int8 symmetric per channel") << name;
}

TEST_F(WeightsTest, EverySettingReachesTheNode) {
  const auto format_of = [&](const json& options) {
    build_model();
    run("quantize-weights", options);
    return formats()["model.layers.0.mlp.down_proj.weight"];
  };
  EXPECT_EQ(format_of({{"weights", "int4"}}), "int4 symmetric per group of 32");
  EXPECT_EQ(format_of({{"weights", "int4"}, {"group-size", 128}}), "int4 symmetric per group of 128");
  EXPECT_EQ(format_of({{"weights", "int4"}, {"symmetric", false}, {"granularity", "channel"}}),
            "uint4 asymmetric per channel");
  EXPECT_EQ(format_of({{"weights", "int8"}, {"granularity", "tensor"}}), "int8 symmetric per tensor");
  EXPECT_EQ(format_of({{"weights", "int3"}, {"method", "lsq"}}), "int3 symmetric per group of 32");
  EXPECT_EQ(format_of({{"weights", "int2"}, {"symmetric", false}, {"clip", "mse"}}),
            "uint2 asymmetric per group of 32");
  EXPECT_EQ(format_of({{"weights", "fp8-e4m3"}}), "f8e4m3 symmetric per channel");
  EXPECT_EQ(format_of({{"weights", "fp8-e5m2"}, {"granularity", "group"}}),
            "f8e5m2 symmetric per group of 32");
  EXPECT_EQ(format_of({{"weights", "fp16"}}), "f16");
  EXPECT_EQ(format_of({{"weights", "bf16"}}), "bf16");
  EXPECT_EQ(format_of({{"weights", "fp32"}}), "f32");
  EXPECT_EQ(format_of({{"weights", "keep"}}), "f32");
}

TEST_F(WeightsTest, HalfPrecisionComputesTheSame) {
  build_model();
  absolute_ = 0.1;
  relative_ = 0.01;
  expect_fires("quantize-weights", {{"weights", "fp16"}});
  build_model(Head::Same, DType::F16);
  expect_fires("quantize-weights", {{"weights", "fp32"}});
  build_model(Head::Same, DType::F16);
  expect_no_match("quantize-weights", {{"weights", "fp16"}});
}

// What a file holds quantized stays so where weights are kept, and is quantized anew otherwise.
TEST_F(WeightsTest, QuantizedWeightsAreKeptOrQuantizedAnew) {
  const auto build_quantized = [&] {
    build([&](Rewriter& r) {
      QuantizeOptions options;
      options.scheme = {.code = DType::U4,
                        .symmetric = false,
                        .granularity = QuantScheme::Granularity::Group,
                        .axis = 1,
                        .group_size = 32};
      Value* x = r.add_input("x", f32({sym("tokens"), 64}));
      r.add_output(
          linear(r, x, r.add_constant(quantize(random_tensor({24, 64}, 1), options), "w"), "product"), "y");
    });
  };
  const auto weight = [&] { return graph().nodes().back()->input(1); };
  build_quantized();
  expect_no_match("quantize-weights", {{"weights", "keep"}});
  run("pack-weights");
  run("materialize-weights");
  EXPECT_EQ(weight()->packed()->spec().scheme.code, DType::U4);

  build_quantized();
  absolute_ = 0.2;
  expect_fires("quantize-weights", {{"weights", "int8"}});
  expect_fires("pack-weights");
  run("materialize-weights");
  EXPECT_EQ(weight()->packed()->spec().scheme.code, DType::I8);

  for (const auto& [name, dtype] : {std::pair("fp32", DType::F32), std::pair("fp16", DType::F16)}) {
    build_quantized();
    expect_fires("quantize-weights", {{"weights", name}});
    run("materialize-weights");
    ASSERT_NE(weight()->tensor(), nullptr) << name;
    EXPECT_EQ(weight()->dtype(), dtype);
  }
}

TEST_F(WeightsTest, OverridesMatchTensorAndNodeNamesAndTheLastWins) {
  build_model();
  run("quantize-weights", {{"weights", "int4"},
                           {"overrides",
                            {{{"pattern", "layers\\.\\d+"}, {"weights", "int8"}},
                             {{"pattern", "down_proj/MatMul$"}, {"weights", "fp16"}},
                             {{"pattern", "up_proj"}, {"symmetric", false}}}}});
  EXPECT_EQ(formats(), (std::map<std::string, std::string>{
                           {"model.embed_tokens.weight", "int4 symmetric per group of 32"},
                           {"model.layers.0.mlp.up_proj.weight", "uint8 asymmetric per channel"},
                           {"model.layers.0.mlp.down_proj.weight", "f16"}}));
}

TEST_F(WeightsTest, EmbeddingsHaveTheirOwnFormatTiedOrNot) {
  build_model(Head::Other);
  run("quantize-weights", {{"embeddings", "fp16"}});
  EXPECT_EQ(formats()["model.embed_tokens.weight"], "f16");
  EXPECT_EQ(formats()["lm_head.weight"], "int8 symmetric per channel");
}

TEST_F(WeightsTest, OverridesThatCannotWorkAreErrors) {
  build_model();
  const auto with = [&](const json& override) {
    return run("quantize-weights", {{"overrides", {override}}});
  };
  EXPECT_QUERN_ERROR(with({{"pattern", "layers.0.mlp.up_prj.weight"}}), ErrorCode::InvalidArgument,
                     "matches no weight", "did you mean", "up_proj");
  EXPECT_QUERN_ERROR(with({{"pattern", "zzz"}}), ErrorCode::InvalidArgument, "matches no weight",
                     "embed_tokens");
  EXPECT_QUERN_ERROR(with({{"pattern", "("}}), ErrorCode::InvalidArgument, "overrides[0]",
                     "regular expression");
  EXPECT_QUERN_ERROR(with({{"pattern", "up"}, {"bits", 4}}), ErrorCode::InvalidArgument, "overrides[0]",
                     "'bits'");
  EXPECT_QUERN_ERROR(with({{"pattern", "up"}, {"weights", "int5"}}), ErrorCode::InvalidArgument, "int5",
                     "int4");
  EXPECT_QUERN_ERROR(with({{"weights", "int4"}}), ErrorCode::InvalidArgument, "pattern");
  EXPECT_QUERN_ERROR(with("up"), ErrorCode::InvalidArgument, "overrides[0]");
  EXPECT_QUERN_ERROR(run("quantize-weights", {{"weights", "int4"}, {"group-size", 0}}),
                     ErrorCode::InvalidArgument, "group size");
  EXPECT_EQ(formats()["model.layers.0.mlp.down_proj.weight"], "f32") << "a failed pass changed the graph";
}

TEST_F(WeightsTest, ATransposedCopyIsTied) {
  build_model(Head::Transposed);
  const passes::PassReport report = expect_fires("tie-weights");
  EXPECT_EQ(report.changes, 1);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("model.embed_tokens.weight"), std::string::npos);
  run("dead-code");
  EXPECT_EQ(graph().find_value("onnx::MatMul_99"), nullptr);
  EXPECT_EQ(passes::find_weight_sites(graph()).size(), 3u);
}

TEST_F(WeightsTest, WeightsThatDifferInOneElementAreNotTied) {
  build_model(Head::Transposed);
  Value* copy = graph().find_value("onnx::MatMul_99");
  Tensor changed = *copy->tensor();
  changed.set(37, changed.at(37) + 1e-3);
  Rewriter rewriter(graph());
  rewriter.set_constant(copy, changed);
  rewriter.commit();
  expect_no_match("tie-weights");
  build_model(Head::Other);
  expect_no_match("tie-weights");
}

TEST_F(WeightsTest, PackingKeepsTheNumbersToTheBit) {
  for (const json& options : {json{{"weights", "fp32"}}, json{{"weights", "fp16"}}, json{{"weights", "bf16"}},
                              json{{"weights", "int8"}}, json{{"weights", "int4"}},
                              json{{"weights", "int8"}, {"symmetric", false}, {"granularity", "tensor"}},
                              json{{"weights", "int4"}, {"symmetric", false}}}) {
    SCOPED_TRACE(options.dump());
    build_model();
    run("quantize-weights", options);
    absolute_ = 0;
    relative_ = 0;
    expect_fires("pack-weights");
    for (const passes::WeightSite& site : passes::find_weight_sites(graph())) EXPECT_TRUE(site.is_packed());
  }
}

TEST_F(WeightsTest, GroupsWithoutALayoutAreLeftAndExplained) {
  build_model();
  run("quantize-weights", {{"weights", "int4"}, {"group-size", 24}});
  EXPECT_TRUE(has_reason(expect_no_match("pack-weights"), "multiple of 16"));
}

TEST_F(WeightsTest, MaterializingKeepsNumbersAndNames) {
  for (const bool packed : {true, false}) {
    for (const json& options : {json{{"weights", "fp32"}}, json{{"weights", "bf16"}},
                                json{{"weights", "int8"}}, json{{"weights", "int4"}, {"symmetric", false}},
                                json{{"weights", "int8"}, {"symmetric", false}, {"granularity", "tensor"}}}) {
      SCOPED_TRACE(options.dump());
      build_model(Head::Same, packed ? DType::F32 : DType::F16);
      run("quantize-weights", options);
      if (packed) run("pack-weights");
      absolute_ = 0;
      relative_ = 0;
      expect_fires("materialize-weights");
      run("dead-code");
      expect_ops({"Embedding", "Linear", "Linear", "Linear"});
      ASSERT_EQ(graph().constants().size(), 3u);
      for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                               "model.layers.0.mlp.down_proj.weight"}) {
        ASSERT_NE(graph().find_value(name), nullptr) << name << "\n" << to_text(graph());
        if (packed) {
          EXPECT_NE(graph().find_value(name)->packed(), nullptr);
        }
      }
    }
  }
}

TEST_F(WeightsTest, AFusedWeightIsCutIntoParts) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 12}));
    Value* w = r.add_constant(random_tensor({12, 24}, 5), "c_attn.weight");
    const std::string quern(kQuernDomain);
    NodeSpec spec{
        .op = "Split", .inputs = {w}, .attributes = {{"axis", int64_t{1}}, {"num_outputs", int64_t{3}}}};
    spec.outputs = {OutputSpec{}, OutputSpec{}, OutputSpec{}};
    const Node* parts = r.add_node(std::move(spec));
    for (size_t i = 0; i < 3; ++i) {
      r.add_output(linear(r, x, transpose(r, parts->output(i)), ""), concat("y", i));
    }
  });
  run("quantize-weights");
  run("pack-weights");
  absolute_ = 0;
  relative_ = 0;
  expect_fires("materialize-weights");
  run("dead-code");
  expect_ops({"Linear", "Linear", "Linear"});
  for (int i = 0; i < 3; ++i) EXPECT_NE(graph().find_value(concat("c_attn.weight.", i)), nullptr);
}

TEST_F(WeightsTest, WhatWouldBlowUpStaysAnExpression) {
  build([](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 2000, 2000}));
    Value* one = r.add_constant(Tensor::from<float>({1, 1}, {1}), "one");
    Value* shape = r.add_constant(Tensor::from<int64_t>({2}, {2000, 2000}), "shape");
    Value* mask = r.add_node({.op = "Expand", .inputs = {one, shape}})->output();
    r.add_output(r.add_node({.op = "Add", .inputs = {x, mask}})->output(), "y");
  });
  expect_no_match("materialize-weights");
}

TEST_F(WeightsTest, ResultsCountBytesAndErrors) {
  build_model();
  run("quantize-weights", {{"weights", "int4"}});
  run("pack-weights");
  const passes::WeightSite site = passes::find_weight_sites(graph())[1];
  passes::WeightResult result;
  const Constant constant = passes::materialize(*site.value, &result);
  EXPECT_EQ(result.name, "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(result.format, "int4 symmetric per group of 32");
  EXPECT_EQ(result.shape, (Shape{24, 40}));
  EXPECT_EQ(result.bytes, byte_size(constant));
  EXPECT_GT(result.error.sqnr_db(), 15);
  EXPECT_LT(result.error.sqnr_db(), 30);
  const Tensor original = *graph().find_value(result.name)->tensor();
  const Tensor back = std::get<PackedTensor>(constant).dequantize();
  double noise = 0;
  for (int64_t i = 0; i < original.size(); ++i) noise += std::pow(original.at(i) - back.at(i), 2);
  EXPECT_NEAR(result.error.noise, noise, 1e-4 * noise);
  EXPECT_EQ(passes::to_json(result)["name"], result.name);
}

TEST_F(WeightsTest, HalfPrecisionResultsKnowTheirRounding) {
  build_model();
  run("quantize-weights", {{"weights", "bf16"}});
  run("pack-weights");
  passes::WeightResult result;
  passes::materialize(*passes::find_weight_sites(graph())[2].value, &result);
  EXPECT_EQ(result.format, "bf16");
  EXPECT_GT(result.error.sqnr_db(), 45);
  EXPECT_LT(result.error.sqnr_db(), 65);
}

TEST_F(WeightsTest, NotANumberNamesTheTensor) {
  build_model();
  Value* up = graph().find_value("model.layers.0.mlp.up_proj.weight");
  Tensor broken = *up->tensor();
  broken.set(100, std::nan(""));
  Rewriter rewriter(graph());
  rewriter.set_constant(up, broken);
  rewriter.commit();
  run("quantize-weights");
  EXPECT_QUERN_ERROR(run("materialize-weights"), ErrorCode::BadData, "element 100", "nan",
                     "model.layers.0.mlp.up_proj.weight");
}

TEST_F(WeightsTest, LargeWeightsInManyBlocksAreTheSameAsInOne) {
  const Tensor w = random_tensor({4000, 700}, 9);  // 11 MB: two blocks
  build([&](Rewriter& r) {
    Value* x = r.add_input("x", f32({sym("n"), 700}));
    r.add_output(linear(r, x, r.add_constant(w, "w"), ""), "y");
  });
  for (const json& options : {json{{"weights", "int4"}, {"symmetric", false}}, json{{"weights", "int8"}},
                              json{{"weights", "int8"}, {"granularity", "tensor"}}}) {
    run("quantize-weights", options);
    const passes::WeightSite site = passes::find_weight_sites(graph())[0];
    const QuantizedTensor whole = quantize(w, quantize_options(*site.value->producer()));
    const auto built = std::get<QuantizedTensor>(passes::materialize(*site.value));
    EXPECT_TRUE(identical(built.codes, whole.codes));
    EXPECT_TRUE(identical(built.scales, whole.scales));
    EXPECT_TRUE(identical(built.zero_points, whole.zero_points));
    run("pack-weights");
    const auto packed =
        std::get<PackedTensor>(passes::materialize(*passes::find_weight_sites(graph())[0].value));
    EXPECT_TRUE(identical(packed.bytes(), pack(whole).bytes()));
    Rewriter rewriter(graph());
    rewriter.set_input(site.uses[0].node, 1, graph().find_value("w"));
    rewriter.commit();
    run("dead-code");
  }
}

}  // namespace
}  // namespace quern::test
