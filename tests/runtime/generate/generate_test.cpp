#include "runtime/generate/generate.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_tokens;

// Every token is a word.
class Words final : public TextDecoder {
 public:
  std::string push(int64_t id) override { return "<" + std::to_string(id) + ">"; }
  std::string finish() override { return "."; }
};

class GenerateTest : public testing::Test {
 protected:
  GenerateTest()
      : graph_(test::random_decoder({})),
        program_(Program::compile(*graph_)),
        session_(program_, {.threads = 1}) {}

  // Plain greedy decoding by hand, without cache: the whole text again for each token.
  std::vector<int64_t> greedy(std::vector<int64_t> text, int64_t count) {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < count; ++i) {
      Sequence sequence = session_.new_sequence();
      out.push_back(argmax(session_.run(sequence, text)));
      text.push_back(out.back());
    }
    return out;
  }

  std::unique_ptr<Graph> graph_;
  std::shared_ptr<const Program> program_;
  Session session_;
};

TEST_F(GenerateTest, GreedyIsWhatTheLogitsSay) {
  std::vector<std::vector<int64_t>> prompts;
  for (unsigned i = 0; i < 4; ++i) prompts.push_back(random_tokens(3 + 20 * i, 97, i));
  for (const int64_t chunk : {0, 1, 7}) {
    const GenerateOutput output = generate(session_, prompts, {.max_new_tokens = 12, .prefill_chunk = chunk});
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(output.results[i].ids, greedy(prompts[i], 12)) << "prompt " << i;
      EXPECT_EQ(output.results[i].finish, FinishReason::Length);
      EXPECT_EQ(output.results[i].text, "");
    }
    EXPECT_EQ(output.timing.prompt_tokens, 3 + 23 + 43 + 63);
    EXPECT_EQ(output.timing.generated_tokens, 48);
    EXPECT_EQ(output.timing.decode_tokens, 44);
    EXPECT_GT(output.timing.prefill_rate(), 0);
    EXPECT_GT(output.timing.decode_rate(), 0);
    EXPECT_GT(output.timing.first_token_seconds, 0);
  }
}

TEST_F(GenerateTest, StreamsWhatItReturns) {
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(5, 97, 1), random_tokens(9, 97, 2)};
  const std::vector<int64_t> ids = greedy(prompts[0], 10);
  GenerateOptions options;
  options.max_new_tokens = 10;
  options.decoder = [] { return std::make_unique<Words>(); };
  options.stop = {std::to_string(ids[6]) + "><"};
  std::map<size_t, std::vector<int64_t>> streamed;
  std::map<size_t, std::string> text;
  std::map<size_t, int> finished;
  const GenerateOutput output = generate(session_, prompts, options, [&](const GenerateEvent& event) {
    EXPECT_EQ(finished[event.prompt], 0);
    streamed[event.prompt].insert(streamed[event.prompt].end(), event.ids.begin(), event.ids.end());
    text[event.prompt] += event.text;
    finished[event.prompt] += event.finished ? 1 : 0;
  });
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(streamed[i], output.results[i].ids);
    EXPECT_EQ(text[i], output.results[i].text);
    EXPECT_EQ(finished[i], 1);
  }
  EXPECT_EQ(output.results[0].finish, FinishReason::StopString);
  EXPECT_EQ(output.results[0].stop, options.stop[0]);
  std::string wanted;
  size_t used = 0;
  while (wanted.find(options.stop[0]) == std::string::npos) wanted += "<" + std::to_string(ids[used++]) + ">";
  EXPECT_EQ(output.results[0].text, wanted.substr(0, wanted.find(options.stop[0])));
  EXPECT_EQ(output.results[0].ids,
            std::vector<int64_t>(ids.begin(), ids.begin() + static_cast<int64_t>(used)));
  EXPECT_EQ(output.results[1].finish, FinishReason::Length);
  EXPECT_EQ(output.results[1].text.back(), '.');
}

TEST_F(GenerateTest, EndsAtEndTokens) {
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(5, 97, 1)};
  const std::vector<int64_t> ids = greedy(prompts[0], 10);
  const auto first = std::find(ids.begin(), ids.end(), ids[4]);
  const GenerateOutput output =
      generate(session_, prompts, {.max_new_tokens = 10, .end_ids = {1000, ids[4]}});
  EXPECT_EQ(output.results[0].ids, std::vector<int64_t>(ids.begin(), first));
  EXPECT_EQ(output.results[0].finish, FinishReason::EndOfSequence);
}

TEST_F(GenerateTest, EndsWithTheContext) {
  Session session(program_, {.threads = 1, .context = 20});
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(15, 97, 1), random_tokens(20, 97, 1)};
  const GenerateOutput output = generate(session, prompts, {.max_new_tokens = 100});
  // The last token needs no place in the cache.
  EXPECT_EQ(output.results[0].ids, greedy(prompts[0], 6));
  EXPECT_EQ(output.results[0].finish, FinishReason::Context);
  EXPECT_EQ(output.results[1].ids.size(), 1U);
  const std::vector<std::vector<int64_t>> longer = {random_tokens(21, 97, 1)};
  EXPECT_QUERN_ERROR(generate(session, longer, {}), ErrorCode::BadData, "21 tokens", "context of 20");
}

TEST_F(GenerateTest, SameSeedSameText) {
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(5, 97, 1), random_tokens(5, 97, 1)};
  GenerateOptions options;
  options.max_new_tokens = 20;
  options.sampling = {.sample = true, .temperature = 1.5f, .seed = 7};
  const GenerateOutput a = generate(session_, prompts, options), b = generate(session_, prompts, options);
  EXPECT_EQ(a.results[0].ids, b.results[0].ids);
  EXPECT_EQ(a.results[1].ids, b.results[1].ids);
  EXPECT_NE(a.results[0].ids, a.results[1].ids);
  // Alone or in company, the first prompt draws from its own stream.
  const GenerateOutput alone = generate(session_, std::span(prompts).first(1), options);
  EXPECT_EQ(alone.results[0].ids, a.results[0].ids);
  options.sampling.seed = 8;
  EXPECT_NE(generate(session_, prompts, options).results[0].ids, a.results[0].ids);
}

TEST_F(GenerateTest, CanBeCancelled) {
  const std::vector<std::vector<int64_t>> prompts = {random_tokens(5, 97, 1)};
  std::atomic<bool> cancel{false};
  GenerateOptions options;
  options.max_new_tokens = 1000;
  options.cancel = &cancel;
  size_t tokens = 0;
  const GenerateOutput output = generate(session_, prompts, options, [&](const GenerateEvent& event) {
    tokens += event.ids.size();
    if (tokens == 3) cancel = true;
  });
  EXPECT_EQ(output.results[0].finish, FinishReason::Cancelled);
  EXPECT_EQ(output.results[0].ids.size(), 3U);
  const GenerateOutput nothing = generate(session_, prompts, options);
  EXPECT_EQ(nothing.results[0].finish, FinishReason::Cancelled);
  EXPECT_TRUE(nothing.results[0].ids.empty());
}

TEST_F(GenerateTest, RefusesNonsense) {
  const std::vector<std::vector<int64_t>> empty = {{}}, fine = {{1}}, foreign = {{1, 97}};
  EXPECT_QUERN_ERROR(generate(session_, empty, {}), ErrorCode::BadData, "prompt 0 is empty");
  EXPECT_QUERN_ERROR(generate(session_, foreign, {}), ErrorCode::BadData, "97");
  EXPECT_QUERN_ERROR(generate(session_, fine, {.max_new_tokens = -1}), ErrorCode::InvalidArgument,
                     "max_new_tokens");
  EXPECT_QUERN_ERROR(generate(session_, fine, {.stop = {"x"}}), ErrorCode::InvalidArgument, "tokenizer");
  EXPECT_TRUE(generate(session_, {}, {}).results.empty());
  EXPECT_TRUE(generate(session_, fine, {.max_new_tokens = 0}).results[0].ids.empty());
}

}  // namespace
}  // namespace quern::runtime
