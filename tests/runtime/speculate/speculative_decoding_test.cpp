// Speculation changes how fast tokens come, never which: against plain decoding, at every precision.
#include "runtime/speculate/speculative_decoding.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/generate/generate.h"
#include "runtime/speculate/model_drafter.h"
#include "runtime/speculate/ngram_drafter.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/runtime/speculate/statistics.h"

namespace quern::runtime {
namespace {

using test::random_tokens;
using Prompts = std::vector<std::vector<int64_t>>;
using Texts = std::vector<std::vector<int64_t>>;
using MakeDrafter = std::function<std::unique_ptr<Drafter>(Session&, Sampler&)>;

// Proposes what plain decoding is known to give, with mistakes here and there; as a tree also with rivals.
class KnowingDrafter final : public Drafter {
 public:
  KnowingDrafter(const Texts& texts, size_t prompt_size, bool tree)
      : texts_(texts), prompt_size_(prompt_size), tree_(tree) {}
  std::string_view name() const override { return "knowing"; }
  int classes() const override { return 1; }
  void propose(std::span<GenerationStream* const> streams, std::span<const int64_t> limits, Pacing& pacing,
               std::span<Proposal> proposals) override {
    for (size_t s = 0; s < streams.size(); ++s) {
      const std::vector<int64_t>& text = texts_[streams[s]->prompt];
      const size_t done = streams[s]->tokens.size() - prompt_size_;
      Proposal& proposal = proposals[s];
      int32_t parent = -1;
      for (int64_t depth = 0; depth < limits[s]; ++depth) {
        const size_t at = done + static_cast<size_t>(depth);
        int64_t token = at < text.size() ? text[at] : 0;
        if (random_() % 5 == 0) token = (token + 1) % 97;
        if (tree_ && random_() % 2 == 0 && static_cast<int64_t>(proposal.size()) + 2 < 2 * pacing.most()) {
          proposal.add((token + 1) % 97, parent, 0);
          proposal.add(5, static_cast<int32_t>(proposal.size()) - 1, 0);
        }
        proposal.add(token, parent, 0);
        parent = static_cast<int32_t>(proposal.size()) - 1;
      }
    }
  }

 private:
  const Texts& texts_;
  size_t prompt_size_;
  bool tree_;
  std::mt19937 random_{3};
};

class SpeculativeDecodingTest : public testing::TestWithParam<test::NamedDecoder> {
 protected:
  static constexpr size_t kPrompt = 30;

  SpeculativeDecodingTest()
      : program_(Program::compile(*test::random_decoder(GetParam().shape))),
        draft_(Program::compile(*test::random_decoder({.layers = 1, .width = 16, .heads = 2, .ffn = 32}, 9))),
        session_(program_, {.threads = 1}) {
    // The second one repeats itself.
    prompts_ = {random_tokens(kPrompt, 97, 1), random_tokens(kPrompt, 97, 2), random_tokens(kPrompt, 97, 3)};
    for (size_t i = 6; i < kPrompt; ++i) prompts_[1][i] = prompts_[1][i - 6];
  }

  GenerateOutput decode(GenerateOptions options, const MakeDrafter& drafter = {}, PacingOptions pacing = {}) {
    if (drafter) {
      options.strategy = [&, pacing](Session& session, Sampler& sampler) {
        return std::make_unique<SpeculativeDecoding>(session, sampler, drafter(session, sampler), pacing);
      };
    }
    return generate(session_, prompts_, options);
  }
  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }
  MakeDrafter model_drafter(std::shared_ptr<const Program> program, DraftRule rule = DraftRule::Shared) {
    return [program, rule](Session& session, Sampler& sampler) {
      ModelDrafterOptions options{.sampling = sampler.options(), .rule = rule, .vocabulary = 97};
      options.session.team = session.team();
      return std::make_unique<ModelDrafter>(program, options);
    };
  }
  static MakeDrafter ngram() {
    return [](Session&, Sampler&) { return std::make_unique<NgramDrafter>(); };
  }
  static void expect_consistent(const SpeculationStatistics& s) {
    EXPECT_LE(s.accepted, s.evaluated);
    EXPECT_LE(s.evaluated, s.verified);
    EXPECT_LE(s.verified, s.proposed);
    EXPECT_EQ(s.tokens, s.rounds + s.accepted);
  }

  std::shared_ptr<const Program> program_, draft_;
  Session session_;
  Prompts prompts_;
};

TEST_P(SpeculativeDecodingTest, GreedyTokensAreThoseOfPlainDecoding) {
  const GenerateOptions options{.max_new_tokens = 40};
  const Texts plain = texts(decode(options));
  for (int64_t length = 1; length <= 16; ++length) {
    const PacingOptions fixed{.adaptive = false, .most = length};
    for (const bool tree : {false, true}) {
      const GenerateOutput output = decode(
          options, [&](Session&, Sampler&) { return std::make_unique<KnowingDrafter>(plain, kPrompt, tree); },
          fixed);
      ASSERT_EQ(texts(output), plain) << (tree ? "tree" : "chain") << " of " << length;
      expect_consistent(*output.speculation);
      EXPECT_GT(output.speculation->accepted, 20);
      EXPECT_LT(output.speculation->accepted, output.speculation->evaluated);
    }
    ASSERT_EQ(texts(decode(options, ngram(), fixed)), plain) << length;
    ASSERT_EQ(texts(decode(options, model_drafter(draft_), fixed)), plain) << length;
  }
  ASSERT_EQ(texts(decode(options, ngram())), plain);
  ASSERT_EQ(texts(decode(options, model_drafter(draft_))), plain);
}

TEST_P(SpeculativeDecodingTest, SampledTextsAreThoseOfPlainSamplingWithTheSameSeed) {
  GenerateOptions options{.max_new_tokens = 30};
  options.sampling = {.sample = true,
                      .temperature = 0.7f,
                      .top_k = 40,
                      .top_p = 0.95f,
                      .repetition_penalty = 1.1f,
                      .seed = 5};
  const Texts plain = texts(decode(options));
  for (const int64_t length : {1, 3, 8}) {
    const PacingOptions fixed{.adaptive = false, .most = length};
    for (const bool tree : {false, true}) {
      const GenerateOutput output = decode(
          options, [&](Session&, Sampler&) { return std::make_unique<KnowingDrafter>(plain, kPrompt, tree); },
          fixed);
      ASSERT_EQ(texts(output), plain) << (tree ? "tree" : "chain") << " of " << length;
      EXPECT_GT(output.speculation->accepted, 10);
    }
    ASSERT_EQ(texts(decode(options, ngram(), fixed)), plain) << length;
    ASSERT_EQ(texts(decode(options, model_drafter(draft_), fixed)), plain) << length;
  }
}

// A model that drafts for itself is always right: its cache holds what it should after every rejection.
TEST_P(SpeculativeDecodingTest, TheModelAsItsOwnDraft) {
  // Where frequencies change with the length, runs are kept from crossing it.
  if (GetParam().shape.original_context > 0) GTEST_SKIP();
  GenerateOptions options{.max_new_tokens = 31};
  const PacingOptions fixed{.adaptive = false, .most = 5};
  for (const bool sample : {false, true}) {
    options.sampling.sample = sample;
    const GenerateOutput output = decode(options, model_drafter(program_), fixed);
    EXPECT_EQ(output.speculation->accepted, output.speculation->verified);
    EXPECT_EQ(output.speculation->rounds, 3 * 5);
  }
}

// Wherever a text ends, within an accepted run or not, it ends as it would.
TEST_P(SpeculativeDecodingTest, EndsWhereItShould) {
  class Words final : public TextDecoder {
   public:
    std::string push(int64_t id) override { return "<" + std::to_string(id) + ">"; }
    std::string finish() override { return "."; }
  };
  GenerateOptions options{.max_new_tokens = 40, .decoder = [] { return std::make_unique<Words>(); }};
  const Texts plain = texts(decode(options));
  const PacingOptions fixed{.adaptive = false, .most = 8};
  const MakeDrafter knowing = [&](Session&, Sampler&) {
    return std::make_unique<KnowingDrafter>(plain, kPrompt, false);
  };
  const auto same = [&](const GenerateOptions& changed, const std::string& what) {
    const GenerateOutput a = decode(changed), b = decode(changed, knowing, fixed);
    for (size_t i = 0; i < a.results.size(); ++i) {
      EXPECT_EQ(a.results[i].ids, b.results[i].ids) << what;
      EXPECT_EQ(a.results[i].text, b.results[i].text) << what;
      EXPECT_EQ(a.results[i].finish, b.results[i].finish) << what;
      EXPECT_EQ(a.results[i].stop, b.results[i].stop) << what;
    }
  };
  for (size_t at = 0; at < 40; at += 3) {
    GenerateOptions changed = options;
    changed.max_new_tokens = static_cast<int64_t>(at) + 1;
    same(changed, "length " + std::to_string(at + 1));
    changed = options;
    changed.end_ids = {plain[0][at]};
    same(changed, "end token at " + std::to_string(at));
    changed = options;
    changed.stop = {std::to_string(plain[1][at]) + "><"};
    same(changed, "stop string at " + std::to_string(at));
  }
}

std::vector<test::NamedDecoder> variations() {
  std::vector<test::NamedDecoder> some;
  for (const auto& decoder : test::decoder_variations()) {
    for (const char* name : {"llama", "gpt2", "window_softcap", "alibi", "long_frequencies", "weights_f16",
                             "weights_bf16", "weights_i8", "weights_u8", "weights_i4"}) {
      if (decoder.name == name) some.push_back(decoder);
    }
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(All, SpeculativeDecodingTest, testing::ValuesIn(variations()),
                         [](const auto& info) { return info.param.name; });

TEST(SpeculativeDecoding, EndsWithTheContext) {
  const auto program = Program::compile(*test::random_decoder({}));
  Session session(program, {.threads = 1, .context = 40});
  const Prompts prompts = {random_tokens(30, 97, 1)};
  GenerateOptions options{.max_new_tokens = 100};
  const GenerateOutput plain = generate(session, prompts, options);
  for (int64_t length = 1; length <= 16; ++length) {
    options.strategy = [&](Session& s, Sampler& sampler) {
      return std::make_unique<SpeculativeDecoding>(
          s, sampler,
          std::make_unique<ModelDrafter>(program,
                                         ModelDrafterOptions{.session = {.threads = 1}, .vocabulary = 97}),
          PacingOptions{.adaptive = false, .most = length});
    };
    const GenerateOutput output = generate(session, prompts, options);
    EXPECT_EQ(output.results[0].ids, plain.results[0].ids);
    EXPECT_EQ(output.results[0].finish, FinishReason::Context);
  }
}

// The rejection rule through real models: two tokens together have the distribution that plain sampling has.
TEST(SpeculativeDecoding, RejectionSamplingHasTheDistributionOfPlainSampling) {
  test::DecoderShape shape{.vocabulary = 5,
                           .layers = 1,
                           .width = 16,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_size = 8,
                           .ffn = 16,
                           .tied = false};
  const auto program = Program::compile(*test::random_decoder(shape, 1));
  const auto draft = Program::compile(*test::random_decoder(shape, 2));
  Session session(program, {.threads = 1});
  const std::vector<int64_t> prompt = {1, 2, 3};
  // What plain sampling gives, by enumeration.
  const SamplingOptions sampling{.sample = true, .temperature = 0.4f};
  Sampler sampler(sampling);
  const auto distribution = [&](std::vector<int64_t> text) {
    Sequence sequence = session.new_sequence();
    std::vector<double> row(5);
    for (const auto& token : sampler.distribution(session.run(sequence, text), text))
      row[static_cast<size_t>(token.id)] = token.probability;
    return row;
  };
  std::vector<double> wanted;
  const std::vector<double> first = distribution(prompt);
  for (int64_t a = 0; a < 5; ++a) {
    const std::vector<double> second = distribution({1, 2, 3, a});
    for (int64_t b = 0; b < 5; ++b) {
      const std::vector<double> third = distribution({1, 2, 3, a, b});
      for (int64_t c = 0; c < 5; ++c) {
        wanted.push_back(first[static_cast<size_t>(a)] * second[static_cast<size_t>(b)] *
                         third[static_cast<size_t>(c)]);
      }
    }
  }
  std::vector<int64_t> counts(125);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Prompts prompts(2000, prompt);
    GenerateOptions options{.max_new_tokens = 3, .sampling = sampling};
    options.sampling.seed = seed;
    options.strategy = [&](Session& s, Sampler& own) {
      return std::make_unique<SpeculativeDecoding>(
          s, own,
          std::make_unique<ModelDrafter>(draft, ModelDrafterOptions{.session = {.threads = 1},
                                                                    .sampling = own.options(),
                                                                    .rule = DraftRule::Rejection}),
          PacingOptions{.adaptive = false, .most = 2});
    };
    const GenerateOutput output = generate(session, prompts, options);
    for (const GenerateResult& result : output.results) {
      ++counts[static_cast<size_t>((result.ids[0] * 5 + result.ids[1]) * 5 + result.ids[2])];
    }
    EXPECT_GT(output.speculation->accepted, 0);
    EXPECT_LT(output.speculation->accepted, output.speculation->evaluated);
  }
  EXPECT_TRUE(test::fits(counts, wanted));
}

// --- prompt lookup ---

class NgramDrafterTest : public testing::Test {
 protected:
  Proposal propose(std::vector<int64_t> tokens, int64_t limit) {
    GenerationStream stream;
    stream.prompt = prompt_++;
    stream.tokens = std::move(tokens);
    return propose(stream, limit);
  }
  Proposal propose(GenerationStream& stream, int64_t limit) {
    GenerationStream* streams[] = {&stream};
    std::vector<Proposal> proposals(1);
    Pacing pacing({.adaptive = false}, drafter_.classes());
    drafter_.propose(streams, std::span(&limit, 1), pacing, proposals);
    return proposals.front();
  }
  NgramDrafter drafter_;
  size_t prompt_ = 0;
};

TEST_F(NgramDrafterTest, TheLongestMatchCounts) {
  // "2 3" occurs twice before; "1 2 3" once, earlier.
  const Proposal proposal = propose({1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3}, 4);
  EXPECT_EQ(proposal.tokens, (std::vector<int64_t>{4, 5, 9, 2}));
  EXPECT_EQ(proposal.classes, (std::vector<int32_t>{2, 3, 4, 5}));
  EXPECT_TRUE(proposal.is_chain());
}

TEST_F(NgramDrafterTest, OfEqualMatchesTheLatest) {
  EXPECT_EQ(propose({3, 4, 3, 5, 6, 3}, 1).tokens, std::vector<int64_t>{5});
}

TEST_F(NgramDrafterTest, RepetitionsGoOn) {
  EXPECT_EQ(propose({1, 2, 3, 1, 2, 3, 1}, 7).tokens, (std::vector<int64_t>{2, 3, 1, 2, 3, 1, 2}));
  EXPECT_EQ(propose({7, 7}, 3).tokens, (std::vector<int64_t>{7, 7, 7}));
}

TEST_F(NgramDrafterTest, NothingFromNothing) {
  EXPECT_TRUE(propose({1, 2, 3}, 5).empty());
  EXPECT_TRUE(propose({1}, 5).empty());
  EXPECT_TRUE(propose({1, 1}, 0).empty());
}

TEST_F(NgramDrafterTest, FollowsTheTextAsItGrows) {
  GenerationStream stream;
  stream.prompt = 100000;
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    stream.tokens.push_back(static_cast<int64_t>(random() % 6));
    // The same as a drafter that sees the text for the first time.
    EXPECT_EQ(propose(stream, 4).tokens, propose(stream.tokens, 4).tokens);
  }
}

}  // namespace
}  // namespace quern::runtime
