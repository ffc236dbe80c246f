// Medusa heads: what is guessed by them, and that it changes no token.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/decoder/hidden_states.h"
#include "runtime/generate/generate.h"
#include "runtime/speculate/medusa_drafter.h"
#include "runtime/speculate/medusa_heads.h"
#include "runtime/speculate/medusa_tree.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/runtime/speculate/statistics.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;

enum class Projection { Own, Shared, Mixed };

Tensor random_floats(Shape shape, float spread, std::mt19937& random) {
  std::normal_distribution<float> normal(0, spread);
  Tensor tensor = Tensor::zeros(DType::F32, std::move(shape));
  for (float& v : tensor.mutable_data<float>()) v = normal(random);
  return tensor;
}

// Adds heads with small random blocks: with the model's own projection they say much what it says itself.
void add_heads(Graph& graph, int64_t count, Projection projection) {
  const HiddenStates states = find_hidden_states(graph);
  const int64_t width = states.after_final_norm->shape().back().as_constant().value();
  const int64_t vocabulary = states.head->output()->shape().back().as_constant().value();
  std::mt19937 random(7);
  Rewriter rewriter(graph);
  const auto emit = [&](const std::string& op, const std::string& domain, std::vector<Value*> inputs) {
    return rewriter.add_node({.op = op, .domain = domain, .inputs = std::move(inputs)})->output();
  };
  const std::string quern(kQuernDomain);
  for (int64_t k = 0; k < count; ++k) {
    Value* weight = rewriter.add_constant(random_floats({width, width}, 0.1f, random), "block");
    Value* bias = rewriter.add_constant(random_floats({width}, 0.1f, random), "bias");
    Value* inner = emit("Swish", "", {emit("Linear", quern, {states.after_final_norm, weight, bias})});
    Value* x = emit("Add", "", {states.after_final_norm, inner});
    const bool own = projection == Projection::Own || (projection == Projection::Mixed && k == 1);
    Value* u = own ? rewriter.add_constant(random_floats({vocabulary, width}, 0.2f, random), "projection")
                   : states.head->input(1);
    rewriter.add_output(emit("Linear", quern, {x, u}), medusa_output(static_cast<size_t>(k)));
  }
  rewriter.commit();
}

const std::vector<std::vector<std::vector<int32_t>>> kTrees = {
    {{0}},
    {{0}, {0, 0}, {0, 0, 0}},
    {{0}, {1}, {2}, {5}, {0, 0}, {0, 3}, {1, 0}, {0, 0, 1}, {1, 0, 0}, {1, 0, 7}},
};

class MedusaTest : public testing::TestWithParam<std::tuple<test::NamedDecoder, Projection>> {
 protected:
  static constexpr size_t kPrompt = 20;

  MedusaTest() {
    const auto graph = test::random_decoder(std::get<0>(GetParam()).shape);
    add_heads(*graph, 3, std::get<1>(GetParam()));
    program_ = Program::compile(*graph, medusa_program(*graph));
    prompts_ = {random_tokens(kPrompt, 97, 1), random_tokens(kPrompt, 97, 2)};
  }

  GenerateOutput decode(GenerateOptions options, bool medusa, MedusaTree tree = {},
                        PacingOptions pacing = {}) {
    Session session(program_, {.threads = 1});
    if (medusa) {
      options.strategy = [&](Session& s, Sampler& sampler) {
        return std::make_unique<SpeculativeDecoding>(s, sampler, std::make_unique<MedusaDrafter>(s, tree),
                                                     pacing);
      };
    }
    return generate(session, prompts_, options);
  }
  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }

  std::shared_ptr<const Program> program_;
  Texts prompts_;
};

TEST_P(MedusaTest, TokensAreThoseOfPlainDecoding) {
  for (const bool sample : {false, true}) {
    GenerateOptions options{.max_new_tokens = 40};
    options.sampling = {.sample = sample, .temperature = 0.8f, .top_p = 0.95f, .seed = 5};
    const Texts plain = texts(decode(options, false));
    int64_t accepted = 0;
    for (const auto& paths : kTrees) {
      const MedusaTree tree{paths};
      const GenerateOutput output =
          decode(options, true, tree, {.adaptive = false, .most = static_cast<int64_t>(tree.size())});
      ASSERT_EQ(texts(output), plain) << "a tree of " << tree.size();
      const SpeculationStatistics& s = *output.speculation;
      EXPECT_LE(s.accepted, s.evaluated);
      EXPECT_LE(s.evaluated, s.verified);
      EXPECT_EQ(s.tokens, s.rounds + s.accepted);
      accepted += s.accepted;
    }
    for (const int64_t nodes : {1, 2, 5, 16}) {
      const GenerateOutput output = decode(options, true, {}, {.adaptive = false, .most = nodes});
      ASSERT_EQ(texts(output), plain) << nodes << " grown";
      accepted += output.speculation->accepted;
    }
    EXPECT_GT(accepted, 0);
    ASSERT_EQ(texts(decode(options, true)), plain);
    ASSERT_EQ(texts(decode(options, true, MedusaTree(kTrees[2]), {.most = 10})), plain);
  }
}

std::vector<test::NamedDecoder> variations() {
  std::vector<test::NamedDecoder> some;
  for (const auto& decoder : test::decoder_variations()) {
    for (const char* name :
         {"llama", "gpt2", "window_softcap", "weights_f16", "weights_i8", "weights_u8", "weights_i4"}) {
      if (decoder.name == name) some.push_back(decoder);
    }
  }
  return some;
}

std::string name_of(const testing::TestParamInfo<MedusaTest::ParamType>& info) {
  const Projection projection = std::get<1>(info.param);
  const char* name = projection == Projection::Own      ? "_own"
                     : projection == Projection::Shared ? "_shared"
                                                        : "_mixed";
  return std::get<0>(info.param).name + name;
}

INSTANTIATE_TEST_SUITE_P(All, MedusaTest,
                         testing::Combine(testing::ValuesIn(variations()),
                                          testing::Values(Projection::Own, Projection::Shared,
                                                          Projection::Mixed)),
                         name_of);

// Three tokens together have the distribution of plain sampling, by enumeration, where every round verifies a
// tree.
TEST(Medusa, SamplingHasTheModelsJointDistribution) {
  test::DecoderShape shape{.vocabulary = 4,
                           .layers = 1,
                           .width = 16,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_size = 8,
                           .ffn = 16,
                           .tied = false};
  const auto graph = test::random_decoder(shape, 1);
  add_heads(*graph, 2, Projection::Shared);
  const auto program = Program::compile(*graph, medusa_program(*graph));
  Session session(program, {.threads = 1});
  const SamplingOptions sampling{.sample = true, .temperature = 0.4f};
  Sampler sampler(sampling);
  const auto distribution = [&](std::vector<int64_t> text) {
    Sequence sequence = session.new_sequence();
    std::vector<double> row(4);
    for (const auto& token : sampler.distribution(session.run(sequence, text), text))
      row[static_cast<size_t>(token.id)] = token.probability;
    return row;
  };
  std::vector<double> wanted;
  const std::vector<double> first = distribution({1, 2, 3});
  for (int64_t a = 0; a < 4; ++a) {
    const std::vector<double> second = distribution({1, 2, 3, a});
    for (int64_t b = 0; b < 4; ++b) {
      const std::vector<double> third = distribution({1, 2, 3, a, b});
      for (int64_t c = 0; c < 4; ++c) {
        wanted.push_back(first[static_cast<size_t>(a)] * second[static_cast<size_t>(b)] *
                         third[static_cast<size_t>(c)]);
      }
    }
  }
  std::vector<int64_t> counts(64);
  const MedusaTree tree({{0}, {1}, {0, 0}, {0, 1}});
  // The first token comes from the prompt's own run, the others from rounds with a tree.
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const Texts prompts(5000, {1, 2, 3});
    GenerateOptions options{.max_new_tokens = 4, .sampling = sampling};
    options.sampling.seed = seed;
    options.strategy = [&](Session& s, Sampler& own) {
      return std::make_unique<SpeculativeDecoding>(s, own, std::make_unique<MedusaDrafter>(s, tree),
                                                   PacingOptions{.adaptive = false, .most = 4});
    };
    const GenerateOutput output = generate(session, prompts, options);
    for (const GenerateResult& result : output.results)
      ++counts[static_cast<size_t>((result.ids[0] * 4 + result.ids[1]) * 4 + result.ids[2])];
    EXPECT_GT(output.speculation->accepted, 0);
  }
  EXPECT_TRUE(test::fits(counts, wanted));
}

TEST(Medusa, HeadsThatShareTheProjectionSeeTheSameBits) {
  const auto graph = test::random_decoder({});
  add_heads(*graph, 2, Projection::Mixed);
  EXPECT_EQ(count_medusa_heads(*graph), 2);
  ProgramOptions options = medusa_program(*graph);
  EXPECT_NE(options.entries[kMedusaHeadsEntry][0], medusa_output(0));
  EXPECT_EQ(options.entries[kMedusaHeadsEntry][1], medusa_output(1));
  options.entries.push_back({medusa_output(0)});
  options.starts.push_back(options.starts[kMedusaHeadsEntry]);
  Session session(Program::compile(*graph, options), {.threads = 1});
  std::vector<float> row(48);
  std::iota(row.begin(), row.end(), -20.0f);
  session.run_rows(kMedusaHeadsEntry, row);
  const auto before = session.logits(0, 0, 0);
  const std::vector<float> inner(before.begin(), before.end());
  session.run_rows(kMedusaProjectionEntry, inner);
  const auto projected = session.logits(0);
  const std::vector<float> by_two(projected.begin(), projected.end());
  session.run_rows(3, row);
  const auto whole = session.logits(0);
  EXPECT_EQ(by_two, std::vector<float>(whole.begin(), whole.end()));
}

TEST(Medusa, RefusesWhatDoesNotFit) {
  const auto graph = test::random_decoder({});
  EXPECT_QUERN_ERROR(medusa_program(*graph), ErrorCode::InvalidArgument, "no Medusa heads");
  Session plain(Program::compile(*graph), {.threads = 1});
  EXPECT_QUERN_ERROR(MedusaDrafter(plain), ErrorCode::InvalidArgument, "not compiled with Medusa heads");
  add_heads(*graph, 1, Projection::Own);
  Session session(Program::compile(*graph, medusa_program(*graph)), {.threads = 1});
  EXPECT_QUERN_ERROR(MedusaDrafter(session, MedusaTree(kTrees[1])), ErrorCode::InvalidArgument,
                     "3 tokens deep", "1 Medusa heads");
}

TEST(MedusaTree, HasParentsBeforeChildren) {
  const MedusaTree tree({{0, 1}, {1}, {0}, {0, 1, 0}});
  ASSERT_EQ(tree.size(), 4u);
  EXPECT_EQ(tree.heads(), 3);
  EXPECT_EQ(tree.ranks(0), 2);
  const int32_t parents[] = {-1, -1, 0, 2}, ranks[] = {0, 1, 1, 0};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tree.nodes()[i].parent, parents[i]);
    EXPECT_EQ(tree.nodes()[i].rank, ranks[i]);
  }
}

TEST(MedusaTree, ReadsTheOriginalsChoices) {
  EXPECT_EQ(MedusaTree::parse("[[0], [0, 0], [1], [0, 1], [2]]").size(), 5u);
  EXPECT_EQ(MedusaTree::parse(R"({"paths": [[0]], "speedup": 1.2})").size(), 1u);
  for (const char* text : {"", "{}", "[0]", "[[0.5, \"a\"]]", "{\"paths\": 3}", "[[0]"})
    EXPECT_QUERN_ERROR(MedusaTree::parse(text), ErrorCode::BadData, "no tree");
  for (const char* text : {"[[0], [1.5]]", "[[0], [4294967296]]", "[0]", "[[true]]", "{\"paths\": 3}"})
    EXPECT_QUERN_ERROR(MedusaTree::parse(text), ErrorCode::BadData, "no tree");
  EXPECT_QUERN_ERROR(MedusaTree::parse("[[]]"), ErrorCode::InvalidArgument, "empty path");
  EXPECT_QUERN_ERROR(MedusaTree::parse("[[0], [1, 0]]"), ErrorCode::InvalidArgument, "[1, 0]", "before it");
  EXPECT_QUERN_ERROR(MedusaTree::parse("[[0], [0]]"), ErrorCode::InvalidArgument, "twice");
  EXPECT_QUERN_ERROR(MedusaTree::parse("[[-1]]"), ErrorCode::InvalidArgument, "rank");
  EXPECT_QUERN_ERROR(MedusaTree::parse("[[64]]"), ErrorCode::InvalidArgument, "rank");
}

// Against all trees of a small size.
TEST(MedusaTree, TheBestIsTheBest) {
  const std::vector<std::vector<double>> accuracies = {{0.5, 0.2, 0.05}, {0.4, 0.3}, {0.35}};
  std::vector<std::vector<int32_t>> all;
  for (int32_t a = 0; a < 3; ++a) {
    all.push_back({a});
    for (int32_t b = 0; b < 2; ++b) {
      all.push_back({a, b});
      all.push_back({a, b, 0});
    }
  }
  for (size_t nodes = 1; nodes <= all.size(); ++nodes) {
    double best = 0;
    for (uint32_t set = 0; set < (1u << all.size()); ++set) {
      if (static_cast<size_t>(__builtin_popcount(set)) != nodes) continue;
      std::vector<std::vector<int32_t>> paths;
      for (size_t i = 0; i < all.size(); ++i) {
        if ((set >> i & 1) != 0) paths.push_back(all[i]);
      }
      try {
        best = std::max(best, expected_tokens(MedusaTree(paths), accuracies));
      } catch (const Error&) {  // a parent is missing
      }
    }
    const MedusaTree tree = best_medusa_tree(accuracies, nodes);
    EXPECT_EQ(tree.size(), nodes);
    EXPECT_NEAR(expected_tokens(tree, accuracies), best, 1e-12) << nodes;
  }
  EXPECT_EQ(best_medusa_tree({{0.5, 0}, {0}}, 10).size(), 1u);
}

// --- typical acceptance ---

class TypicalTest : public testing::Test {
 protected:
  // A tree of two levels, tokens 0 and 1 at each.
  TypicalTest() {
    for (const int64_t token : {0, 1}) proposal_.add(token, -1, 0);
    for (const int32_t parent : {0, 1}) {
      for (const int64_t token : {0, 1}) proposal_.add(token, parent, 0);
    }
  }
  const Verdict& judge(const std::vector<std::vector<float>>& logits, TypicalAcceptance rule = {}) {
    Verifier verifier(sampler_, rule);
    history_ = {2};
    RandomStream random;
    verdict_ = verifier.judge(
        proposal_, [&](int32_t node) { return std::span(logits[static_cast<size_t>(node + 1)]); }, history_,
        random);
    return verdict_;
  }

  Sampler sampler_{SamplingOptions{}};
  Proposal proposal_;
  std::vector<int64_t> history_;
  Verdict verdict_;
};

TEST_F(TypicalTest, TheLongestPathOfTypicalTokensStands) {
  const float never = -30;
  // Behind the text both 0 and 1 are typical; behind 0 only 2, which nobody guessed, behind 1 token 0.
  std::vector<std::vector<float>> logits(7, {0, 0, 0});
  logits[0] = {1, 0.9f, never};
  logits[1] = {never, never, 0};
  logits[2] = {0, never, never};
  const Verdict& verdict = judge(logits);
  EXPECT_EQ(verdict.path, (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(verdict.tokens, (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(history_, (std::vector<int64_t>{2, 1, 0, 0}));
}

TEST_F(TypicalTest, OfEquallyLongOnesTheMoreProbable) {
  std::vector<std::vector<float>> logits(7, {0, 0, 30});
  logits[0] = {0.5f, 1, 0};
  EXPECT_EQ(judge(logits).path, std::vector<int32_t>{1});
  logits[0] = {1, 0.5f, 0};
  EXPECT_EQ(judge(logits).path, std::vector<int32_t>{0});
  // Above the threshold min(epsilon, delta exp(-H)), not at it.
  logits[0] = {0, 0, 0};
  EXPECT_EQ(judge(logits, {.epsilon = 0.5, .delta = 0.9}).path.size(), 1u);
  EXPECT_TRUE(judge(logits, {.epsilon = 0.5, .delta = 1.01}).path.empty());
}

}  // namespace
}  // namespace quern::runtime
