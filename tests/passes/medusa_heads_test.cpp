#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "formats/safetensors/safetensors.h"
#include "passes/heads/medusa_weights.h"
#include "runtime/decoder/hidden_states.h"
#include "runtime/decoder/session.h"
#include "runtime/speculate/medusa_heads.h"
#include "tests/passes/pass_test.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::passes {
namespace {

constexpr int64_t kWidth = 48, kVocabulary = 97;

class MedusaHeadsTest : public test::PassTest {
 protected:
  MedusaHeadsTest() {
    numeric_ = false;  // the interpreter has no cache; head() computes them instead
    use(test::random_decoder({}));
  }

  Tensor floats(Shape shape) {
    std::normal_distribution<float> normal(0, 0.3f);
    Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
    for (float& v : tensor.mutable_data<float>()) v = normal(numbers_);
    return tensor;
  }
  std::string write(const std::map<std::string, Tensor>& tensors) {
    const std::string path = (dir_ / "heads.safetensors").string();
    safetensors::write(path, {.tensors = tensors, .metadata = {}});
    return path;
  }
  // Logits of head k for a hidden state, as the graph has them.
  std::vector<float> head(size_t k, const std::vector<float>& state) {
    const std::string start = runtime::find_hidden_states(graph()).after_final_norm->name();
    runtime::Session session(runtime::Program::compile(
        graph(), {.entries = {{"logits"}, {runtime::medusa_output(k)}}, .starts = {"", start}}));
    session.run_rows(1, state);
    const auto row = session.logits(0);
    return {row.begin(), row.end()};
  }
  // x + silu(W x + b), projected.
  static std::vector<float> computed(const Tensor& w, const Tensor* b, const Tensor& u,
                                     std::vector<float> x) {
    const std::vector<float> before = x;
    for (int64_t i = 0; i < kWidth; ++i) {
      double sum = b != nullptr ? b->at(i) : 0;
      for (int64_t j = 0; j < kWidth; ++j) sum += w.at(i * kWidth + j) * before[static_cast<size_t>(j)];
      x[static_cast<size_t>(i)] += static_cast<float>(sum / (1 + std::exp(-sum)));
    }
    std::vector<float> logits;
    for (int64_t v = 0; v < kVocabulary; ++v) {
      double sum = 0;
      for (int64_t j = 0; j < kWidth; ++j) sum += u.at(v * kWidth + j) * x[static_cast<size_t>(j)];
      logits.push_back(static_cast<float>(sum));
    }
    return logits;
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4f) << i;
  }

  test::TempDir dir_;
  std::mt19937 numbers_{4};
  std::vector<float> state_ = floats({kWidth}).to_floats();
  Tensor w0_ = floats({kWidth, kWidth}), w1_ = floats({kWidth, kWidth}), b0_ = floats({kWidth}),
         b1_ = floats({kWidth}), u0_ = floats({kVocabulary, kWidth}), u1_ = floats({kVocabulary, kWidth});
};

TEST_F(MedusaHeadsTest, TheOriginalsKeys) {
  const std::string path = write({{"0.0.linear.weight", w0_},
                                  {"0.0.linear.bias", b0_},
                                  {"0.1.weight", u0_},
                                  {"1.0.linear.weight", w1_},
                                  {"1.0.linear.bias", b1_},
                                  {"1.1.weight", u1_}});
  expect_fires("insert-medusa-heads", {{"weights", path}});
  EXPECT_EQ(runtime::count_medusa_heads(graph()), 2);
  expect_near(head(0, state_), computed(w0_, &b0_, u0_, state_));
  expect_near(head(1, state_), computed(w1_, &b1_, u1_, state_));
}

TEST_F(MedusaHeadsTest, KeysOfVllm) {
  const std::string path = write({{"medusa_heads.blocks.0.layers.0.weight", w0_},
                                  {"medusa_heads.lm_heads.0.weight", u0_},
                                  {"medusa_heads.blocks.1.layers.0.weight", w1_},
                                  {"medusa_heads.blocks.1.layers.0.bias", b1_},
                                  {"medusa_heads.lm_heads.1.weight", u1_}});
  expect_fires("insert-medusa-heads", {{"weights", path}, {"heads", 2}});
  expect_near(head(0, state_), computed(w0_, nullptr, u0_, state_));
  expect_near(head(1, state_), computed(w1_, &b1_, u1_, state_));
}

// As TGI keeps them: no projection of their own.
TEST_F(MedusaHeadsTest, HeadsThatShareTheProjectionCopyNothing) {
  const std::string path = write({{"0.0.linear.weight", w0_}, {"0.0.linear.bias", b0_}});
  expect_fires("insert-medusa-heads", {{"weights", path}});
  const Tensor& table = *graph().find_value("embed_tokens")->tensor();
  expect_near(head(0, state_), computed(w0_, &b0_, table, state_));
  EXPECT_EQ(graph().find_value("embed_tokens")->uses().size(), 3u);
}

TEST_F(MedusaHeadsTest, FreshHeadsSayWhatTheModelSays) {
  expect_fires("insert-medusa-heads", {{"weights", "fresh"}, {"heads", 3}});
  EXPECT_EQ(runtime::count_medusa_heads(graph()), 3);
  EXPECT_EQ(head(2, state_), head(0, state_));
  const Tensor zeros = Tensor::zeros(DType::F32, {kWidth, kWidth});
  expect_near(head(0, state_),
              computed(zeros, nullptr, *graph().find_value("embed_tokens")->tensor(), state_));
}

TEST_F(MedusaHeadsTest, FewerHeadsThanTheFileHas) {
  const std::string path = write({{"0.0.linear.weight", w0_}, {"1.0.linear.weight", w1_}});
  expect_fires("insert-medusa-heads", {{"weights", path}, {"heads", 1}});
  EXPECT_EQ(runtime::count_medusa_heads(graph()), 1);
}

TEST_F(MedusaHeadsTest, QuantizesLikeEverythingElse) {
  const std::string path = write({{"0.0.linear.weight", w0_}, {"0.1.weight", u0_}});
  run("insert-medusa-heads", {{"weights", path}});
  run("quantize-weights", {{"weights", "int8"}});
  run("materialize-weights");
  const Value* weight = nullptr;
  for (const GraphOutput& output : graph().outputs()) {
    if (output.name == runtime::medusa_output(0)) weight = output.value->producer()->input(1);
  }
  ASSERT_NE(weight, nullptr);
  EXPECT_NE(weight->quantized(), nullptr);
  const std::vector<float> wanted = computed(w0_, nullptr, u0_, state_), got = head(0, state_);
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 0.15f);
}

TEST_F(MedusaHeadsTest, LeavesOtherGraphsAlone) {
  expect_no_match("insert-medusa-heads");
  build([](Rewriter& r) {
    Value* x = r.add_input("x", test::f32({2, 3}));
    r.add_output(r.add_node({.op = "Relu", .inputs = {x}})->output(), "logits");
  });
  const PassReport report = expect_no_match("insert-medusa-heads", {{"weights", "fresh"}, {"heads", 2}});
  EXPECT_TRUE(has_reason(report, "no canonical decoder"));
}

TEST_F(MedusaHeadsTest, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::map<std::string, Tensor>& tensors, ErrorCode code,
                           const std::string& part, int heads = 0) {
    const std::string path = write(tensors);
    EXPECT_QUERN_ERROR(run("insert-medusa-heads", {{"weights", path}, {"heads", heads}}), code, part);
  };
  const Tensor small = Tensor::zeros(DType::F32, {8, 8});
  refused({{"0.0.linear.weight", small}}, ErrorCode::InvalidArgument, "width 8");
  refused({{"0.0.linear.weight", w0_}, {"0.1.weight", small}}, ErrorCode::InvalidArgument,
          "projection of head 0");
  refused({{"0.0.linear.weight", u0_}}, ErrorCode::BadData, "square");
  refused({{"0.0.linear.weight", w0_}, {"0.2.weight", u0_}}, ErrorCode::BadData, "'0.2.weight'");
  refused({{"1.0.linear.weight", w0_}}, ErrorCode::BadData, "no head 0");
  refused({{"0.1.linear.weight", w0_}}, ErrorCode::BadData, "no block 0");
  refused({{"0.0.linear.weight", w0_}, {"0.0.linear.bias", u0_}}, ErrorCode::BadData, "bias");
  refused({{"0.0.linear.weight", Tensor::zeros(DType::I32, {48, 48})}}, ErrorCode::BadData, "i32");
  refused({{"999999.0.linear.weight", w0_}}, ErrorCode::BadData, "no part of Medusa heads");
  refused({{"lm_head.weight", u0_}}, ErrorCode::BadData, "no part of Medusa heads");
  refused({{"0.0.linear.weight", w0_}}, ErrorCode::InvalidArgument, "has 1", 2);
  EXPECT_QUERN_ERROR(run("insert-medusa-heads", {{"weights", "fresh"}}), ErrorCode::InvalidArgument, "fresh");
}

TEST_F(MedusaHeadsTest, WritesWhatItReads) {
  const std::string path = write({{"0.0.linear.weight", w0_}, {"0.0.linear.bias", b0_}, {"0.1.weight", u0_}});
  const std::string copy = (dir_ / "copy.safetensors").string();
  write_medusa_heads(copy, read_medusa_heads(path));
  const auto bytes = [](const std::string& name) {
    std::ifstream in(name, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  };
  EXPECT_EQ(bytes(copy), bytes(path));
}

}  // namespace
}  // namespace quern::passes
