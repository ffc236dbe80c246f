#include "runtime/decoder/program.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/isa.h"
#include "runtime/decoder/session.h"
#include "tests/runtime/decoder/allocation_count.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::DecoderShape;
using test::random_decoder;
using test::random_tokens;

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class AllocationTest : public testing::TestWithParam<test::NamedDecoder> {};

// After warm-up a token costs no allocation, whatever the model. (A block of the cache serves 64 tokens.)
TEST_P(AllocationTest, NonePerToken) {
  const auto graph = random_decoder(GetParam().shape);
  Session session(Program::compile(*graph),
                  {.threads = GetParam().name == "llama" ? 2 : 1, .serial_work = 0});
  const std::vector<int64_t> tokens = random_tokens(60, GetParam().shape.vocabulary, 3);
  Sequence a = session.new_sequence(), b = session.new_sequence();
  session.run(a, std::span(tokens).first(20));
  session.run(b, std::span(tokens).first(9));
  std::vector<SequenceStep> steps(2);
  const auto decode = [&](size_t i) {
    steps[0] = {.sequence = &a, .tokens = std::span(tokens).subspan(i, 1)};
    steps[1] = {.sequence = &b, .tokens = std::span(tokens).subspan(i, 1)};
    session.run(steps);
  };
  decode(20);
  const int64_t before = test::allocation_count();
  for (size_t i = 21; i < 35; ++i) decode(i);
  EXPECT_EQ(test::allocation_count() - before, 0);
}

INSTANTIATE_TEST_SUITE_P(All, AllocationTest, testing::ValuesIn(test::decoder_variations()),
                         [](const auto& info) { return info.param.name; });

TEST(Program, FusesWhatBelongsTogether) {
  DecoderShape shape;
  shape.layers = 3;
  const auto graph = random_decoder(shape);
  const std::string text = Program::compile(*graph)->to_text();
  // Per layer: q, k, v; o; gate and up with the activation; down. And the head.
  EXPECT_EQ(count_of(text, "linear "), 3 * 4 + 1) << text;
  EXPECT_EQ(count_of(text, "gated"), 3) << text;
  EXPECT_EQ(count_of(text, "attention "), 3 + 3 * 0) << text;
  EXPECT_EQ(count_of(text, "rotates q"), 3) << text;
  EXPECT_EQ(count_of(text, "rotary_table "), 1) << text;
  EXPECT_EQ(count_of(text, "activation "), 0) << text;
  EXPECT_EQ(count_of(text, "elementwise "), 0) << text;
}

TEST(Program, FoldsResidualSums) {
  DecoderShape shape;
  shape.parallel = true;
  const auto graph = random_decoder(shape);
  const std::string text = Program::compile(*graph)->to_text();
  EXPECT_EQ(count_of(text, "residual"), 4) << text;
  EXPECT_EQ(count_of(text, "elementwise "), 0) << text;
}

TEST(Program, ShowsTappedValues) {
  const auto graph = random_decoder({});
  const std::vector<int64_t> tokens = random_tokens(25, 97, 4);
  std::string swish, mul;
  for (const Node* node : graph->nodes()) {
    if (node->op() == "Swish" && swish.empty()) swish = node->output()->name();
    if (node->op() == "Mul" && mul.empty()) mul = node->output()->name();
  }
  const std::vector<std::string> taps = {"attention.1", swish, mul, "embedded", "logits"};
  const auto program = Program::compile(*graph, {.taps = taps});
  Session session(program, {.threads = 2, .max_rows = 10});
  Session plain(Program::compile(*graph), {.threads = 1});
  Sequence sequence = session.new_sequence(), other = plain.new_sequence();
  std::map<std::string, std::vector<std::vector<float>>> seen;
  std::vector<int32_t> logit_tokens;
  DecodeRunOptions options;
  options.observer = [&](const TapView& view) {
    EXPECT_EQ(view.name, taps[static_cast<size_t>(view.tap)]);
    ASSERT_EQ(view.row_token.size(), static_cast<size_t>(view.rows));
    for (int64_t r = 0; r < view.rows; ++r) {
      const float* row = view.data + r * view.stride;
      seen[std::string(view.name)].emplace_back(row, row + view.width);
      EXPECT_EQ(view.row_step[static_cast<size_t>(r)], 0);
      if (view.name == "logits") logit_tokens.push_back(view.row_token[static_cast<size_t>(r)]);
    }
  };
  const std::vector<int32_t> wanted = {3, 24};
  const SequenceStep step{.sequence = &sequence, .tokens = tokens, .logit_tokens = wanted};
  session.run({&step, 1}, options);
  for (const std::string& name : {std::string("attention.1"), swish, mul, std::string("embedded")}) {
    EXPECT_EQ(seen[name].size(), 25U) << name;
  }
  EXPECT_EQ(logit_tokens, wanted);
  const auto logits = plain.run(other, tokens);
  EXPECT_EQ(seen["logits"].back(), std::vector<float>(logits.begin(), logits.end()));
  const auto embedding = graph->find_value("embed_tokens")->tensor()->to_floats();
  EXPECT_EQ(seen["embedded"][7][5], embedding[static_cast<size_t>(tokens[7] * 48 + 5)]);

  options.observer = [](const TapView&) { throw std::runtime_error("enough"); };
  EXPECT_THROW(session.run({&step, 1}, options), std::runtime_error);
  EXPECT_EQ(sequence.size(), 25);
  EXPECT_QUERN_ERROR(Program::compile(*graph, {.taps = {"nobody"}}), ErrorCode::InvalidArgument, "nobody");
}

TEST(Program, ComputesTheEntryAskedFor) {
  const auto graph = random_decoder({});
  {
    // An exit: the head on what the first layer adds up to.
    Rewriter rewriter(*graph);
    const Node* first = nullptr;
    for (const Node* node : graph->nodes()) {
      if (node->op() == "SkipSimplifiedLayerNormalization") {
        first = node;
        break;
      }
    }
    NodeSpec select{.op = "SelectRows", .domain = std::string(kQuernDomain), .inputs = {first->output(0)}};
    Value* rows = rewriter.add_node(select)->output();
    NodeSpec head{.op = "Linear",
                  .domain = std::string(kQuernDomain),
                  .inputs = {rows, graph->find_value("embed_tokens")}};
    rewriter.add_output(rewriter.add_node(head)->output(), "exit");
    rewriter.commit();
  }
  const auto program = Program::compile(*graph, {.entries = {{"logits"}, {"exit"}, {"exit", "logits"}}});
  EXPECT_EQ(program->outputs(2), (std::vector<std::string>{"exit", "logits"}));
  EXPECT_EQ(count_of(program->to_text(1), "attention "), 1);
  Session session(program, {.threads = 2});
  const std::vector<int64_t> tokens = random_tokens(30, 97, 8);
  const auto run = [&](int entry, int output) {
    Sequence sequence = session.new_sequence();
    const SequenceStep step{.sequence = &sequence, .tokens = tokens};
    session.run({&step, 1}, {.entry = entry});
    const auto row = session.logits(0, 0, output);
    return std::vector<float>(row.begin(), row.end());
  };
  EXPECT_EQ(run(1, 0), run(2, 0));
  EXPECT_EQ(run(0, 0), run(2, 1));
  EXPECT_NE(run(0, 0), run(1, 0));
  EXPECT_QUERN_ERROR(run(3, 0), ErrorCode::InvalidArgument, "entry 3");
  EXPECT_QUERN_ERROR(Program::compile(*graph, {.entries = {{"nothing"}}}), ErrorCode::InvalidArgument,
                     "nothing");
}

TEST(Program, ProfilesSteps) {
  const auto graph = random_decoder({});
  Session session(Program::compile(*graph), {.threads = 2});
  Sequence sequence = session.new_sequence();
  session.set_profiling(true);
  session.run(sequence, random_tokens(5, 97, 8));
  session.run(sequence, random_tokens(1, 97, 8));
  int64_t bytes = 0;
  for (const StepProfile& step : session.profile()) {
    EXPECT_EQ(step.calls, 2) << step.name;
    EXPECT_FALSE(step.kind.empty());
    if (step.kind == "linear") bytes += step.bytes;
  }
  EXPECT_EQ(bytes, 2 * session.program().traits().streamed_bytes);
}

// Small graphs: x = Embedding(input_ids), then what a test builds.
class OperatorTest : public testing::Test {
 protected:
  OperatorTest() : rewriter_(graph_) {
    Value* ids = rewriter_.add_input("input_ids", {DType::I64, SymShape{Dim::symbol("tokens")}});
    Tensor table = Tensor::zeros(DType::F32, {7, 12});
    for (int64_t i = 0; i < table.size(); ++i) table.set(i, 0.37 * static_cast<double>((i * 29) % 17) - 2.5);
    table_ = table.to_floats();
    NodeSpec spec{.op = "Embedding",
                  .domain = std::string(kQuernDomain),
                  .inputs = {rewriter_.add_constant(table, "table"), ids}};
    x_ = rewriter_.add_node(spec)->output();
  }
  Value* add(const std::string& op, std::vector<Value*> inputs, Attributes attributes = {},
             std::string domain = {}) {
    NodeSpec spec{.op = op,
                  .domain = std::move(domain),
                  .name = op,
                  .inputs = std::move(inputs),
                  .attributes = std::move(attributes)};
    return rewriter_.add_node(std::move(spec))->output();
  }
  Value* ints(std::initializer_list<int64_t> values) {
    return rewriter_.add_constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
  }
  Value* floats(Shape shape, std::initializer_list<float> values) {
    return rewriter_.add_constant(Tensor::from<float>(std::move(shape), values));
  }
  // The output's rows for ids 1 and 5.
  std::vector<std::vector<float>> run(Value* y) {
    rewriter_.add_output(y, "y");
    rewriter_.commit();
    Session session(Program::compile(graph_), {.threads = 2});
    Sequence sequence = session.new_sequence();
    const std::vector<int64_t> tokens = {1, 5};
    const SequenceStep step{.sequence = &sequence, .tokens = tokens, .logits = LogitsFor::All};
    session.run({&step, 1});
    std::vector<std::vector<float>> rows;
    for (int64_t i = 0; i < 2; ++i)
      rows.emplace_back(session.logits(0, i).begin(), session.logits(0, i).end());
    return rows;
  }
  float x(size_t row, size_t i) const { return table_[(row == 0 ? 1 : 5) * 12 + i]; }
  template <class Function>
  void expect(Value* y, Function f, size_t width = 12) {
    const auto rows = run(y);
    for (size_t r = 0; r < 2; ++r) {
      ASSERT_EQ(rows[r].size(), width);
      for (size_t i = 0; i < width; ++i)
        EXPECT_NEAR(rows[r][i], f(r, i), 1e-5) << "row " << r << ", feature " << i;
    }
  }

  Graph graph_;
  Rewriter rewriter_;
  Value* x_;
  std::vector<float> table_;
};

TEST_F(OperatorTest, ScalarsAndVectors) {
  Value* scaled = add("Mul", {x_, floats({}, {2.5f})});
  Value* shifted = add("Sub", {floats({1}, {1.0f}), scaled});
  Value* added = add("Add", {shifted, floats({12}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})});
  expect(added, [&](size_t r, size_t i) { return 1 - 2.5f * x(r, i) + static_cast<float>(i); });
}

TEST_F(OperatorTest, SlicesAndJoins) {
  Value* high = add("Slice", {x_, ints({8}), ints({1000}), ints({-1})});
  Value* low = add("Slice", {x_, ints({0}), ints({-4}), ints({1})});
  expect(add("Concat", {high, low}, {{"axis", int64_t{-1}}}),
         [&](size_t r, size_t i) { return i < 4 ? x(r, i + 8) : x(r, i - 4); });
}

TEST_F(OperatorTest, SpreadsOneFeatureOverOthers) {
  // x / sqrt(mean of squares): a norm that nobody recognised.
  Value* squares = add("Mul", {x_, x_});
  Value* mean = add("ReduceMean", {squares, ints({-1})});
  Value* y = add("Div", {x_, add("Sqrt", {mean})});
  expect(y, [&](size_t r, size_t i) {
    float sum = 0;
    for (size_t k = 0; k < 12; ++k) sum += x(r, k) * x(r, k);
    return x(r, i) / std::sqrt(sum / 12);
  });
}

TEST_F(OperatorTest, WorksOnHeads) {
  Value* heads = add("Reshape", {x_, ints({0, 3, 4})});
  Value* soft = add("Softmax", {heads}, {{"axis", int64_t{-1}}});
  Value* scaled = add("Mul", {soft, floats({3, 1}, {1, 2, 3})});
  expect(add("Reshape", {scaled, ints({0, -1})}), [&](size_t r, size_t i) {
    float sum = 0;
    for (size_t k = i / 4 * 4; k < i / 4 * 4 + 4; ++k) sum += std::exp(x(r, k));
    return std::exp(x(r, i)) / sum * static_cast<float>(i / 4 + 1);
  });
}

TEST_F(OperatorTest, GatesWithoutProducts) {
  expect(add("Mul", {x_, add("Sigmoid", {x_})}),
         [&](size_t r, size_t i) { return x(r, i) / (1 + std::exp(-x(r, i))); });
}

TEST_F(OperatorTest, FallsBackToTheReference) {
  Value* y = add("Sin", {add("Reshape", {x_, ints({0, 3, 4})})});
  expect(add("Reshape", {y, ints({0, -1})}), [&](size_t r, size_t i) { return std::sin(x(r, i)); });
  EXPECT_EQ(count_of(Program::compile(graph_)->to_text(), "fallback "), 1);
}

TEST_F(OperatorTest, RefusesWhatMixesTokens) {
  rewriter_.add_output(add("Softmax", {x_}, {{"axis", int64_t{0}}}), "y");
  rewriter_.commit();
  EXPECT_QUERN_ERROR(Program::compile(graph_), ErrorCode::Unsupported, "Softmax", "across tokens");
}

TEST_F(OperatorTest, RefusesUnknownInputs) {
  Value* mask = rewriter_.add_input("attention_mask", {DType::F32, SymShape{Dim::symbol("tokens"), Dim(12)}});
  rewriter_.add_output(add("Add", {x_, mask}), "y");
  rewriter_.commit();
  EXPECT_QUERN_ERROR(Program::compile(graph_), ErrorCode::Unsupported, "attention_mask", "canonical");
}

}  // namespace
}  // namespace quern::runtime
