// Texts longer than the context.
#include "runtime/generate/context_shift.h"

#include <gtest/gtest.h>

#include "runtime/decoder/remove_tokens.h"
#include "runtime/generate/generate.h"
#include "runtime/prefix/prefix_cache.h"
#include "runtime/speculate/model_drafter.h"
#include "runtime/speculate/ngram_drafter.h"
#include "runtime/speculate/self_drafter.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_decoder;
using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;

constexpr int64_t kContext = 50, kKeep = 4;

struct Case {
  std::string name;
  test::DecoderShape shape;
  DType cache = DType::F32;
  ShiftWay way;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class ContextShiftTest : public testing::TestWithParam<Case> {
 protected:
  ContextShiftTest()
      : graph_(random_decoder(GetParam().shape)),
        program_(Program::compile(*graph_)),
        session_(program_, {.threads = 1, .cache_dtype = GetParam().cache, .context = kContext}) {
    for (unsigned i = 0; i < 4; ++i) prompts_.push_back(random_tokens(3 + 14 * i, 97, i));
    prompts_.push_back(random_tokens(kContext, 97, 8));
    prompts_.push_back(random_tokens(3 * kContext, 97, 9));
  }

  // Token by token: whenever the sequence is full, (context - keep) / 2 tokens go.
  std::vector<int64_t> by_hand(const std::vector<int64_t>& prompt, int64_t count) {
    Sequence sequence = session_.new_sequence();
    std::vector<int64_t> text = prompt, found;  // what is seen; what was generated
    size_t next = 0;                            // token to be computed
    while (true) {
      if (sequence.size() == kContext) {
        const int64_t gone = (kContext - kKeep) / 2;
        text.erase(text.begin() + kKeep, text.begin() + kKeep + gone);
        next -= static_cast<size_t>(gone);
        if (GetParam().way == ShiftWay::Move) {
          EXPECT_TRUE(remove_tokens(session_, sequence, kKeep, gone));
        } else {
          sequence = session_.new_sequence();
          session_.run(sequence, std::span(text).first(next));
        }
      }
      const auto logits = session_.run(sequence, std::span(text).subspan(next++, 1));
      if (next < text.size()) continue;
      found.push_back(argmax(logits));
      if (static_cast<int64_t>(found.size()) == count) return found;
      text.push_back(found.back());
    }
  }

  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }

  std::unique_ptr<Graph> graph_;
  std::shared_ptr<const Program> program_;
  Session session_;
  Texts prompts_;
};

TEST_P(ContextShiftTest, GoesOnAsByHand) {
  constexpr int64_t kCount = 120;
  Texts wanted;
  for (const auto& prompt : prompts_) wanted.push_back(by_hand(prompt, kCount));
  EXPECT_EQ(ContextShift(session_, kKeep).way(), GetParam().way);
  for (const int64_t parallel : {0, 1, 3}) {
    for (const int64_t chunk : {0, 7}) {
      for (const bool cached : {false, true}) {
        PrefixCache cache(session_);
        const GenerateOutput output = generate(session_, prompts_,
                                               {.max_new_tokens = kCount,
                                                .prefill_chunk = chunk,
                                                .parallel = parallel,
                                                .shift_keep = kKeep,
                                                .prefix_cache = cached ? &cache : nullptr});
        ASSERT_EQ(texts(output), wanted)
            << parallel << " at once, chunks of " << chunk << (cached ? ", cached" : "");
        int64_t shifts = 0;
        for (const GenerateResult& result : output.results) {
          EXPECT_EQ(result.finish, FinishReason::Length);
          shifts += result.context_shifts;
        }
        EXPECT_EQ(output.timing.context_shifts, shifts);
        // (tokens computed - context) / 23, rounded up.
        EXPECT_EQ(output.results[0].context_shifts, 4);
        EXPECT_EQ(output.results[4].context_shifts, 6);
        EXPECT_EQ(output.results[5].context_shifts, 10);
      }
    }
  }
  EXPECT_EQ(session_.cache_bytes(), 0);
}

TEST_P(ContextShiftTest, GuessesChangeNothing) {
  constexpr int64_t kCount = 120;
  const Texts wanted = texts(generate(session_, prompts_, {.max_new_tokens = kCount, .shift_keep = kKeep}));
  const PacingOptions always{.adaptive = false, .most = 5};
  const auto draft = Program::compile(*random_decoder({.layers = 1}, 3));
  const auto self = compile_self_draft(*graph_, {.layers = {0}});
  Session self_session(self, {.threads = 1, .cache_dtype = GetParam().cache, .context = kContext});
  const std::vector<std::function<std::unique_ptr<Drafter>(Session&, Sampler&)>> drafters = {
      [](Session&, Sampler&) { return std::make_unique<NgramDrafter>(); },
      [&](Session&, Sampler& sampler) {
        return std::make_unique<ModelDrafter>(
            draft,
            ModelDrafterOptions{.session = {.threads = 1}, .sampling = sampler.options(), .vocabulary = 97});
      },
      [](Session& session, Sampler& sampler) {
        return std::make_unique<SelfDrafter>(session, sampler.options(), DraftRule::Shared);
      }};
  for (size_t d = 0; d < drafters.size(); ++d) {
    for (const int64_t parallel : {1, 3}) {
      GenerateOptions options{.max_new_tokens = kCount, .parallel = parallel, .shift_keep = kKeep};
      options.strategy = [&](Session& session, Sampler& sampler) {
        return std::make_unique<SpeculativeDecoding>(session, sampler, drafters[d](session, sampler), always);
      };
      const GenerateOutput output = generate(d == 2 ? self_session : session_, prompts_, options);
      EXPECT_EQ(texts(output), wanted) << "drafter " << d << ", " << parallel << " at once";
      EXPECT_GT(output.speculation->verified, 50);
    }
  }
}

TEST_P(ContextShiftTest, SamplesTheSameTextAgain) {
  GenerateOptions options{.max_new_tokens = 120, .parallel = 1, .shift_keep = kKeep};
  options.sampling = {.sample = true, .repetition_penalty = 1.1, .seed = 4};
  const Texts one = texts(generate(session_, prompts_, options));
  options.parallel = 4;
  EXPECT_EQ(texts(generate(session_, prompts_, options)), one);
}

// A text that waited for memory is computed from its first token on, and shifted again at the same places.
TEST_P(ContextShiftTest, TextsThatDoNotFitTogetherTakeTurns) {
  SessionOptions settings{.threads = 1, .cache_dtype = GetParam().cache, .context = 150};
  int64_t shifts = 0;
  for (const auto& prompt : prompts_) {
    const auto computed = static_cast<int64_t>(prompt.size()) + 399;
    shifts += (computed - 150 + 72) / 73;
  }
  Session session(program_, settings);
  GenerateOptions options{.max_new_tokens = 400, .parallel = 1, .shift_keep = kKeep};
  const Texts wanted = texts(generate(session, prompts_, options));
  // Of the three blocks of a full sequence five, for two or more.
  settings.cache_memory = session.peak_cache_bytes() * 5 / 3;
  Session small(program_, settings);
  for (const int64_t parallel : {1, 2, 6}) {
    options.parallel = parallel;
    const GenerateOutput output = generate(small, prompts_, options);
    EXPECT_EQ(texts(output), wanted) << parallel;
    EXPECT_EQ(output.timing.put_back > 0, parallel > 1) << parallel;
    EXPECT_EQ(output.timing.context_shifts, shifts) << parallel;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const std::string& name, const std::string& shape, DType cache, ShiftWay way) {
    for (const auto& decoder : test::decoder_variations()) {
      if (decoder.name == shape) all.push_back({name, decoder.shape, cache, way});
    }
  };
  add("llama", "llama", DType::F32, ShiftWay::Move);
  add("alibi_i8", "alibi", DType::I8, ShiftWay::Move);
  add("window", "window_softcap", DType::F16, ShiftWay::Move);
  add("gpt2", "gpt2", DType::F32, ShiftWay::Recompute);
  add("cache_i8", "llama", DType::I8, ShiftWay::Recompute);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ContextShiftTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(ContextShift, KeepsSomethingToGiveUp) {
  Session session(Program::compile(*random_decoder({})), {.threads = 1, .context = 20});
  const Texts prompts = {random_tokens(5, 97, 1)};
  for (const int64_t keep : {-1, 19, 20, 1000}) {
    EXPECT_QUERN_ERROR(generate(session, prompts, {.shift_keep = keep}), ErrorCode::InvalidArgument,
                       "context of 20", "18");
  }
  for (const int64_t keep : {0, 17, 18}) {
    EXPECT_EQ(generate(session, prompts, {.max_new_tokens = 60, .shift_keep = keep}).results[0].ids.size(),
              60U);
  }
  // Without a context there is nothing to do.
  Session endless(Program::compile(*random_decoder({})), {.threads = 1});
  const GenerateOutput output = generate(endless, prompts, {.max_new_tokens = 60, .shift_keep = 4});
  EXPECT_EQ(output.results[0].ids, generate(endless, prompts, {.max_new_tokens = 60}).results[0].ids);
  EXPECT_EQ(output.timing.context_shifts, 0);
}

// What was computed with more in sight is nothing that others could begin with.
TEST(ContextShift, ShiftedTextsAreNotKept) {
  Session session(Program::compile(*random_decoder({})), {.threads = 1, .context = 50});
  PrefixCache cache(session);
  const Texts prompts = {random_tokens(20, 97, 1), random_tokens(80, 97, 2)};
  const GenerateOutput output =
      generate(session, prompts, {.max_new_tokens = 60, .shift_keep = 4, .prefix_cache = &cache});
  EXPECT_EQ(output.timing.context_shifts, 2 + 4);
  EXPECT_EQ(cache.size(), 1);
  EXPECT_EQ(cache.take(prompts[0]).size(), 19);
  EXPECT_EQ(cache.take(prompts[1]).size(), 0);
}

}  // namespace
}  // namespace quern::runtime
