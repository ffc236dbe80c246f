// What the limits of memory and age do while texts are generated: other times, never other texts.
#include <gtest/gtest.h>

#include "runtime/generate/generate.h"
#include "runtime/prefix/prefix_cache.h"
#include "runtime/speculate/ngram_drafter.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_decoder;
using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;

constexpr int64_t kBlock = 2 * 2 * (12 + 16) * 64 * 4;  // bytes of 64 positions in both layers

std::vector<int64_t> joined(std::vector<int64_t> a, const std::vector<int64_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class CacheLimitsTest : public testing::Test {
 protected:
  CacheLimitsTest() : program_(Program::compile(*random_decoder({}))), fresh_(program_, {.threads = 1}) {
    const std::vector<int64_t> system = random_tokens(64, 97, 1);
    for (unsigned i = 0; i < 12; ++i) {
      prompts_.push_back(
          joined(i % 3 == 2 ? std::vector<int64_t>() : system, random_tokens(5 + 11 * i, 97, 10 + i)));
    }
    for (const auto& prompt : prompts_) {
      const Texts one = {prompt};
      alone_.push_back(generate(fresh_, one, {.max_new_tokens = 40}).results[0].ids);
    }
  }
  Session session_of(int64_t blocks) const {
    return Session(program_, {.threads = 1, .cache_memory = blocks * kBlock});
  }
  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }
  static std::unique_ptr<DecodingStrategy> guessing(Session& session, Sampler& sampler) {
    return std::make_unique<SpeculativeDecoding>(session, sampler, std::make_unique<NgramDrafter>(),
                                                 PacingOptions{.adaptive = false, .most = 4});
  }

  std::shared_ptr<const Program> program_;
  Session fresh_;
  Texts prompts_, alone_;
};

// The longest text alone needs four blocks; more of them together than fit take turns.
TEST_F(CacheLimitsTest, TextsThatDoNotFitTogetherTakeTurns) {
  for (const int64_t blocks : {4, 7, 100}) {
    for (const int64_t parallel : {0, 1, 2, 8}) {
      for (const bool cached : {false, true}) {
        for (const bool speculate : {false, true}) {
          Session session = session_of(blocks);
          PrefixCache cache(session);
          GenerateOptions options{.max_new_tokens = 40, .prefill_chunk = 48, .parallel = parallel};
          if (cached) options.prefix_cache = &cache;
          if (speculate) options.strategy = guessing;
          std::vector<int> finished(prompts_.size());
          Texts streamed(prompts_.size());
          const GenerateOutput output = generate(session, prompts_, options, [&](const GenerateEvent& event) {
            finished[event.prompt] += event.finished ? 1 : 0;
            streamed[event.prompt].insert(streamed[event.prompt].end(), event.ids.begin(), event.ids.end());
          });
          const std::string what = std::to_string(blocks) + " blocks, " + std::to_string(parallel) +
                                   " at once" + (cached ? ", cached" : "") +
                                   (speculate ? ", speculating" : "");
          ASSERT_EQ(texts(output), alone_) << what;
          EXPECT_EQ(streamed, alone_) << what;
          EXPECT_EQ(finished, std::vector<int>(prompts_.size(), 1)) << what;
          EXPECT_LE(session.peak_cache_bytes(), blocks * kBlock) << what;
          if (parallel == 1 || blocks == 100) {
            EXPECT_EQ(output.timing.put_back, 0) << what;
          } else if (parallel != 2) {
            EXPECT_GT(output.timing.put_back, 0) << what;
          }
          if (!cached) continue;
          EXPECT_EQ(cache.statistics().evicted == 0, blocks == 100) << what;
          EXPECT_LE(cache.bytes(), blocks * kBlock) << what;
        }
      }
    }
  }
}

TEST_F(CacheLimitsTest, SamplingDrawsTheSameWhoeverWaits) {
  GenerateOptions options{.max_new_tokens = 40};
  options.sampling = {.sample = true, .seed = 9};
  const Texts wanted = texts(generate(fresh_, prompts_, options));
  Session session = session_of(6);
  options.parallel = 8;
  const GenerateOutput output = generate(session, prompts_, options);
  EXPECT_EQ(texts(output), wanted);
  EXPECT_GT(output.timing.put_back, 0);
}

// A single text that does not fit is an error; nothing is left behind.
TEST_F(CacheLimitsTest, WhatDoesNotFitAloneIsRefused) {
  Session session = session_of(3);
  for (const int64_t parallel : {1, 8}) {
    PrefixCache cache(session);
    EXPECT_QUERN_ERROR(
        generate(session, prompts_, {.max_new_tokens = 40, .parallel = parallel, .prefix_cache = &cache}),
        ErrorCode::OutOfMemory, "cache memory");
    cache.clear();
    EXPECT_EQ(session.cache_bytes(), 0);
  }
}

// Of the kept texts those go whose last use is longest ago, and no more of them than it takes.
TEST_F(CacheLimitsTest, TheLeastRecentlyUsedMakeRoom) {
  Session session = session_of(9);
  PrefixCache cache(session);
  Texts kept;
  for (unsigned i = 0; i < 4; ++i) kept.push_back(random_tokens(100, 97, 50 + i));
  const GenerateOptions options{.max_new_tokens = 1, .parallel = 1, .prefix_cache = &cache};
  generate(session, kept, options);
  EXPECT_EQ(cache.size(), 4);
  EXPECT_EQ(cache.bytes(), 4 * kBlock);  // their whole chunks
  const Texts again = {kept[0], kept[2]};
  EXPECT_EQ(generate(session, again, options).timing.cached_tokens, 2 * 99);
  // Of nine blocks eight are in use; this one needs two.
  const Texts other = {random_tokens(110, 97, 60)};
  generate(session, other, options);
  EXPECT_EQ(cache.statistics().evicted, 1);
  EXPECT_EQ(cache.known(kept[1]), 0);
  for (const size_t i : {0, 2, 3}) EXPECT_EQ(cache.known(kept[i]), 99) << i;
  generate(session, {&prompts_[11], 1}, options);  // three blocks
  EXPECT_EQ(cache.known(kept[3]), 0);
  EXPECT_EQ(cache.known(kept[2]), 99);
}

// Kept prefixes that running texts go on from give no memory back, and running texts never lose it.
TEST_F(CacheLimitsTest, RunningTextsKeepWhatTheyBeganWith) {
  Session session = session_of(4);
  PrefixCache cache(session);
  const std::vector<int64_t> system = random_tokens(128, 97, 1);
  Texts prompts;
  for (unsigned i = 0; i < 5; ++i) prompts.push_back(joined(system, random_tokens(3, 97, i)));
  Texts wanted;
  for (const auto& prompt : prompts) {
    const Texts one = {prompt};
    wanted.push_back(generate(fresh_, one, {.max_new_tokens = 20}).results[0].ids);
  }
  for (const int64_t parallel : {1, 2, 5}) {
    const GenerateOutput output =
        generate(session, prompts, {.max_new_tokens = 20, .parallel = parallel, .prefix_cache = &cache});
    EXPECT_EQ(texts(output), wanted) << parallel;
    EXPECT_GE(output.timing.cached_tokens, 4 * 128) << parallel;
  }
}

// --- age ---

TEST_F(CacheLimitsTest, AgeCountsFromTheLastUse) {
  double now = 0;
  Session session = session_of(1000);
  PrefixCache cache(session, {.lifetime = 10, .clock = [&] { return now; }});
  const GenerateOptions options{.max_new_tokens = 1, .parallel = 2, .prefix_cache = &cache};
  const std::vector<int64_t> a = random_tokens(100, 97, 1), b = random_tokens(100, 97, 2);
  const Texts both = {a, b}, one = {a};
  const auto found = [&](const Texts& prompts) {
    return generate(session, prompts, options).timing.cached_tokens;
  };
  EXPECT_EQ(found(both), 0);
  now = 8;
  EXPECT_EQ(found(one), 99);
  now = 10;  // exactly: not yet
  EXPECT_EQ(cache.known(b), 99);
  now = 10.5;
  EXPECT_EQ(cache.known(b), 0);
  EXPECT_EQ(cache.statistics().expired, 1);
  EXPECT_EQ(cache.known(a), 99);  // asking is no use of it
  now = 18.5;
  EXPECT_EQ(found(both), 0);
  EXPECT_EQ(cache.statistics().expired, 2);
  EXPECT_EQ(cache.size(), 2);
  now = 100;
  EXPECT_EQ(cache.known(a), 0);
  EXPECT_EQ(session.cache_bytes(), 0);
}

// While texts are generated time goes on: what was kept for the first prompts is gone for the last.
TEST_F(CacheLimitsTest, PrefixesExpireBetweenTheTextsOfOneCall) {
  for (const double lifetime : {2.5, 1000.0}) {
    for (const int64_t parallel : {1, 3}) {
      double now = 0;
      Session session = session_of(1000);
      PrefixCache cache(session, {.lifetime = lifetime, .clock = [&] { return now; }});
      const GenerateOptions options{.max_new_tokens = 40, .parallel = parallel, .prefix_cache = &cache};
      const GenerateOutput output = generate(
          session, prompts_, options, [&](const GenerateEvent& event) { now += event.finished ? 1 : 0; });
      EXPECT_EQ(texts(output), alone_);
      EXPECT_EQ(cache.statistics().expired > 0, lifetime < 1000);
      EXPECT_EQ(cache.statistics().lookups, static_cast<int64_t>(prompts_.size()));
      EXPECT_GT(cache.statistics().hits, 0);
    }
  }
}

// --- what is counted ---

TEST_F(CacheLimitsTest, StatisticsAddUp) {
  for (const int64_t parallel : {1, 4}) {
    Session session = session_of(1000);
    PrefixCache cache(session);
    const GenerateOutput output =
        generate(session, prompts_, {.max_new_tokens = 40, .parallel = parallel, .prefix_cache = &cache});
    const PrefixCacheStatistics& s = cache.statistics();
    EXPECT_EQ(s.lookups, 12);
    EXPECT_EQ(s.tokens, output.timing.prompt_tokens);
    EXPECT_EQ(s.hit_tokens, output.timing.cached_tokens);
    EXPECT_EQ(s.hits, 7);  // eight begin alike, and the first finds nothing
    EXPECT_GE(s.hit_tokens, 7 * 64);
    EXPECT_DOUBLE_EQ(s.hit_rate(), static_cast<double>(s.hit_tokens) / static_cast<double>(s.tokens));
    EXPECT_EQ(s.evicted + s.expired, 0);
    // Prompts, and texts in the place of their prompts.
    EXPECT_EQ(s.kept, 2 * 12);
    EXPECT_EQ(cache.size(), 12);
  }
}

// Writing behind a kept text copies the block that it ends in, and no other.
TEST_F(CacheLimitsTest, ForksCopyTheBlockTheyWriteInto) {
  Session session = session_of(1000);
  PrefixCache cache(session);
  const std::vector<int64_t> text = random_tokens(150, 97, 1);
  {
    Sequence sequence = session.new_sequence();
    session.run(sequence, text);
    cache.keep(sequence, sequence.size());
  }
  EXPECT_EQ(session.cache_bytes(), 3 * kBlock);
  Sequence a = cache.take(joined(text, {1, 2})), b = cache.take(joined(text, {3, 4}));
  EXPECT_EQ(a.size(), 150);
  EXPECT_EQ(session.cache_bytes(), 3 * kBlock);
  const int64_t one = 1, three = 3;
  const auto first = session.run(a, {&one, 1});
  const std::vector<float> logits(first.begin(), first.end());
  EXPECT_EQ(session.cache_bytes(), 4 * kBlock);
  session.run(b, {&three, 1});
  EXPECT_EQ(session.cache_bytes(), 5 * kBlock);
  Sequence c = cache.take(joined(text, {1, 2}));
  const auto second = session.run(c, {&one, 1});
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), second.begin(), second.end()));
}

}  // namespace
}  // namespace quern::runtime
