// Several decoders side by side write what one would write.
#include "runtime/generate/instances.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "runtime/cpu/thread_team.h"
#include "runtime/generate/prompt_queue.h"
#include "runtime/prefix/prefix_cache.h"
#include "runtime/speculate/ngram_drafter.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace quern::runtime {
namespace {

using test::random_decoder;
using test::random_tokens;
using Texts = std::vector<std::vector<int64_t>>;

class InstancesTest : public testing::Test {
 protected:
  InstancesTest() : program_(Program::compile(*random_decoder({}))), session_(program_, {.threads = 1}) {
    const std::vector<int64_t> system = random_tokens(70, 97, 1);
    for (unsigned i = 0; i < 23; ++i) {
      std::vector<int64_t> prompt = i % 2 == 0 ? system : std::vector<int64_t>();
      for (const int64_t id : random_tokens(1 + 5 * (i % 7), 97, 10 + i)) prompt.push_back(id);
      prompts_.push_back(prompt);
    }
  }
  // More of them than there may be cores here.
  static InstancesOptions options(int count) {
    return {.count = count, .session = {.threads = 1}, .pin = false};
  }
  static Texts texts(const GenerateOutput& output) {
    Texts all;
    for (const GenerateResult& result : output.results) all.push_back(result.ids);
    return all;
  }

  std::shared_ptr<const Program> program_;
  Session session_;
  Texts prompts_;
};

TEST_F(InstancesTest, WriteWhatOneWouldWrite) {
  for (const bool sample : {false, true}) {
    GenerateOptions how{.max_new_tokens = 20, .end_ids = {5, 6}};
    how.sampling = {.sample = sample, .seed = 3};
    const GenerateOutput one = generate(session_, prompts_, how);
    for (const int count : {1, 2, 3}) {
      Instances instances(program_, options(count));
      EXPECT_EQ(instances.size(), count);
      EXPECT_EQ(instances.threads(), count);
      for (const int64_t parallel : {0, 1, 4}) {
        how.parallel = parallel;
        std::vector<std::unique_ptr<PrefixCache>> caches;
        Texts streamed(prompts_.size());
        std::vector<int> finished(prompts_.size());
        const GenerateOutput output = instances.generate(
            prompts_, how,
            [&](const GenerateEvent& event) {
              streamed[event.prompt].insert(streamed[event.prompt].end(), event.ids.begin(), event.ids.end());
              finished[event.prompt] += event.finished ? 1 : 0;
            },
            [&](int instance, GenerateOptions& own) {
              caches.push_back(std::make_unique<PrefixCache>(instances.session(instance)));
              own.prefix_cache = caches.back().get();
              own.strategy = [](Session& session, Sampler& sampler) {
                return std::make_unique<SpeculativeDecoding>(session, sampler,
                                                             std::make_unique<NgramDrafter>(),
                                                             PacingOptions{.adaptive = false, .most = 3});
              };
            });
        EXPECT_EQ(texts(output), texts(one)) << count << " instances, " << parallel << " texts each";
        for (size_t i = 0; i < prompts_.size(); ++i)
          EXPECT_EQ(output.results[i].finish, one.results[i].finish) << i;
        EXPECT_EQ(streamed, texts(one));
        EXPECT_EQ(finished, std::vector<int>(prompts_.size(), 1));
        EXPECT_EQ(output.prompts.size(), prompts_.size());
        EXPECT_EQ(output.timing.prompt_tokens, one.timing.prompt_tokens);
        EXPECT_EQ(output.timing.generated_tokens, one.timing.generated_tokens);
        EXPECT_GT(output.timing.first_token_seconds, 0);
        EXPECT_GT(output.speculation->rounds, 0);
        EXPECT_GT(output.timing.cached_tokens, 0);
      }
    }
  }
}

TEST_F(InstancesTest, OneErrorEndsThemAll) {
  Instances instances(program_, options(3));
  Texts prompts = prompts_;
  prompts[4].push_back(1000);  // no such token
  EXPECT_QUERN_ERROR(instances.generate(prompts, {.max_new_tokens = 500}), ErrorCode::BadData, "1000", "97");
  // Of the caller's own, too; and the next call finds nothing amiss.
  EXPECT_THROW(instances.generate(prompts_, {.max_new_tokens = 5},
                                  [](const GenerateEvent&) { throw std::logic_error("enough"); }),
               std::logic_error);
  EXPECT_EQ(texts(instances.generate(prompts_, {.max_new_tokens = 5})),
            texts(generate(session_, prompts_, {.max_new_tokens = 5})));
}

TEST_F(InstancesTest, CancellingEndsEachTextOnce) {
  Instances instances(program_, options(2));
  std::atomic<bool> cancel = false;
  std::vector<int> finished(prompts_.size());
  const GenerateOutput output = instances.generate(prompts_, {.max_new_tokens = 1000, .cancel = &cancel},
                                                   [&](const GenerateEvent& event) {
                                                     finished[event.prompt] += event.finished ? 1 : 0;
                                                     cancel = true;
                                                   });
  EXPECT_EQ(finished, std::vector<int>(prompts_.size(), 1));
  for (const GenerateResult& result : output.results) EXPECT_EQ(result.finish, FinishReason::Cancelled);
}

TEST_F(InstancesTest, ShareTheCacheMemory) {
  const int64_t block = 2 * (12 + 16) * 64 * 4;
  InstancesOptions how = options(2);
  how.session.cache_memory = 2 * 2 * block * 3;
  Instances instances(program_, how);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(instances.session(i).options().cache_memory, 2 * block * 3);
  EXPECT_EQ(texts(instances.generate(prompts_, {.max_new_tokens = 20, .parallel = 4})),
            texts(generate(session_, prompts_, {.max_new_tokens = 20})));
}

TEST_F(InstancesTest, RefuseWhatMakesNoSense) {
  const int cores = cpu::default_thread_count();
  EXPECT_QUERN_ERROR(Instances(program_, {.count = cores + 1}), ErrorCode::InvalidArgument,
                     std::to_string(cores + 1) + " instances", std::to_string(cores) + " cores");
  EXPECT_QUERN_ERROR(Instances(program_, {.count = 0}), ErrorCode::InvalidArgument, "0 instances");
  EXPECT_QUERN_ERROR(Instances(program_, {.count = 1, .session = {.threads = cores + 1}}),
                     ErrorCode::InvalidArgument, "threads do not fit");
  Instances instances(program_, options(1));
  PrefixCache cache(session_);
  EXPECT_QUERN_ERROR(instances.generate(prompts_, {.prefix_cache = &cache}), ErrorCode::InvalidArgument,
                     "belongs to one session");
}

TEST(CoreSets, EveryCoreIsInOnePart) {
  const int cores = cpu::default_thread_count();
  for (int count = 1; count <= std::min(cores, 5); ++count) {
    int sum = 0;
    std::set<int> processors;
    size_t listed = 0;
    for (const CoreSet& set : split_cores(count)) {
      EXPECT_GE(set.cores, 1);
      sum += set.cores;
      listed += set.processors.size();
      processors.insert(set.processors.begin(), set.processors.end());
    }
    EXPECT_EQ(sum, cores);
    EXPECT_EQ(processors.size(), listed);
  }
  EXPECT_QUERN_ERROR(split_cores(cores + 1), ErrorCode::InvalidArgument, "cores");
}

#if defined(__linux__)
TEST(CoreSets, PinnedInstancesStayOnTheirCores) {
  const std::vector<CoreSet> sets = split_cores(cpu::default_thread_count());
  for (const CoreSet& set : sets) {
    std::thread([&] {
      pin_this_thread(set);
      // And what it starts inherits that.
      std::thread([&] {
        cpu_set_t mask;
        CPU_ZERO(&mask);
        ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
        EXPECT_EQ(static_cast<size_t>(CPU_COUNT(&mask)), set.processors.size());
        for (const int processor : set.processors) EXPECT_TRUE(CPU_ISSET(processor, &mask));
      }).join();
      EXPECT_EQ(cpu::default_thread_count(), set.cores);
    }).join();
  }
}
#endif

TEST(PromptQueue, HandsOutEachOnce) {
  PromptQueue queue(1000);
  std::vector<std::atomic<int>> taken(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (const auto prompt = queue.take()) ++taken[*prompt];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : taken) EXPECT_EQ(count, 1);
  PromptQueue other(3);
  EXPECT_EQ(other.take(), 0U);
  other.close();
  EXPECT_FALSE(other.take());
}

}  // namespace
}  // namespace quern::runtime
