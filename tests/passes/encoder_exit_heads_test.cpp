// insert-exit-heads on encoders that classify.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/safetensors/safetensors.h"
#include "runtime/layers/blocks.h"
#include "tests/passes/pass_test.h"
#include "tests/runtime/layers/random_encoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::passes {
namespace {

using test::EncoderShape;

constexpr int64_t kWidth = 16, kClasses = 5;

class EncoderExitHeadsTest : public test::PassTest {
 protected:
  EncoderExitHeadsTest() {
    numeric_ = false;  // there are more outputs than before; SharedHeads... compares those that there were
    random_.sizes = {{"batch", 3}, {"tokens", 6}};
    Tensor mask = Tensor::zeros(DType::I64, {3, 6});
    for (int64_t i = 0; i < mask.size(); ++i) mask.set_int(i, i % 6 < 6 - i / 6 ? 1 : 0);
    random_.fixed["attention_mask"] = mask;
  }

  std::string write(const std::map<std::string, Tensor>& tensors) {
    const std::string path = (dir_ / "exits.safetensors").string();
    safetensors::write(path, {.tensors = tensors, .metadata = {}});
    return path;
  }
  static Tensor filled(Shape shape, float first, float step) {
    Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
    for (float& v : tensor.mutable_data<float>()) {
      v = first;
      first = -(first + step);
    }
    return tensor;
  }
  // What the graph under test gives for the fixture's inputs, also of values that are no outputs.
  std::vector<float> value(const std::string& name) {
    const auto copy = graph().clone();
    {
      Rewriter rewriter(*copy);
      const Value* output = nullptr;
      for (const GraphOutput& o : copy->outputs()) {
        if (o.name == name) output = o.value;
      }
      rewriter.add_output(output != nullptr ? copy->find_value(output->name()) : copy->find_value(name),
                          "asked");
      rewriter.commit();
    }
    return runtime::Interpreter(*copy).run(random_.for_graph(*copy)).at("asked").dense().to_floats();
  }
  std::vector<float> logits(int64_t layer) {
    return evaluate().at(runtime::exit_output(layer)).dense().to_floats();
  }
  static std::vector<float> dense(const std::vector<float>& x, const Tensor& weight, const Tensor& bias) {
    const auto n = static_cast<size_t>(weight.dim(0)), k = static_cast<size_t>(weight.dim(1));
    std::vector<float> y;
    for (size_t row = 0; row < x.size() / k; ++row) {
      for (size_t i = 0; i < n; ++i) {
        double sum = bias.data<float>()[i];
        for (size_t j = 0; j < k; ++j) sum += weight.data<float>()[i * k + j] * x[row * k + j];
        y.push_back(static_cast<float>(sum));
      }
    }
    return y;
  }
  // The first token's stream behind a layer.
  std::vector<float> first_token(int64_t layer) {
    const std::vector<float> stream = value(concat("stream.", layer));
    std::vector<float> rows;
    for (size_t row = 0; row < 3; ++row)
      rows.insert(rows.end(), stream.begin() + static_cast<int64_t>(row) * 6 * kWidth,
                  stream.begin() + (static_cast<int64_t>(row) * 6 + 1) * kWidth);
    return rows;
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4F) << i;
  }
  std::vector<const Node*> linears_of(const std::string& output) {
    std::vector<const Node*> found;
    for (const GraphOutput& o : graph().outputs()) {
      if (o.name != output) continue;
      for (const Value* v = o.value; v->producer() != nullptr && found.size() < 2;
           v = v->producer()->input(0)) {
        if (v->producer()->op() == "Linear") found.insert(found.begin(), v->producer());
      }
    }
    return found;
  }

  test::TempDir dir_;
};

TEST_F(EncoderExitHeadsTest, SharedHeadsAreTheFinalOneBehindAnEarlierLayer) {
  use(test::random_encoder());
  const std::vector<float> before = value("logits");
  const PassReport report = expect_fires("insert-exit-heads", {{"layers", "1,3"}});
  EXPECT_EQ(evaluate().at("logits").dense().to_floats(), before);
  EXPECT_EQ(report.changes, 2);
  EXPECT_EQ(runtime::exits_of(graph()), (std::vector<int64_t>{1, 3}));
  const std::vector<const Node*> head = linears_of("logits");
  ASSERT_EQ(head.size(), 2U);
  for (const int64_t layer : {1, 3}) {
    std::vector<float> x =
        dense(first_token(layer), *head[0]->input(1)->tensor(), *head[0]->input(2)->tensor());
    for (float& v : x) v = std::tanh(v);
    expect_near(logits(layer), dense(x, *head[1]->input(1)->tensor(), *head[1]->input(2)->tensor()));
  }
  EXPECT_EQ(head[0]->input(1)->uses().size(), 3U) << "nothing is copied";
}

TEST_F(EncoderExitHeadsTest, EverySpellingOfNormsAndPooling) {
  for (const auto norm : {EncoderShape::Norm::Post, EncoderShape::Norm::Pre, EncoderShape::Norm::PreFused}) {
    for (const bool mean : {false, true}) {
      use(test::random_encoder({.norm = norm, .mean_pool = mean}));
      expect_fires("insert-exit-heads", {{"layers", "2"}});
      EXPECT_EQ(logits(2).size(), 3U * kClasses);
    }
  }
}

TEST_F(EncoderExitHeadsTest, PoolersAndClassifiersOfTheirOwn) {
  use(test::random_encoder());
  const Tensor pooler = filled({kWidth, kWidth}, 0.1F, 0.01F), pooler_bias = filled({kWidth}, 0.2F, 0),
               classifier = filled({kClasses, kWidth}, 0.3F, -0.01F), bias = filled({kClasses}, 0.5F, 0.1F);
  const std::string path = write({{"exits.2.linear.0.weight", pooler},
                                  {"exits.2.linear.0.bias", pooler_bias},
                                  {"exits.2.linear.1.weight", classifier},
                                  {"exits.2.linear.1.bias", bias}});
  expect_fires("insert-exit-heads", {{"weights", path}, {"head", "adapter"}});
  std::vector<float> x = dense(first_token(2), pooler, pooler_bias);
  for (float& v : x) v = std::tanh(v);
  expect_near(logits(2), dense(x, classifier, bias));
}

// x + up(silu(down(x))) of what the pooler reads.
TEST_F(EncoderExitHeadsTest, Adapters) {
  use(test::random_encoder());
  const Tensor down = filled({3, kWidth}, 0.1F, 0.02F), up = filled({kWidth, 3}, 0.2F, 0.03F);
  const std::string path = write({{"exits.1.adapter.down.weight", down}, {"exits.1.adapter.up.weight", up}});
  expect_fires("insert-exit-heads", {{"weights", path}, {"head", "adapter"}});
  std::vector<float> x = first_token(1), inner = dense(x, down, Tensor::zeros(DType::F32, {3}));
  for (float& v : inner) v = v / (1 + std::exp(-v));
  const std::vector<float> change = dense(inner, up, Tensor::zeros(DType::F32, {kWidth}));
  for (size_t i = 0; i < x.size(); ++i) x[i] += change[i];
  const std::vector<const Node*> head = linears_of("logits");
  x = dense(x, *head[0]->input(1)->tensor(), *head[0]->input(2)->tensor());
  for (float& v : x) v = std::tanh(v);
  expect_near(logits(1), dense(x, *head[1]->input(1)->tensor(), *head[1]->input(2)->tensor()));
}

TEST_F(EncoderExitHeadsTest, NormsOfTheirOwnWhereTheHeadHasOne) {
  for (const auto norm : {EncoderShape::Norm::Pre, EncoderShape::Norm::PreFused}) {
    use(test::random_encoder({.norm = norm}));
    expect_fires("insert-exit-heads", {{"layers", "2"}, {"head", "norm"}});
    const std::vector<float> as_final = logits(2);
    use(test::random_encoder({.norm = norm}));
    expect_fires("insert-exit-heads", {{"layers", "2"}});
    expect_near(as_final, logits(2));
    use(test::random_encoder({.norm = norm}));
    const std::string path = write({{"exits.2.norm.weight", Tensor::zeros(DType::F32, {kWidth})},
                                    {"exits.2.norm.bias", Tensor::zeros(DType::F32, {kWidth})}});
    expect_fires("insert-exit-heads", {{"weights", path}, {"head", "norm"}});
    // A norm of zeros leaves the biases: the same for every text.
    const std::vector<float> none = logits(2);
    for (size_t i = 0; i < none.size(); ++i) EXPECT_NEAR(none[i], none[i % kClasses], 1e-5F);
  }
}

TEST_F(EncoderExitHeadsTest, RefusesWhatDoesNotFit) {
  const auto refused = [&](const nlohmann::json& options, ErrorCode code, const std::string& part) {
    use(test::random_encoder());
    EXPECT_QUERN_ERROR(run("insert-exit-heads", options), code, part);
  };
  const auto invalid = ErrorCode::InvalidArgument;
  refused({{"layers", "4"}}, invalid, "4 layers");
  refused({{"layers", "1"}, {"head", "norm"}}, ErrorCode::Unsupported, "no norm of their own");
  refused({{"weights", write({{"exits.1.linear.1.weight", filled({4, kWidth}, 1, 0)}})}, {"head", "adapter"}},
          invalid, "has shape [4, 16]; the model's head has [5, 16]");
  refused({{"weights", write({{"exits.1.adapter.down.weight", filled({3, 8}, 1, 0)}})}, {"head", "adapter"}},
          invalid, "width is 16");
}

}  // namespace
}  // namespace quern::passes
