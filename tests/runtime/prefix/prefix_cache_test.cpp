// Kept prefixes change when the first token comes, never which.
#include "runtime/prefix/prefix_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runtime/generate/generate.h"
#include "runtime/speculate/ngram_drafter.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;

class PrefixCacheTest : public testing::Test {
 protected:
  explicit PrefixCacheTest(test::DecoderShape shape = {})
      : program_(Program::compile(*test::random_decoder(shape))),
        session_(program_, {.threads = 1}),
        fresh_(program_, {.threads = 1}) {}

  // Decodes a text into the cache.
  void keep(PrefixCache& cache, const std::vector<int64_t>& text) {
    Sequence sequence = cache.take(text);
    session_.run(sequence, std::span(text).subspan(static_cast<size_t>(sequence.size())));
    cache.keep(sequence, sequence.size());
  }
  // Goes on from what the cache knows, and compares with a fresh prefill.
  testing::AssertionResult is_like_fresh(PrefixCache& cache, const std::vector<int64_t>& text,
                                         int64_t known) {
    Sequence sequence = cache.take(text);
    if (sequence.size() != known)
      return testing::AssertionFailure() << sequence.size() << " tokens known, not " << known;
    const auto got = session_.run(sequence, std::span(text).subspan(static_cast<size_t>(known)));
    Sequence other = fresh_.new_sequence();
    const auto wanted = fresh_.run(other, text);
    if (std::memcmp(got.data(), wanted.data(), got.size_bytes()) != 0)
      return testing::AssertionFailure() << "other logits than a fresh prefill";
    return testing::AssertionSuccess();
  }

  std::shared_ptr<const Program> program_;
  Session session_, fresh_;
};

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(PrefixCacheTest, FindsTheLongestCommonBeginning) {
  PrefixCache cache(session_);
  const std::vector<int64_t> system = random_tokens(150, 97, 1);
  const std::vector<int64_t> a = joined(system, random_tokens(40, 97, 2)),
                             b = joined(system, random_tokens(200, 97, 3));
  EXPECT_TRUE(is_like_fresh(cache, a, 0));
  keep(cache, a);
  keep(cache, b);
  EXPECT_EQ(cache.size(), 2);
  std::vector<int64_t> other = system;
  other.push_back((a[150] + 1) % 97 == b[150] ? (a[150] + 2) % 97 : (a[150] + 1) % 97);
  EXPECT_TRUE(is_like_fresh(cache, other, 150));
  // All of it but the last token, whose logits are wanted.
  EXPECT_TRUE(is_like_fresh(cache, a, 189));
  EXPECT_TRUE(is_like_fresh(cache, joined(a, {5, 6}), 190));
  EXPECT_TRUE(is_like_fresh(cache, std::vector<int64_t>(b.begin(), b.begin() + 260), 259));
  EXPECT_TRUE(is_like_fresh(cache, std::vector<int64_t>(system.begin(), system.begin() + 10), 9));
  EXPECT_TRUE(is_like_fresh(cache, {(system[0] + 1) % 97, 3}, 0));
  const PrefixCacheStatistics& s = cache.statistics();
  EXPECT_EQ(s.hits, 6);  // with that of keep(b)
  EXPECT_EQ(s.hit_tokens, 150 + 150 + 189 + 190 + 259 + 9);
}

TEST_F(PrefixCacheTest, ALongerTextReplacesItsBeginning) {
  PrefixCache cache(session_);
  const std::vector<int64_t> text = random_tokens(200, 97, 1);
  for (const int64_t size : {50, 64, 100, 128, 200, 128}) {
    keep(cache, std::vector<int64_t>(text.begin(), text.begin() + size));
    EXPECT_EQ(cache.size(), 1) << size;
  }
  EXPECT_TRUE(is_like_fresh(cache, text, 199));
}

TEST_F(PrefixCacheTest, RandomTextsOfFewTokensAreFound) {
  PrefixCache cache(session_, {.memory = 40 * 64 * 2 * 2 * (12 + 12) * 4});
  std::mt19937 random(3);
  Texts known;
  for (int i = 0; i < 120; ++i) {
    // Begins like an earlier one, and goes on otherwise.
    std::vector<int64_t> text;
    if (!known.empty()) {
      const auto& before = known[random() % known.size()];
      text.assign(before.begin(), before.begin() + static_cast<int64_t>(random() % before.size()));
    }
    text = joined(text, random_tokens(1 + static_cast<int64_t>(random() % 90), 97, random()));
    if (text.size() > 300) continue;
    Sequence sequence = cache.take(text);
    EXPECT_TRUE(std::equal(sequence.tokens().begin(), sequence.tokens().end(), text.begin()));
    EXPECT_TRUE(is_like_fresh(cache, text, sequence.size()));
    keep(cache, text);
    known.push_back(text);
    EXPECT_LE(cache.bytes(), 40 * 64 * 2 * 2 * (12 + 12) * 4);
  }
  EXPECT_GT(cache.statistics().evicted, 0);
  EXPECT_GT(cache.statistics().hit_tokens, 1000);
  cache.clear();
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_EQ(session_.cache_bytes(), 0);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirst) {
  PrefixCache cache(session_);
  const Texts texts = {random_tokens(70, 97, 1), random_tokens(70, 97, 2), random_tokens(70, 97, 3)};
  for (const auto& text : texts) keep(cache, text);
  cache.take(texts[0]);
  EXPECT_TRUE(cache.evict());
  EXPECT_EQ(cache.take(texts[1]).size(), 0);
  EXPECT_EQ(cache.take(texts[0]).size(), 69);
  EXPECT_EQ(cache.take(texts[2]).size(), 69);
  EXPECT_TRUE(cache.evict());
  EXPECT_TRUE(cache.evict());
  EXPECT_FALSE(cache.evict());
}

TEST_F(PrefixCacheTest, AgeEndsWhatIsNotUsed) {
  double now = 0;
  PrefixCache cache(session_, {.lifetime = 10, .clock = [&] { return now; }});
  const std::vector<int64_t> a = random_tokens(70, 97, 1), b = random_tokens(70, 97, 2);
  keep(cache, a);
  now = 6;
  keep(cache, b);
  now = 9;
  EXPECT_EQ(cache.take(a).size(), 69);
  now = 17;
  EXPECT_EQ(cache.take(b).size(), 0);
  EXPECT_EQ(cache.take(a).size(), 69);
  EXPECT_EQ(cache.statistics().expired, 1);
}

class WindowedPrefixCacheTest : public PrefixCacheTest {
 protected:
  WindowedPrefixCacheTest() : PrefixCacheTest({.layers = 1, .window = 20}) {}
};

// What the window has passed can't be gone back to; what it has not, can.
TEST_F(WindowedPrefixCacheTest, OnlyWhatTheWindowStillHas) {
  PrefixCache cache(session_);
  const std::vector<int64_t> text = random_tokens(2000, 97, 1);
  Sequence sequence = session_.new_sequence();
  session_.run(sequence, text);
  for (const int64_t token : random_tokens(300, 97, 2)) session_.run(sequence, std::span(&token, 1));
  cache.keep(sequence, sequence.size());
  EXPECT_TRUE(is_like_fresh(
      cache, joined(std::vector<int64_t>(sequence.tokens().begin(), sequence.tokens().end()), {4}), 2300));
  EXPECT_TRUE(is_like_fresh(cache, std::vector<int64_t>(text.begin(), text.begin() + 100), 0));
}

// --- through generate() ---

class PrefixGenerateTest : public PrefixCacheTest {
 protected:
  PrefixGenerateTest() {
    const std::vector<int64_t> system = random_tokens(100, 97, 1);
    for (unsigned i = 0; i < 9; ++i) {
      prompts_.push_back(
          joined(i % 3 == 2 ? random_tokens(20, 97, 50 + i) : system, random_tokens(1 + 7 * i, 97, 10 + i)));
    }
    prompts_.push_back(prompts_[0]);
    for (const auto& prompt : prompts_) {
      const Texts one = {prompt};
      alone_.push_back(generate(fresh_, one, {.max_new_tokens = 25}).results[0].ids);
    }
  }
  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }
  Texts prompts_, alone_;
};

TEST_F(PrefixGenerateTest, TheSameTextsHitOrMissAloneOrTogether) {
  for (const int64_t parallel : {0, 1, 2, 3, 20}) {
    for (const int64_t chunk : {0, 5, 64}) {
      for (const bool cached : {false, true}) {
        for (const bool speculate : {false, true}) {
          PrefixCache cache(session_);
          GenerateOptions options{.max_new_tokens = 25, .prefill_chunk = chunk, .parallel = parallel};
          if (cached) options.prefix_cache = &cache;
          if (speculate) {
            options.strategy = [](Session& session, Sampler& sampler) {
              return std::make_unique<SpeculativeDecoding>(session, sampler, std::make_unique<NgramDrafter>(),
                                                           PacingOptions{.adaptive = false, .most = 4});
            };
          }
          const GenerateOutput output = generate(session_, prompts_, options);
          ASSERT_EQ(texts(output), alone_)
              << parallel << " at once, chunks of " << chunk << (cached ? ", cached" : "")
              << (speculate ? ", speculating" : "");
          // The shared beginning is computed once.
          if (cached) {
            EXPECT_GE(output.timing.cached_tokens, 6 * 100);
          } else {
            EXPECT_EQ(output.timing.cached_tokens, 0);
          }
          cache.clear();
          EXPECT_EQ(session_.cache_bytes(), 0);
        }
      }
    }
  }
}

TEST_F(PrefixGenerateTest, ASecondCallFindsTheTexts) {
  PrefixCache cache(session_);
  const GenerateOptions options{.max_new_tokens = 25, .prefix_cache = &cache};
  const GenerateOutput first = generate(session_, prompts_, options);
  const GenerateOutput second = generate(session_, prompts_, options);
  EXPECT_EQ(texts(second), texts(first));
  EXPECT_EQ(second.timing.cached_tokens, second.timing.prompt_tokens - static_cast<int64_t>(prompts_.size()));
  // And a conversation that goes on: prompt and answer are known, but for the answer's last token.
  const Texts next = {joined(joined(prompts_[0], alone_[0]), {3, 4})};
  const GenerateOutput third = generate(session_, next, options);
  EXPECT_EQ(third.timing.cached_tokens, static_cast<int64_t>(next[0].size()) - 3);
}

TEST_F(PrefixGenerateTest, MakesRoomWhenTheCacheMemoryIsFull) {
  // Blocks of both layers for some 400 tokens.
  const int64_t block = 2 * (12 + 16) * 64 * 4;
  Session small(program_, {.threads = 1, .cache_memory = 2 * block * 7});
  PrefixCache cache(small);
  const GenerateOptions options{.max_new_tokens = 25, .parallel = 1, .prefix_cache = &cache};
  EXPECT_EQ(texts(generate(small, prompts_, options)), alone_);
  EXPECT_GT(cache.statistics().evicted, 0);
  EXPECT_LE(small.peak_cache_bytes(), 2 * block * 7);
}

TEST_F(PrefixGenerateTest, EventsComeInTheOrderOfEachText) {
  std::vector<std::vector<int64_t>> streamed(prompts_.size());
  std::vector<int> finished(prompts_.size());
  const GenerateOptions options{.max_new_tokens = 25, .parallel = 3};
  generate(session_, prompts_, options, [&](const GenerateEvent& event) {
    streamed[event.prompt].insert(streamed[event.prompt].end(), event.ids.begin(), event.ids.end());
    finished[event.prompt] += event.finished ? 1 : 0;
  });
  EXPECT_EQ(streamed, alone_);
  EXPECT_EQ(finished, std::vector<int>(prompts_.size(), 1));
}

}  // namespace
}  // namespace quern::runtime
