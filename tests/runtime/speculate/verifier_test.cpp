// The acceptance rules have the distribution of plain sampling: chi-square tests on small vocabularies, of
// one token and of three together against enumeration.
#include "runtime/speculate/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include "tests/runtime/speculate/statistics.h"

namespace quern::runtime {
namespace {

constexpr int64_t kDraws = 200'000;

// A model by a table: its logits are a fixed function of the last two tokens.
class TableModel {
 public:
  TableModel(int64_t vocabulary, unsigned seed, float spread) : vocabulary_(vocabulary) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, spread);
    for (int64_t i = 0; i < vocabulary * vocabulary; ++i) {
      std::vector<float>& row = rows_.emplace_back();
      for (int64_t v = 0; v < vocabulary; ++v) row.push_back(normal(random));
    }
  }
  std::span<const float> logits(std::span<const int64_t> history) const {
    const int64_t before = history.size() > 1 ? history[history.size() - 2] : 0;
    return rows_[static_cast<size_t>(before * vocabulary_ + history.back())];
  }
  std::vector<std::vector<float>>& rows() { return rows_; }

 private:
  int64_t vocabulary_;
  std::vector<std::vector<float>> rows_;
};

// Names what is proposed after a history.
using Propose = std::function<Proposal(std::span<const int64_t> history, RandomStream& random)>;

struct Setting {
  int64_t vocabulary = 6;
  SamplingOptions sampling = {.sample = true};
  TableModel model{6, 1, 1.5f};
};

// Counts of the first `length` tokens, over many texts that begin with token 1.
std::vector<int64_t> count(const Setting& setting, size_t length, const Propose& propose, int64_t draws) {
  Sampler sampler(setting.sampling);
  Verifier verifier(sampler);
  size_t cells = 1;
  for (size_t i = 0; i < length; ++i) cells *= static_cast<size_t>(setting.vocabulary);
  std::vector<int64_t> counts(cells);
  for (int64_t draw = 0; draw < draws; ++draw) {
    RandomStream random(11, static_cast<uint64_t>(draw)), guesses(12, static_cast<uint64_t>(draw));
    std::vector<int64_t> text = {1};
    while (text.size() < length + 1) {
      const std::vector<int64_t> before = text;
      const Proposal proposal = propose(before, guesses);
      verifier.judge(
          proposal,
          [&](int32_t node) {
            // The model looks two tokens back.
            int64_t end[2] = {before.size() > 1 ? before[before.size() - 2] : 0, before.back()};
            std::vector<int64_t> path;
            for (; node >= 0; node = proposal.parents[static_cast<size_t>(node)])
              path.push_back(proposal.tokens[static_cast<size_t>(node)]);
            for (; !path.empty(); path.pop_back()) {
              end[0] = end[1];
              end[1] = path.back();
            }
            return setting.model.logits(end);
          },
          text, random);
    }
    size_t cell = 0;
    for (size_t i = 1; i <= length; ++i)
      cell = cell * static_cast<size_t>(setting.vocabulary) + static_cast<size_t>(text[i]);
    ++counts[cell];
  }
  return counts;
}

// The same by enumeration.
std::vector<double> enumerate(const Setting& setting, size_t length) {
  Sampler sampler(setting.sampling);
  std::vector<double> probabilities = {1};
  std::vector<std::vector<int64_t>> texts = {{1}};
  for (size_t i = 0; i < length; ++i) {
    std::vector<double> next;
    std::vector<std::vector<int64_t>> longer;
    for (size_t t = 0; t < texts.size(); ++t) {
      std::vector<double> row(static_cast<size_t>(setting.vocabulary));
      for (const auto& token : sampler.distribution(setting.model.logits(texts[t]), texts[t]))
        row[static_cast<size_t>(token.id)] = token.probability;
      for (int64_t v = 0; v < setting.vocabulary; ++v) {
        next.push_back(probabilities[t] * row[static_cast<size_t>(v)]);
        longer.push_back(texts[t]);
        longer.back().push_back(v);
      }
    }
    probabilities.swap(next);
    texts.swap(longer);
  }
  return probabilities;
}

std::vector<TokenProbability> to_vector(std::span<const TokenProbability> span) {
  return {span.begin(), span.end()};
}

// Chains drawn from another model.
Propose drawn_chain(const TableModel& draft, const SamplingOptions& sampling, int length) {
  return [&draft, own = std::make_shared<Sampler>(sampling), length](std::span<const int64_t> history,
                                                                     RandomStream& random) {
    Sampler& sampler = *own;
    Proposal proposal;
    std::vector<int64_t> text(history.begin(), history.end());
    for (int i = 0; i < length; ++i) {
      const auto q = to_vector(sampler.distribution(draft.logits(text), text));
      text.push_back(draw(q, random));
      proposal.add(text.back(), i - 1, 0);
      proposal.drawn_from.push_back(q);
    }
    return proposal;
  };
}

// A tree of three levels, three children each of the first node of a level, drawn from another model.
Propose drawn_tree(const TableModel& draft, const SamplingOptions& sampling) {
  return [&draft, own = std::make_shared<Sampler>(sampling)](std::span<const int64_t> history,
                                                             RandomStream& random) {
    Sampler& sampler = *own;
    Proposal proposal;
    std::vector<int64_t> text(history.begin(), history.end());
    int32_t parent = -1;
    for (int level = 0; level < 3; ++level) {
      const auto q = to_vector(sampler.distribution(draft.logits(text), text));
      const auto first = static_cast<int32_t>(proposal.size());
      for (int child = 0; child < 3; ++child) {
        proposal.add(draw(q, random), parent, 0);
        proposal.drawn_from.push_back(q);
      }
      parent = first;
      text.push_back(proposal.tokens[static_cast<size_t>(first)]);
    }
    return proposal;
  };
}

// The most likely tokens of another model, chosen: a tree of two levels of two.
Propose chosen_tree(const TableModel& draft) {
  return [&draft](std::span<const int64_t> history, RandomStream&) {
    Proposal proposal;
    const auto best_two = [&](std::span<const int64_t> text) {
      const std::span<const float> logits = draft.logits(text);
      std::vector<int64_t> ids(logits.size());
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
      std::sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      ids.resize(2);
      return ids;
    };
    std::vector<int64_t> text(history.begin(), history.end());
    for (const int64_t first : best_two(text)) {
      const auto parent = static_cast<int32_t>(proposal.size());
      proposal.add(first, -1, 0);
      text.push_back(first);
      for (const int64_t second : best_two(text)) proposal.add(second, parent, 0);
      text.pop_back();
    }
    return proposal;
  };
}

Proposal nothing(std::span<const int64_t>, RandomStream&) {
  return {};
}

struct NamedRule {
  std::string name;
  Propose propose;
};

class VerifierTest : public testing::Test {
 protected:
  // Every rule, on this setting.
  void expect_exact(const Setting& setting, size_t length, int64_t draws = kDraws) {
    const std::vector<double> wanted = enumerate(setting, length);
    TableModel same = setting.model, other(setting.vocabulary, 2, 1.0f), reversed = setting.model;
    for (auto& row : reversed.rows())
      for (float& logit : row) logit = -logit;
    TableModel missing = setting.model;  // gives what the model likes best no probability at all
    for (auto& row : missing.rows()) *std::max_element(row.begin(), row.end()) = -1e30f;
    const SamplingOptions plain = {.sample = true};
    const std::vector<NamedRule> rules = {
        {"plain", nothing},
        {"chain of the same model", drawn_chain(same, setting.sampling, 3)},
        {"chain of another", drawn_chain(other, setting.sampling, 3)},
        {"chain of another without processors", drawn_chain(other, plain, 2)},
        {"chain of the reverse", drawn_chain(reversed, setting.sampling, 3)},
        {"chain that misses the best", drawn_chain(missing, plain, 3)},
        {"tree of another", drawn_tree(other, setting.sampling)},
        {"tree of the reverse", drawn_tree(reversed, plain)},
        {"tree of the same", drawn_tree(same, setting.sampling)},
        {"chosen tree", chosen_tree(other)},
    };
    for (const NamedRule& rule : rules) {
      EXPECT_TRUE(test::fits(count(setting, length, rule.propose, draws), wanted))
          << rule.name << ", " << length << " tokens";
    }
  }
};

TEST_F(VerifierTest, OneTokenHasTheModelsDistribution) {
  expect_exact({.vocabulary = 6}, 1);
}

TEST_F(VerifierTest, ThreeTokensHaveTheModelsJointDistribution) {
  Setting setting{.vocabulary = 4, .model = TableModel(4, 5, 1.2f)};
  expect_exact(setting, 3);
}

TEST_F(VerifierTest, ProcessorsAreRespected) {
  Setting setting{.vocabulary = 6, .model = TableModel(6, 7, 1.2f)};
  setting.sampling = {
      .sample = true, .temperature = 0.8f, .top_k = 4, .top_p = 0.9f, .repetition_penalty = 1.3f};
  expect_exact(setting, 2, 50'000);
}

// The same seed gives the same text where tokens are chosen, whatever is proposed.
TEST_F(VerifierTest, ChosenTokensLeaveTheTextAsItIs) {
  const Setting setting;
  TableModel other(6, 9, 1.0f);
  const std::vector<int64_t> plain = count(setting, 3, nothing, 2000);
  EXPECT_EQ(count(setting, 3, chosen_tree(other), 2000), plain);
  EXPECT_EQ(count(setting, 3, chosen_tree(setting.model), 2000), plain);
}

// The rule that Medusa's and REST's published code has: a fresh draw from p where the proposal was rejected.
// The test must see that this is wrong, or it would see nothing.
TEST_F(VerifierTest, WouldNoticeAWrongRule) {
  const Setting setting;
  Sampler sampler(setting.sampling);
  const std::vector<int64_t> history = {1};
  const auto p = to_vector(sampler.distribution(setting.model.logits(history), history));
  std::vector<double> wanted(6);
  for (const auto& token : p) wanted[static_cast<size_t>(token.id)] = token.probability;
  std::vector<int64_t> counts(6);
  RandomStream random(3);
  for (int64_t i = 0; i < kDraws; ++i) {
    const int64_t proposed = 0;
    const bool accepted = random.next_uniform() < wanted[0];
    ++counts[static_cast<size_t>(accepted ? proposed : draw(p, random))];
  }
  EXPECT_FALSE(test::fits(counts, wanted));
}

TEST_F(VerifierTest, CountsWhatItLookedAt) {
  Sampler greedy({});
  Verifier verifier(greedy);
  const std::vector<float> two = {0, 0, 1}, one = {0, 1, 0};
  Proposal proposal;
  proposal.add(0, -1, 0);
  proposal.add(2, -1, 0);
  proposal.add(0, 0, 0);  // behind the rejected one: never looked at
  proposal.add(0, 1, 0);
  std::vector<int64_t> history = {1};
  RandomStream random;
  const Verdict& verdict = verifier.judge(
      proposal, [&](int32_t node) { return std::span<const float>(node < 0 ? two : one); }, history, random);
  EXPECT_EQ(verdict.path, std::vector<int32_t>{1});
  EXPECT_EQ(verdict.tokens, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(history, (std::vector<int64_t>{1, 2, 1}));
  ASSERT_EQ(verdict.evaluated.size(), 3U);
  EXPECT_FALSE(verdict.evaluated[0].accepted);
  EXPECT_TRUE(verdict.evaluated[1].accepted);
  EXPECT_EQ(verdict.evaluated[2].node, 3);
}

TEST(Proposal, KeepsWhatItIsTold) {
  Proposal proposal;
  for (int32_t i = 0; i < 5; ++i) proposal.add(10 + i, i < 2 ? -1 : i - 2, i);
  proposal.drawn_from.resize(5);
  proposal.drawn_from[3] = {{7, 1.0}};
  EXPECT_FALSE(proposal.is_chain());
  const std::vector<int32_t> kept = {1, 3};
  proposal.keep(kept);
  EXPECT_EQ(proposal.tokens, (std::vector<int64_t>{11, 13}));
  EXPECT_EQ(proposal.parents, (std::vector<int32_t>{-1, 0}));
  EXPECT_EQ(proposal.classes, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(proposal.drawn_from[1].front().id, 7);
  EXPECT_TRUE(proposal.is_chain());
}

}  // namespace
}  // namespace quern::runtime
