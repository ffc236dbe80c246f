// Early exits of encoders: where layers end, who leaves, and that nobody computes for those who left.
#include "runtime/layers/encoder_exit.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "runtime/layers/blocks.h"
#include "tests/runtime/layers/random_encoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::EncoderShape;
using test::random_encoder;

void add_exits(Graph& graph, const std::vector<int64_t>& layers) {
  const EncoderLayers found = find_encoder_layers(graph);
  Rewriter rewriter(graph);
  for (const int64_t layer : layers) {
    FlowCopy copy(rewriter, found);
    copy.put_at(found.boundaries.back(), found.at(layer).stream);
    rewriter.add_output(copy.of(found.logits->value), exit_output(layer));
  }
  rewriter.commit();
}

std::shared_ptr<const Graph> with_exits(const EncoderShape& shape,
                                        const std::vector<int64_t>& layers = {1, 3}) {
  auto graph = random_encoder(shape);
  add_exits(*graph, layers);
  return graph;
}

// Sequences of one length, the last ones padded.
NamedValues batch_of(int64_t count, int64_t length = 7) {
  std::mt19937 random(11);
  Tensor ids = Tensor::zeros(DType::I64, {count, length}), mask = ids;
  for (int64_t i = 0; i < ids.size(); ++i) {
    ids.set_int(i, static_cast<int64_t>(random() % 61));
    mask.set_int(i, i % length < length - i / length % 3 ? 1 : 0);
  }
  return {{"input_ids", ids}, {"attention_mask", mask}};
}

NamedValues row_of(const NamedValues& inputs, int64_t row) {
  NamedValues one;
  for (const auto& [name, value] : inputs)
    one[name] = take_rows(*value.tensor(), std::span<const int64_t>(&row, 1));
  return one;
}

std::vector<float> row(const Tensor& tensor, size_t index) {
  const auto width = static_cast<size_t>(tensor.dim(1));
  const auto part = tensor.data<float>().subspan(index * width, width);
  return {part.begin(), part.end()};
}

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 2e-4F) << i;
}

class EncoderExits : public testing::TestWithParam<EncoderShape> {};

TEST_P(EncoderExits, LayersEndWithTheStream) {
  const auto graph = random_encoder(GetParam());
  const EncoderLayers layers = find_encoder_layers(*graph);
  ASSERT_EQ(layers.layers(), 4);
  EXPECT_EQ(layers.ids->name(), "input_ids");
  EXPECT_EQ(stream_width(layers), 16);
  for (const int64_t i : {1, 2, 3}) EXPECT_EQ(layers.at(i).stream->name(), concat("stream.", i));
}

TEST_P(EncoderExits, WhoeverIsNeverSureGetsTheWholeModel) {
  const auto graph = with_exits(GetParam());
  const NamedValues inputs = batch_of(6);
  const Tensor whole = Interpreter(*graph).run(inputs).at("logits").dense();
  EarlyExitEncoder encoder(graph, {.threshold = 1.5});
  const auto results = encoder.run(inputs);
  ASSERT_EQ(results.size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    expect_near(results[i].logits, row(whole, i));
    EXPECT_EQ(results[i].layers, 4);
    EXPECT_EQ(results[i].confidences.size(), 2U);
  }
  EXPECT_EQ(encoder.statistics().average_layers(), 4);
}

TEST_P(EncoderExits, AFixedLayerGivesItsHeadsLogits) {
  const auto graph = with_exits(GetParam());
  const NamedValues inputs = batch_of(3);
  const Tensor wanted = Interpreter(*graph).run(inputs).at("exit_logits.3").dense();
  EarlyExitEncoder encoder(graph, {.confidence = ExitConfidence::Always, .threshold = 0, .layers = {3}});
  const auto results = encoder.run(inputs);
  for (size_t i = 0; i < 3; ++i) expect_near(results[i].logits, row(wanted, i));
  EXPECT_EQ(encoder.statistics().average_layers(), 3);
}

// Each sequence of a batch gets what it gets alone, whoever leaves beside it.
TEST_P(EncoderExits, ABatchIsItsSequences) {
  const auto graph = with_exits(GetParam());
  const NamedValues inputs = batch_of(24);
  for (const auto confidence :
       {ExitConfidence::Margin, ExitConfidence::Entropy, ExitConfidence::MaxProbability}) {
    const ExitRule rule{.confidence = confidence, .threshold = 0.45};
    EarlyExitEncoder encoder(graph, rule), alone(graph, rule);
    const auto results = encoder.run(inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      const auto one = alone.run(row_of(inputs, static_cast<int64_t>(i)));
      EXPECT_EQ(one[0].layers, results[i].layers);
      expect_near(results[i].logits, one[0].logits);
    }
    EXPECT_EQ(encoder.statistics().tokens, alone.statistics().tokens);
  }
}

// The rows that each layer's stream is computed of are those of the sequences still there.
TEST_P(EncoderExits, NothingIsComputedForThoseWhoLeft) {
  const auto graph = with_exits(GetParam());
  const EncoderLayers layers = find_encoder_layers(*graph);
  std::map<const Value*, int64_t> rows;
  RunOptions options;
  options.on_value = [&](const Value& value, const RuntimeValue& data) {
    if (layers.flowing.contains(&value)) rows[&value] += data.tensor()->dim(0);
  };
  EarlyExitEncoder encoder(graph, {.threshold = 0.4});
  const auto results = encoder.run(batch_of(24), options);
  std::map<int64_t, int64_t> left;
  for (const auto& result : results) ++left[result.layers];
  ASSERT_GT(left[1], 0);
  ASSERT_GT(left[4], 0);
  EXPECT_EQ(rows[layers.at(1).stream], 24);
  EXPECT_EQ(rows[layers.at(2).stream], 24 - left[1]);
  EXPECT_EQ(rows[layers.at(3).stream], 24 - left[1]);
  EXPECT_EQ(rows[layers.logits->value], left[4]);
  for (size_t i = 0; i < 4; ++i) {
    const Node* attention = layers.attentions[i];
    EXPECT_EQ(rows[attention->output()], i == 0 ? 24 : i < 3 ? 24 - left[1] : left[4]) << i;
  }
}

TEST_P(EncoderExits, NoPartOfTheFlowIsComputedTwice) {
  const auto graph = with_exits(GetParam());
  const EncoderLayers layers = find_encoder_layers(*graph);
  EarlyExitEncoder encoder(graph, {});
  std::set<const Node*> seen;
  for (size_t part = 0; part < 3; ++part) {
    for (const Node* node : encoder.nodes_of(part)) {
      if (!layers.flowing.contains(node->output()) && !layers.shaped.contains(node->output())) continue;
      EXPECT_TRUE(seen.insert(node).second) << node->name();
    }
  }
}

using Norm = EncoderShape::Norm;
INSTANTIATE_TEST_SUITE_P(Spellings, EncoderExits,
                         testing::Values(EncoderShape{}, EncoderShape{.norm = Norm::Pre, .mean_pool = true},
                                         EncoderShape{.norm = Norm::PreFused},
                                         EncoderShape{.mean_pool = true, .spelled_out = true},
                                         EncoderShape{.mean_pool = true, .expanded = true}));

TEST(EncoderExit, RefusesWhatIsNot) {
  const auto refused = [](const std::shared_ptr<const Graph>& graph, const ExitRule& rule, ErrorCode code,
                          const std::string& part) {
    EXPECT_QUERN_ERROR(EarlyExitEncoder(graph, rule), code, part);
  };
  const auto graph = with_exits({});
  refused(graph, {.confidence = ExitConfidence::Saturation}, ErrorCode::InvalidArgument, "are for decoders");
  refused(graph, {.layers = {2}}, ErrorCode::InvalidArgument, "no exit head behind layer 2");
  refused(random_encoder(), {}, ErrorCode::InvalidArgument, "no exit heads");
  EarlyExitEncoder encoder(graph, {});
  NamedValues inputs = batch_of(2);
  inputs.erase("attention_mask");
  EXPECT_QUERN_ERROR(encoder.run(inputs), ErrorCode::BadData, "attention_mask");
  inputs["attention_mask"] = Tensor::zeros(DType::F32, {2, 7});
  EXPECT_QUERN_ERROR(encoder.run(inputs), ErrorCode::BadData, "expected i64");
}

TEST(EncoderExit, FindsNoLayersWhereThereAreNone) {
  Graph graph("plain");
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{Dim::symbol("n"), Dim(4)}});
  rewriter.add_output(rewriter.add_node({.op = "Relu", .inputs = {x}})->output(), "y");
  rewriter.commit();
  EXPECT_QUERN_ERROR(find_encoder_layers(graph), ErrorCode::Unsupported, "looks up no tokens");
}

// A second value that layers hand on, beside the stream: none of them can be left out then.
TEST(EncoderExit, RefusesLayersThatHandOnMore) {
  auto graph = random_encoder();
  {
    Rewriter rewriter(*graph);
    Value* early = graph->find_value("stream.1");
    const EncoderLayers layers = find_encoder_layers(*graph);
    Value* late = layers.at(4).stream;
    Value* sum = rewriter.add_node({.op = "Add", .inputs = {late, early}})->output();
    for (const Use& use : std::vector<Use>(late->uses()))
      rewriter.set_input(use.node, static_cast<size_t>(use.input), sum);
    rewriter.commit();
  }
  EXPECT_QUERN_ERROR(find_encoder_layers(*graph), ErrorCode::Unsupported, "layer 2 gets more than one");
}

}  // namespace
}  // namespace quern::runtime
