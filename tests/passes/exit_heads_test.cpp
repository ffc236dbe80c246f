#include <gtest/gtest.h>

#include <cmath>

#include "formats/safetensors/safetensors.h"
#include "runtime/decoder/session.h"
#include "runtime/layers/blocks.h"
#include "tests/passes/pass_test.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::passes {
namespace {

constexpr int64_t kWidth = 48;

class ExitHeadsTest : public test::PassTest {
 protected:
  ExitHeadsTest() {
    numeric_ = false;  // the interpreter has no cache; logits() computes them instead
    use(test::random_decoder({.layers = 4}));
  }

  std::string write(const std::map<std::string, Tensor>& tensors) {
    const std::string path = (dir_ / "exits.safetensors").string();
    safetensors::write(path, {.tensors = tensors, .metadata = {}});
    return path;
  }
  static Tensor constant(Shape shape, float value) {
    Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
    for (float& v : tensor.mutable_data<float>()) v = value;
    return tensor;
  }
  std::vector<float> logits(const std::string& output) {
    runtime::Session session(runtime::Program::compile(graph(), {.entries = {{output}}}), {.threads = 1});
    runtime::Sequence sequence = session.new_sequence();
    const auto row = session.run(sequence, std::vector<int64_t>{3, 1, 4, 1, 5});
    return {row.begin(), row.end()};
  }
  // What stands before the head where its weight is the identity's... the stream itself, behind a layer.
  std::vector<float> stream(int64_t layer) {
    const std::string name =
        runtime::find_layers(graph()).boundaries[static_cast<size_t>(layer)].stream->name();
    return logits(name);
  }
  // head(norm(x) * weight), as the formula has it.
  std::vector<float> expected(std::vector<float> x, const std::vector<float>& weight) {
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * v;
    const double factor = 1 / std::sqrt(squares / kWidth + 1e-5);
    const std::vector<float> table = graph().find_value("embed_tokens")->tensor()->to_floats();
    std::vector<float> out;
    for (size_t v = 0; v < table.size() / kWidth; ++v) {
      double sum = 0;
      for (size_t i = 0; i < kWidth; ++i) sum += table[v * kWidth + i] * x[i] * factor * weight[i];
      out.push_back(static_cast<float>(sum));
    }
    return out;
  }
  std::vector<float> final_norm() {
    const auto boundary = runtime::find_layers(graph()).boundaries.back();
    return boundary.node->input(2)->tensor()->to_floats();
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4f) << i;
  }

  test::TempDir dir_;
};

TEST_F(ExitHeadsTest, SharedHeads) {
  const std::vector<float> before = logits("logits");
  const PassReport report = expect_fires("insert-exit-heads", {{"layers", "1,3"}});
  EXPECT_EQ(report.changes, 2);
  EXPECT_EQ(runtime::exits_of(graph()), (std::vector<int64_t>{1, 3}));
  for (const int64_t layer : {1, 3})
    expect_near(logits(runtime::exit_output(layer)), expected(stream(layer), final_norm()));
  EXPECT_EQ(logits("logits"), before);
  // The table, the head, and two heads more: nothing is copied.
  EXPECT_EQ(graph().find_value("embed_tokens")->uses().size(), 4u);
}

TEST_F(ExitHeadsTest, NormsOfTheirOwn) {
  const std::string path = write({{"exits.2.norm.weight", constant({kWidth}, 0.5f)}});
  expect_fires("insert-exit-heads", {{"weights", path}, {"head", "norm"}});
  EXPECT_EQ(runtime::exits_of(graph()), (std::vector<int64_t>{2}));
  expect_near(logits("exit_logits.2"), expected(stream(2), std::vector<float>(kWidth, 0.5f)));
}

TEST_F(ExitHeadsTest, FreshNormsBeginAsTheFinalOne) {
  expect_fires("insert-exit-heads", {{"layers", "2"}, {"head", "norm"}});
  expect_near(logits("exit_logits.2"), expected(stream(2), final_norm()));
  EXPECT_NE(graph().find_value("exits.2.norm.weight"), nullptr);
}

// x + up(silu(down(x))): of constant matrices every feature gains the same.
TEST_F(ExitHeadsTest, Adapters) {
  const std::string path = write({{"exits.2.norm.weight", constant({kWidth}, 1)},
                                  {"exits.2.adapter.down.weight", constant({3, kWidth}, 0.1f)},
                                  {"exits.2.adapter.up.weight", constant({kWidth, 3}, 0.2f)}});
  expect_fires("insert-exit-heads", {{"weights", path}, {"head", "adapter"}});
  std::vector<float> x = stream(2);
  double sum = 0;
  for (const float v : x) sum += 0.1 * v;
  const double gain = 3 * 0.2 * sum / (1 + std::exp(-sum));
  for (float& v : x) v += static_cast<float>(gain);
  expect_near(logits("exit_logits.2"), expected(x, std::vector<float>(kWidth, 1)));
}

TEST_F(ExitHeadsTest, RefusesWhatDoesNotFit) {
  const auto refused = [&](const nlohmann::json& options, const std::string& part) {
    EXPECT_QUERN_ERROR(run("insert-exit-heads", options), ErrorCode::InvalidArgument, part);
  };
  refused({{"layers", "4"}}, "4 layers");
  refused({{"layers", "1,x"}}, "1,x");
  refused({{"layers", "0"}}, "layers is '0'");
  refused({{"weights", write({{"other", constant({2}, 1)}})}}, "no exit heads");
  refused({{"weights", write({{"exits.1.norm.weight", constant({40}, 1)}})}, {"head", "norm"}},
          "width is 48");
  refused(
      {{"weights", write({{"exits.1.adapter.down.weight", constant({3, kWidth}, 1)}})}, {"head", "adapter"}},
      "of one R");
}

TEST_F(ExitHeadsTest, LeavesGraphsAloneThatAreNoDecoders) {
  build([](Rewriter& r) {
    r.add_output(r.add_node({.op = "Relu", .inputs = {r.add_input("x", test::f32({4}))}})->output(), "y");
  });
  EXPECT_FALSE(expect_no_match("insert-exit-heads", {{"layers", "1"}}).failures.empty());
}

TEST_F(ExitHeadsTest, WithoutSettingsNothingHappens) {
  expect_no_match("insert-exit-heads");
}

}  // namespace
}  // namespace quern::passes
