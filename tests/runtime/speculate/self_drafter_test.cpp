// A model that guesses with some of its own layers writes what it would write anyway.
#include "runtime/speculate/self_drafter.h"

#include <gtest/gtest.h>

#include "ir/rewriter.h"
#include "runtime/generate/generate.h"
#include "runtime/layers/blocks.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;

class SelfDrafterTest : public testing::TestWithParam<test::NamedDecoder> {
 protected:
  SelfDrafterTest() {
    test::DecoderShape shape = GetParam().shape;
    shape.layers = 4;
    graph_ = test::random_decoder(shape);
    plain_program_ = Program::compile(*graph_);
    for (unsigned i = 0; i < 3; ++i) prompts_.push_back(random_tokens(30, 97, i + 1));
  }

  GenerateOutput decode(GenerateOptions options, const std::shared_ptr<const Program>& program,
                        std::optional<int64_t> length = {}, DraftRule rule = DraftRule::Shared) {
    Session session(program, {.threads = 1});
    options.strategy = [&](Session& s, Sampler& sampler) {
      const PacingOptions pacing{.adaptive = !length, .most = length.value_or(16)};
      return std::make_unique<SpeculativeDecoding>(
          s, sampler, std::make_unique<SelfDrafter>(s, sampler.options(), rule), pacing);
    };
    return generate(session, prompts_, options);
  }
  Texts plain(const GenerateOptions& options) {
    Session session(plain_program_, {.threads = 1});
    return texts(generate(session, prompts_, options));
  }
  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }

  std::unique_ptr<Graph> graph_;
  std::shared_ptr<const Program> plain_program_;
  std::vector<std::vector<int64_t>> prompts_;
};

// First layers, layers left out in the middle, at the beginning, at the end.
const std::vector<std::vector<int64_t>> kDrafts = {{0}, {0, 1, 2}, {0, 3}, {0, 1, 3}, {1, 2}, {2, 3}};

TEST_P(SelfDrafterTest, GreedyTokensAreThoseOfPlainDecoding) {
  const GenerateOptions options{.max_new_tokens = 40};
  const Texts expected = plain(options);
  int64_t accepted = 0, rejected = 0;
  for (const auto& layers : kDrafts) {
    const auto program = compile_self_draft(*graph_, {.layers = layers});
    for (const int64_t length : {1, 2, 3, 4, 6, 8, 12, 16}) {
      const GenerateOutput output = decode(options, program, length);
      ASSERT_EQ(texts(output), expected) << layers.size() << " layers, length " << length;
      accepted += output.speculation->accepted;
      rejected += output.speculation->evaluated - output.speculation->accepted;
    }
    ASSERT_EQ(texts(decode(options, program)), expected) << layers.size() << " layers";
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(rejected, 50);
}

TEST_P(SelfDrafterTest, SampledTextsAreThoseOfPlainSamplingWithTheSameSeed) {
  GenerateOptions options{.max_new_tokens = 30};
  options.sampling = {
      .sample = true, .temperature = 0.7f, .top_k = 40, .repetition_penalty = 1.1f, .seed = 5};
  const Texts expected = plain(options);
  for (const auto& layers : {kDrafts[1], kDrafts[3], kDrafts[4]}) {
    const auto program = compile_self_draft(*graph_, {.layers = layers});
    for (const int64_t length : {1, 5}) ASSERT_EQ(texts(decode(options, program, length)), expected);
  }
}

// With prompts that join while others are guessed for, and prompts longer than a pass.
TEST_P(SelfDrafterTest, InCompany) {
  prompts_.push_back(random_tokens(90, 97, 9));
  prompts_.push_back(random_tokens(3, 97, 10));
  GenerateOptions options{.max_new_tokens = 20};
  const Texts expected = plain(options);
  options.parallel = 2;
  options.prefill_chunk = 16;
  const auto program = compile_self_draft(*graph_, {.layers = {0, 1}});
  ASSERT_EQ(texts(decode(options, program, 3)), expected);
}

std::vector<test::NamedDecoder> variations() {
  std::vector<test::NamedDecoder> all = test::decoder_variations();
  std::erase_if(all, [](const test::NamedDecoder& decoder) { return decoder.name == "sinks_interleaved"; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SelfDrafterTest, testing::ValuesIn(variations()),
                         [](const auto& info) { return info.param.name; });

// The draft of all layers but one whose products are zero is the model: everything is accepted.
TEST(SelfDrafter, ADraftThatIsTheModelIsAlwaysRight) {
  const auto graph = test::random_decoder({.layers = 3});
  Rewriter rewriter(*graph);
  const LayerBoundaries found = find_layers(*graph);
  ASSERT_EQ(found.layers(), 3);
  // What layer 1 adds to the stream, by both of its products.
  int silenced = 0;
  for (const Node* node : graph->nodes()) {
    if (node->op() != "SkipSimplifiedLayerNormalization") continue;
    // Norms 0 and 1 end layer 0; 2 and 3 end layer 1.
    if (silenced++ / 2 != 1) continue;
    Value* weight = node->input(1)->producer()->input(1);
    rewriter.set_constant(weight, Tensor::zeros(DType::F32, weight->tensor()->shape()));
  }
  rewriter.commit();
  const auto program = compile_self_draft(*graph, {.layers = {0, 2}});
  Session session(program, {.threads = 1});
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(20, 97, 4)};
  GenerateOptions options{.max_new_tokens = 31};
  options.strategy = [&](Session& s, Sampler& sampler) {
    return std::make_unique<SpeculativeDecoding>(s, sampler,
                                                 std::make_unique<SelfDrafter>(s, sampler.options()),
                                                 PacingOptions{.adaptive = false, .most = 5});
  };
  const GenerateOutput output = generate(session, prompts, options);
  EXPECT_EQ(output.speculation->accepted, output.speculation->verified);
  EXPECT_EQ(output.speculation->rounds, 5);
}

TEST(SelfDrafter, RefusesLayersThatMakeNoDraft) {
  const auto graph = test::random_decoder({.layers = 3});
  for (const std::vector<int64_t>& layers :
       std::vector<std::vector<int64_t>>{{}, {0, 1, 2}, {1, 0}, {3}, {0, 0}}) {
    EXPECT_QUERN_ERROR(compile_self_draft(*graph, {.layers = layers}), ErrorCode::InvalidArgument, "layers");
  }
  EXPECT_QUERN_ERROR(compile_self_draft(*graph, {.layers = {0}, .exit_head = true}),
                     ErrorCode::InvalidArgument, "no exit head behind layer 1");
  EXPECT_QUERN_ERROR(compile_self_draft(*graph, {.layers = {1}, .exit_head = true}),
                     ErrorCode::InvalidArgument, "first 2 layers");
}

// Where there is no room for guesses in the cache, sequences stay as they were.
TEST(SelfDrafter, FailuresTakeGuessesBack) {
  const auto graph = test::random_decoder({.layers = 3});
  const auto program = compile_self_draft(*graph, {.layers = {0}});
  const int64_t block = [&] {
    Session session(program, {.threads = 1});
    Sequence sequence = session.new_sequence();
    session.run(sequence, random_tokens(1, 97, 1));
    return session.cache_bytes();
  }();
  Session session(program, {.threads = 1, .cache_memory = block});
  GenerationStream stream;
  stream.tokens = random_tokens(62, 97, 1);
  stream.sequence = session.new_sequence();
  session.run(stream.sequence, std::span(stream.tokens).first(61));
  stream.most_new = 10;
  Sampler sampler({});
  SpeculativeDecoding decoding(session, sampler, std::make_unique<SelfDrafter>(session, SamplingOptions{}),
                               {.adaptive = false, .most = 8});
  GenerationStream* streams[] = {&stream};
  EXPECT_QUERN_ERROR(decoding.advance(streams, {}), ErrorCode::OutOfMemory, "cache memory");
  EXPECT_EQ(stream.sequence.size(), 61);
  EXPECT_EQ(stream.tokens.size(), 62u);
}

}  // namespace
}  // namespace quern::runtime
