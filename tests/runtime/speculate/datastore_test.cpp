#include "runtime/speculate/datastore.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "runtime/generate/generate.h"
#include "runtime/speculate/datastore_drafter.h"
#include "runtime/speculate/pacing.h"
#include "runtime/speculate/speculative_decoding.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::runtime {
namespace {

using test::random_tokens;

const std::string kDigest(64, 'a');

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class DatastoreTest : public testing::Test {
 protected:
  std::shared_ptr<const Datastore> store_of(const std::vector<int64_t>& tokens) {
    Datastore::build(tokens, kDigest, dir_ / "store.qds");
    return Datastore::open(dir_ / "store.qds");
  }
  test::TempDir dir_;
};

// Every run of tokens is found where it is, and nowhere else.
TEST_F(DatastoreTest, FindsWhatALookThroughAllFinds) {
  for (const int64_t vocabulary : {1, 2, 5}) {
    const std::vector<int64_t> tokens = random_tokens(300, vocabulary, 3);
    const auto store = store_of(tokens);
    EXPECT_EQ(store->size(), 300);
    EXPECT_EQ(store->tokenizer(), kDigest);
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i) {
      const std::vector<int64_t> wanted =
          random_tokens(1 + static_cast<int64_t>(random() % 6), vocabulary, static_cast<unsigned>(i));
      const Datastore::Range range = store->find(wanted);
      int64_t there = 0;
      for (size_t at = 0; at + wanted.size() <= tokens.size(); ++at)
        there += std::equal(wanted.begin(), wanted.end(), tokens.begin() + static_cast<int64_t>(at)) ? 1 : 0;
      EXPECT_EQ(range.size(), there);
      for (int64_t p = range.first; p < range.last; ++p) {
        for (size_t t = 0; t < wanted.size(); ++t)
          EXPECT_EQ(store->token(p, static_cast<int64_t>(t)), wanted[t]);
      }
    }
  }
}

TEST_F(DatastoreTest, EqualTokensGiveEqualBytes) {
  const std::vector<int64_t> tokens = random_tokens(500, 3, 3);
  Datastore::build(tokens, kDigest, dir_ / "a.qds");
  Datastore::build(tokens, kDigest, dir_ / "b.qds");
  EXPECT_EQ(read_all(dir_ / "a.qds"), read_all(dir_ / "b.qds"));
}

TEST_F(DatastoreTest, AnEmptyOneFindsNothing) {
  EXPECT_EQ(store_of({})->find(std::vector<int64_t>{1}).size(), 0);
}

TEST_F(DatastoreTest, DamageIsNoticed) {
  store_of(random_tokens(100, 50, 1));
  const std::string good = read_all(dir_ / "store.qds");
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(dir_ / "bad.qds", std::ios::binary) << bytes;
    EXPECT_QUERN_ERROR(Datastore::open(dir_ / "bad.qds"), ErrorCode::Corrupt, "bad.qds");
  };
  for (const size_t at : {0UL, 9UL, 13UL, 17UL, 30UL, 57UL, 64UL, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    refused(bad);
  }
  for (const size_t size : {0UL, 63UL, 64UL, 100UL, good.size() - 4}) refused(good.substr(0, size));
  EXPECT_QUERN_ERROR(Datastore::build(std::vector<int64_t>{-1}, kDigest, dir_ / "no.qds"),
                     ErrorCode::InvalidArgument, "-1");
}

Proposal propose(DatastoreDrafter& drafter, std::vector<int64_t> tokens, int64_t limit, int64_t most) {
  GenerationStream stream;
  stream.tokens = std::move(tokens);
  GenerationStream* streams[] = {&stream};
  std::vector<Proposal> proposals(1);
  Pacing pacing({.adaptive = false, .most = most}, drafter.classes());
  pacing.begin_round(1, 100);
  drafter.propose(streams, std::span(&limit, 1), pacing, proposals);
  return proposals.front();
}

TEST_F(DatastoreTest, TheMostFrequentFollowersAreProposedFirst) {
  // After "1 2": 3 three times (4 behind it twice, 5 once), 6 once.
  DatastoreDrafter drafter(store_of({1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 6, 7, 7}));
  const Proposal tree = propose(drafter, {5, 5, 1, 2}, 2, 16);
  ASSERT_GE(tree.size(), 4U);
  EXPECT_EQ(std::vector<int64_t>(tree.tokens.begin(), tree.tokens.begin() + 2), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(std::vector<int32_t>(tree.parents.begin(), tree.parents.begin() + 2),
            (std::vector<int32_t>{-1, 0}));
  std::vector<std::pair<int64_t, int64_t>> edges;
  for (size_t i = 0; i < tree.size(); ++i) {
    ASSERT_LT(tree.parents[i], static_cast<int32_t>(i));
    ASSERT_LT(tree.classes[i], drafter.classes());
    edges.emplace_back(tree.parents[i] < 0 ? 0 : tree.tokens[static_cast<size_t>(tree.parents[i])],
                       tree.tokens[i]);
  }
  std::sort(edges.begin(), edges.end());
  EXPECT_EQ(edges, (std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {0, 6}, {3, 4}, {3, 5}, {6, 7}}));
  EXPECT_EQ(propose(drafter, {5, 5, 1, 2}, 2, 3).size(), 3U);
  EXPECT_EQ(propose(drafter, {5, 5, 1, 2}, 1, 16).size(), 2U);
  EXPECT_TRUE(propose(drafter, {55}, 4, 16).empty());
  // The store's last token has nothing behind it.
  EXPECT_EQ(propose(drafter, {6, 7, 7}, 4, 16).size(), 0U);
}

// Exact whatever the store holds, the model's own texts among it.
TEST_F(DatastoreTest, GreedyTokensAreThoseOfPlainDecoding) {
  for (const DType weights : {DType::F32, DType::I8, DType::I4}) {
    test::DecoderShape shape;
    shape.weights = weights;
    const auto program = Program::compile(*test::random_decoder(shape));
    Session session(program, {.threads = 1});
    const std::vector<std::vector<int64_t>> prompts = {random_tokens(30, 97, 1), random_tokens(20, 97, 2)};
    const GenerateOutput plain = generate(session, prompts, {.max_new_tokens = 40});
    std::vector<int64_t> corpus = random_tokens(400, 97, 9);
    for (const GenerateResult& result : plain.results) {
      corpus.insert(corpus.end(), result.ids.begin(), result.ids.begin() + 25);
      corpus.insert(corpus.end(), result.ids.begin() + 3, result.ids.begin() + 9);
      corpus.push_back(5);
    }
    const auto store = store_of(corpus);
    for (const int64_t most : {1, 2, 5, 16, 40}) {
      for (const bool adaptive : {false, true}) {
        GenerateOptions options{.max_new_tokens = 40};
        options.strategy = [&](Session& s, Sampler& sampler) {
          return std::make_unique<SpeculativeDecoding>(s, sampler, std::make_unique<DatastoreDrafter>(store),
                                                       PacingOptions{.adaptive = adaptive, .most = most});
        };
        const GenerateOutput output = generate(session, prompts, options);
        for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(output.results[i].ids, plain.results[i].ids);
        if (!adaptive) {
          EXPECT_GT(output.speculation->accepted, 5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quern::runtime
