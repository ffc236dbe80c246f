// Points of an outline, written as forks of one beginning.
#include "runtime/generate/outline.h"

#include <gtest/gtest.h>

#include "runtime/prefix/prefix_cache.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_decoder;
using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;
using Points = std::vector<std::string>;

TEST(OutlinePoints, AsModelsWriteThem) {
  EXPECT_EQ(outline_points("1. Find a pool\n2. Learn to float\n3. Practise"),
            (Points{"Find a pool", "Learn to float", "Practise"}));
  EXPECT_EQ(
      outline_points("Sure! Here it is:\n\n1) **Find a pool:**\r\n 2) Learn to float :\n\nHope it helps"),
      (Points{"Find a pool", "Learn to float"}));
  EXPECT_EQ(outline_points("- one\n* two\n+ three\n\u2022 four\n-not this\n12. twelve"),
            (Points{"one", "two", "three", "four", "twelve"}));
  EXPECT_EQ(outline_points("1. **Bold**\n2. **Bold** and more\n3.Without a blank"),
            (Points{"Bold", "**Bold** and more", "Without a blank"}));
  EXPECT_EQ(outline_points(""), Points{});
  EXPECT_EQ(outline_points("1.\n2. \n1.5 million\n3\n2000. year\nno list"), Points{});
  EXPECT_EQ(outline_points("1. a\n2. b\n3. c", 2), (Points{"a", "b"}));
}

TEST(CommonBeginning, ToTheToken) {
  EXPECT_EQ(common_beginning({}), 0);
  const Texts same = {{1, 2, 3}}, some = {{1, 2, 3, 4}, {1, 2, 3}, {1, 2, 5, 4}}, none = {{1}, {2}};
  EXPECT_EQ(common_beginning(same), 3);
  EXPECT_EQ(common_beginning(some), 2);
  EXPECT_EQ(common_beginning(none), 0);
}

class ForksTest : public testing::Test {
 protected:
  ForksTest() : program_(Program::compile(*random_decoder({}))), session_(program_, {.threads = 1}) {
    const std::vector<int64_t> question = random_tokens(90, 97, 1);
    for (unsigned i = 0; i < 6; ++i) {
      std::vector<int64_t> prompt = question;
      prompt.push_back(i);  // so that no two go on alike
      for (const int64_t id : random_tokens(3 * i, 97, 10 + i)) prompt.push_back(id);
      prompts_.push_back(prompt);
    }
  }
  std::shared_ptr<const Program> program_;
  Session session_;
  Texts prompts_;
};

TEST_F(ForksTest, EachIsWhatItWouldBeAlone) {
  Session fresh(program_, {.threads = 1});
  for (const int64_t parallel : {0, 1, 2}) {
    for (const bool sample : {false, true}) {
      GenerateOptions options{.max_new_tokens = 30, .parallel = parallel};
      options.sampling = {.sample = sample, .seed = 5};
      const int64_t before = session_.cache_bytes();
      const ForkedOutput forked = generate_forks(session_, prompts_, options);
      EXPECT_EQ(forked.prefix_tokens, 90);
      // Every point finds the beginning, computed once.
      EXPECT_EQ(forked.output.timing.cached_tokens, 6 * 90);
      options.parallel = 0;
      if (sample) {  // the numbers of the prompts choose the draws
        const GenerateOutput wanted = generate(fresh, prompts_, options);
        for (size_t i = 0; i < prompts_.size(); ++i)
          EXPECT_EQ(forked.output.results[i].ids, wanted.results[i].ids) << i;
      } else {
        for (size_t i = 0; i < prompts_.size(); ++i) {
          const Texts one = {prompts_[i]};
          EXPECT_EQ(forked.output.results[i].ids, generate(fresh, one, options).results[0].ids) << i;
        }
      }
      EXPECT_EQ(session_.cache_bytes(), before);
    }
  }
}

// All of them together take little more than one: the beginning lies in the cache once.
TEST_F(ForksTest, ShareTheBlocksOfTheBeginning) {
  const int64_t block = 2 * (12 + 16) * 64 * 4 * 2;  // of both layers
  Session session(program_, {.threads = 1});
  generate_forks(session, prompts_, {.max_new_tokens = 10});
  EXPECT_LE(session.peak_cache_bytes(), block * (1 + 2 * 7));
  Session apart(program_, {.threads = 1});
  generate(apart, prompts_, {.max_new_tokens = 10});
  EXPECT_GE(apart.peak_cache_bytes(), block * 2 * 6);
  EXPECT_LT(session.peak_cache_bytes(), apart.peak_cache_bytes() + 3 * block);
}

TEST_F(ForksTest, ACacheOfOnesOwnKnowsTheBeginning) {
  PrefixCache cache(session_);
  const ForkedOutput first =
      generate_forks(session_, prompts_, {.max_new_tokens = 10, .prefix_cache = &cache});
  EXPECT_EQ(first.output.timing.cached_tokens, 6 * 90);
  const int64_t hits = cache.statistics().hit_tokens;
  const ForkedOutput second =
      generate_forks(session_, prompts_, {.max_new_tokens = 10, .prefix_cache = &cache});
  EXPECT_EQ(second.prefix_tokens, 90);
  EXPECT_GE(cache.statistics().hit_tokens - hits, 6 * 90 + 89);
  for (size_t i = 0; i < prompts_.size(); ++i)
    EXPECT_EQ(second.output.results[i].ids, first.output.results[i].ids);
}

TEST_F(ForksTest, WithoutACommonBeginningOrWithNothingElse) {
  const Texts apart = {{1, 2, 3}, {4, 5}};
  const ForkedOutput none = generate_forks(session_, apart, {.max_new_tokens = 4});
  EXPECT_EQ(none.prefix_tokens, 0);
  EXPECT_EQ(none.output.results[1].ids.size(), 4U);
  const Texts equal = {prompts_[0], prompts_[0]};
  const ForkedOutput same = generate_forks(session_, equal, {.max_new_tokens = 4});
  EXPECT_EQ(same.prefix_tokens, 91);
  EXPECT_EQ(same.output.results[0].ids, same.output.results[1].ids);
  Session small(program_, {.threads = 1, .context = 50});
  EXPECT_QUERN_ERROR(generate_forks(small, prompts_, {}), ErrorCode::BadData, "context of 50");
  const Texts empty;
  EXPECT_TRUE(generate_forks(session_, empty, {}).output.results.empty());
}

}  // namespace
}  // namespace quern::runtime
