// Whatever is appended, taken back, forked and kept: a sequence's next logits are those of a fresh prefill,
// bit for bit.
#include "runtime/decoder/sequence.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runtime/cpu/isa.h"
#include "runtime/decoder/session.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::DecoderShape;
using test::random_decoder;
using test::random_tokens;

// By one thread: what more of them do is the business of session_test.cpp.
class SequenceTest : public testing::TestWithParam<test::NamedDecoder> {
 protected:
  SequenceTest()
      : graph_(random_decoder(GetParam().shape)),
        program_(Program::compile(*graph_)),
        session_(program_, {.threads = 1, .cache_dtype = GetParam().cache}),
        fresh_(program_, {.threads = 1, .cache_dtype = GetParam().cache}) {}

  std::vector<float> last_logits(Session& session, std::span<const int64_t> tokens) {
    Sequence sequence = session.new_sequence();
    const auto row = session.run(sequence, tokens);
    return {row.begin(), row.end()};
  }

  // Appends one more token to (a fork of) the sequence and compares with a fresh prefill.
  testing::AssertionResult is_like_fresh(const Sequence& sequence, int64_t next) {
    std::vector<int64_t> tokens(sequence.tokens().begin(), sequence.tokens().end());
    tokens.push_back(next);
    Sequence probe = sequence.fork();
    const auto got = session_.run(probe, std::span(tokens).last(1));
    const std::vector<float> wanted = last_logits(fresh_, tokens);
    if (std::memcmp(got.data(), wanted.data(), got.size_bytes()) == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "a sequence of " << tokens.size() << " tokens differs from a fresh prefill";
  }

  std::unique_ptr<Graph> graph_;
  std::shared_ptr<const Program> program_;
  Session session_;
  Session fresh_;
};

TEST_P(SequenceTest, RandomWalk) {
  const int64_t vocabulary = GetParam().shape.vocabulary;
  std::mt19937 random(17);
  const auto upto = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  std::vector<Sequence> sequences;
  std::vector<std::vector<int64_t>> texts;
  sequences.push_back(session_.new_sequence());
  texts.emplace_back();
  for (int round = 0; round < 120; ++round) {
    const auto i = static_cast<size_t>(upto(static_cast<int64_t>(sequences.size()) - 1));
    Sequence& sequence = sequences[i];
    std::vector<int64_t>& text = texts[i];
    switch (upto(3)) {
      case 0: {  // rewind
        const int64_t count = upto(std::min<int64_t>(sequence.size(), 30));
        sequence.rewind(count);
        text.resize(text.size() - static_cast<size_t>(count));
        break;
      }
      case 1: {  // fork, or drop one
        if (sequences.size() < 5) {
          sequences.push_back(sequence.fork());
          texts.push_back(std::vector<int64_t>(text));
        } else {
          sequences.erase(sequences.begin() + static_cast<int64_t>(i));
          texts.erase(texts.begin() + static_cast<int64_t>(i));
        }
        break;
      }
      default: {  // append
        if (text.size() > 200) break;
        const auto more = random_tokens(1 + upto(40), vocabulary, static_cast<unsigned>(round));
        session_.run(sequence, more);
        text.insert(text.end(), more.begin(), more.end());
      }
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      ASSERT_EQ(std::vector<int64_t>(sequences[s].tokens().begin(), sequences[s].tokens().end()), texts[s]);
    }
    if (round % 4 == 3) {
      const auto s = static_cast<size_t>(upto(static_cast<int64_t>(sequences.size()) - 1));
      ASSERT_TRUE(is_like_fresh(sequences[s], 1)) << "round " << round;
    }
  }
  sequences.clear();
  EXPECT_EQ(session_.cache_bytes(), 0);
}

// A tree's tokens get the logits that their paths would get as chains, and what is kept goes on like a chain.
TEST_P(SequenceTest, Trees) {
  const int64_t vocabulary = GetParam().shape.vocabulary;
  std::mt19937 random(5);
  for (const int64_t prefix_size : {1, 30, 60, 63, 64, 127}) {
    const std::vector<int64_t> prefix = random_tokens(prefix_size, vocabulary, 3);
    for (const int64_t nodes : {1, 2, 7, 20}) {
      const std::vector<int64_t> tokens = random_tokens(nodes, vocabulary, static_cast<unsigned>(nodes));
      std::vector<int32_t> parents;
      for (int32_t i = 0; i < nodes; ++i)
        parents.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(i + 1)) - 1);
      Sequence sequence = session_.new_sequence(), company = session_.new_sequence();
      session_.run(sequence, prefix);
      const std::vector<SequenceStep> steps = {
          {.sequence = &company, .tokens = std::span(prefix).first(1)},
          {.sequence = &sequence, .tokens = tokens, .parents = parents, .logits = LogitsFor::All}};
      session_.run(steps);
      ASSERT_TRUE(sequence.has_undecided_tree());
      EXPECT_EQ(sequence.size(), prefix_size + nodes);
      const std::vector<int64_t> one = {1};
      EXPECT_QUERN_ERROR(session_.run(sequence, one), ErrorCode::InvalidArgument, "keep");
      session_.run({steps.data(), 0});
      // Again, for the failed calls have invalidated the logits.
      sequence.keep({});
      session_.run(std::span(steps).last(1));
      std::vector<int32_t> longest;
      for (int32_t i = 0; i < nodes; ++i) {
        std::vector<int32_t> path;
        for (int32_t node = i; node >= 0; node = parents[static_cast<size_t>(node)])
          path.insert(path.begin(), node);
        std::vector<int64_t> text = prefix;
        for (const int32_t node : path) text.push_back(tokens[static_cast<size_t>(node)]);
        const auto got = session_.logits(0, i);
        const std::vector<float> wanted = last_logits(fresh_, text);
        EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size_bytes()), 0)
            << "node " << i << " of " << nodes;
        if (path.size() > longest.size()) longest = path;
      }
      const std::vector<int32_t> nonsense = {static_cast<int32_t>(nodes)};
      EXPECT_QUERN_ERROR(sequence.keep(nonsense), ErrorCode::InvalidArgument, "does not follow");
      EXPECT_QUERN_ERROR(sequence.fork(), ErrorCode::InvalidArgument, "keep");
      sequence.keep(longest);
      EXPECT_EQ(sequence.size(), prefix_size + static_cast<int64_t>(longest.size()));
      EXPECT_TRUE(is_like_fresh(sequence, 2)) << prefix_size << " + tree of " << nodes;
      EXPECT_QUERN_ERROR(sequence.rewind(sequence.size() + 1), ErrorCode::InvalidArgument, "go back");
    }
  }
}

std::vector<test::NamedDecoder> some_variations() {
  std::vector<test::NamedDecoder> all = test::decoder_variations(), some;
  for (const auto& decoder : all) {
    // Where frequencies change with the length, forks of a tree's tokens are not of one mind.
    if (decoder.shape.original_context == 0) some.push_back(decoder);
  }
  for (const DType cache : {DType::F16, DType::I8, DType::I4}) {
    test::DecoderShape windowed;
    windowed.window = 20;
    const std::string name = "cache_" + std::string(to_string(cache));
    some.push_back({.name = name, .shape = {}, .cache = cache});
    some.push_back({.name = name + "_window", .shape = windowed, .cache = cache});
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(All, SequenceTest, testing::ValuesIn(some_variations()),
                         [](const auto& info) { return info.param.name; });

TEST(Sequence, LongFrequenciesFollowTheLength) {
  DecoderShape shape;
  shape.original_context = 40;
  const auto graph = random_decoder(shape);
  const auto program = Program::compile(*graph);
  Session session(program, {.threads = 2});
  const std::vector<int64_t> tokens = random_tokens(60, shape.vocabulary, 1);
  const auto fresh = [&](int64_t count) {
    Sequence sequence = session.new_sequence();
    const auto row = session.run(sequence, std::span(tokens).first(static_cast<size_t>(count)));
    return std::vector<float>(row.begin(), row.end());
  };
  Sequence sequence = session.new_sequence();
  session.run(sequence, std::span(tokens).first(39));
  for (int64_t size = 40; size <= 45; ++size) {
    const auto row = session.run(sequence, std::span(tokens).subspan(static_cast<size_t>(size) - 1, 1));
    EXPECT_EQ(std::vector<float>(row.begin(), row.end()), fresh(size)) << size;
  }
  sequence.rewind(7);
  const auto row = session.run(sequence, std::span(tokens).subspan(38, 1));
  EXPECT_EQ(std::vector<float>(row.begin(), row.end()), fresh(39));
}

// Several that cross the length in one run have blocks of their own.
TEST(Sequence, LongFrequenciesOfManySequences) {
  DecoderShape shape;
  shape.original_context = 40;
  const auto program = Program::compile(*random_decoder(shape));
  Session session(program, {.threads = 1}), fresh(program, {.threads = 1});
  std::vector<Sequence> sequences;
  std::vector<std::vector<int64_t>> texts;
  for (unsigned i = 0; i < 4; ++i) {
    sequences.push_back(session.new_sequence());
    texts.push_back(random_tokens(40, shape.vocabulary, i));
    session.run(sequences.back(), texts.back());
    texts.back().push_back(7);
  }
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < 4; ++i)
    steps.push_back({.sequence = &sequences[i], .tokens = std::span(texts[i]).last(1)});
  session.run(steps);
  for (size_t i = 0; i < 4; ++i) {
    Sequence alone = fresh.new_sequence();
    const auto wanted = fresh.run(alone, texts[i]);
    const auto got = session.logits(i);
    EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size_bytes()), 0) << i;
  }
}

TEST(Sequence, WindowsDropWhatTheyPassed) {
  DecoderShape shape;
  shape.window = 20;
  shape.layers = 1;  // the one with the window
  const auto graph = random_decoder(shape);
  const auto program = Program::compile(*graph);
  Session session(program, {.threads = 1, .max_rows = 100}), fresh(program, {.threads = 1});
  const std::vector<int64_t> tokens = random_tokens(1500, shape.vocabulary, 1);
  Sequence sequence = session.new_sequence();
  session.run(sequence, std::span(tokens).first(1400));
  // The window, the slack for going back, and the rows of a pass; not 1400 positions.
  const int64_t position = 2 * (12 + 16) * 4;
  EXPECT_LE(session.peak_cache_bytes(), position * (20 + 256 + 100 + 3 * 64));
  EXPECT_QUERN_ERROR(sequence.rewind(1000), ErrorCode::InvalidArgument, "window");
  sequence.rewind(200);
  const auto got = session.run(sequence, std::span(tokens).subspan(1200, 50));
  Sequence other = fresh.new_sequence();
  const auto wanted = fresh.run(other, std::span(tokens).first(1250));
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size_bytes()), 0);
  // All of it can always go.
  sequence.rewind(sequence.size());
  EXPECT_EQ(session.cache_bytes(), 0);
}

TEST(Sequence, MayOutliveItsSession) {
  const auto graph = random_decoder({});
  Sequence sequence;
  {
    Session session(Program::compile(*graph), {.threads = 1});
    sequence = session.new_sequence();
    session.run(sequence, random_tokens(10, 97, 1));
  }
  EXPECT_EQ(sequence.size(), 10);
  sequence.rewind(4);
  EXPECT_EQ(sequence.size(), 6);
  Sequence none;
  EXPECT_EQ(none.size(), 0);
  EXPECT_QUERN_ERROR(none.rewind(0), ErrorCode::InvalidArgument, "empty sequence");
}

}  // namespace
}  // namespace quern::runtime
