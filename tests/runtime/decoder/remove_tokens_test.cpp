// Tokens that go out of the middle of a sequence, against attention over the kept keys and values at shifted
// positions, computed without a cache.
#include "runtime/decoder/remove_tokens.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/cpu/isa.h"
#include "runtime/prefix/prefix_cache.h"
#include "runtime/prefix/sequence_file.h"
#include "tests/runtime/decoder/naive_decoder.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::runtime {
namespace {

using test::NaiveDecoder;
using test::random_decoder;
using test::random_tokens;

using Rows = std::vector<std::vector<float>>;

void append(Session& session, Sequence& sequence, std::span<const int64_t> tokens, Rows& rows) {
  const SequenceStep step{.sequence = &sequence, .tokens = tokens, .logits = LogitsFor::All};
  session.run({&step, 1});
  for (int64_t i = 0; i < session.logit_rows(0); ++i) {
    const auto row = session.logits(0, i);
    rows.emplace_back(row.begin(), row.end());
  }
}

// Appends the tokens, and takes some out where the removals say so.
Rows run_with(Session& session, std::span<const int64_t> tokens,
              const std::vector<NaiveDecoder::Removal>& removals) {
  Sequence sequence = session.new_sequence();
  Rows rows;
  size_t done = 0;
  for (const auto& [at, first, count] : removals) {
    append(session, sequence, tokens.subspan(done, at - done), rows);
    EXPECT_TRUE(remove_tokens(session, sequence, static_cast<int64_t>(first), static_cast<int64_t>(count)));
    done = at;
  }
  append(session, sequence, tokens.subspan(done), rows);
  return rows;
}

// The greatest difference, as a share of the greatest logit.
double worst_difference(const Rows& got, const NaiveDecoder::Rows& wanted) {
  EXPECT_EQ(got.size(), wanted.size());
  double worst = 0, scale = 0;
  for (size_t t = 0; t < got.size(); ++t) {
    for (size_t i = 0; i < got[t].size(); ++i) {
      worst = std::max(worst, std::fabs(got[t][i] - wanted[t][i]));
      scale = std::max(scale, std::fabs(wanted[t][i]));
    }
  }
  return worst / scale;
}

class RemoveTokensTest : public testing::TestWithParam<test::NamedDecoder> {};

TEST_P(RemoveTokensTest, WhatFollowsSeesTheRestAtNewPositions) {
  const auto graph = random_decoder(GetParam().shape);
  const std::vector<int64_t> tokens = random_tokens(215, 97, 3);
  // Both by halves, from the first place, across blocks and within one, and by whole blocks.
  const std::vector<NaiveDecoder::Removal> removals = {{120, 4, 58}, {150, 0, 5}, {170, 70, 3}, {185, 3, 64}};
  const auto wanted = NaiveDecoder(*graph).run(tokens, removals);
  // That it matters what is taken out, and that it is not the same as never having been there.
  EXPECT_GT(worst_difference(
                run_with(*std::make_unique<Session>(Program::compile(*graph), SessionOptions{.threads = 1}),
                         tokens, {}),
                wanted),
            1e-2);
  for (const bool reference : {false, true}) {
    const cpu::ForcedKernels forced(cpu::active_isa(), reference);
    const auto program = Program::compile(*graph);
    for (const DType cache : {DType::F32, DType::F16}) {
      Session session(program, {.threads = 1, .cache_dtype = cache});
      EXPECT_EQ(fixed_positions(session), "");
      EXPECT_LT(worst_difference(run_with(session, tokens, removals), wanted),
                cache == DType::F32 ? 2e-4 : 5e-3)
          << to_string(cache) << (reference ? ", reference" : "");
      EXPECT_EQ(session.cache_bytes(), 0);
    }
  }
}

std::vector<test::NamedDecoder> movable() {
  std::vector<test::NamedDecoder> some;
  for (const auto& decoder : test::decoder_variations()) {
    for (const char* name :
         {"llama", "head_norm", "parallel", "window_softcap", "sinks_interleaved", "alibi"}) {
      if (decoder.name == name) some.push_back(decoder);
    }
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(All, RemoveTokensTest, testing::ValuesIn(movable()),
                         [](const auto& info) { return info.param.name; });

// The keys and values of a single layer say nothing of the tokens before: what is left is what a prefill
// gives.
TEST(RemoveTokens, OfOneLayerTheRestIsAFreshPrefill) {
  for (const DType cache : {DType::F32, DType::F16, DType::I8, DType::I4}) {
    for (const bool alibi : {true, false}) {
      if (!alibi && cache != DType::F32) continue;
      Session session(Program::compile(*random_decoder({.layers = 1, .alibi = alibi})),
                      {.threads = 1, .cache_dtype = cache});
      std::vector<int64_t> tokens = random_tokens(200, 97, 3);
      Sequence sequence = session.new_sequence(), fresh = session.new_sequence();
      session.run(sequence, std::span(tokens).first(199));
      ASSERT_TRUE(remove_tokens(session, sequence, 3, 90));
      const auto row = session.run(sequence, std::span(tokens).last(1));
      const std::vector<float> got(row.begin(), row.end());
      tokens.erase(tokens.begin() + 3, tokens.begin() + 93);
      EXPECT_TRUE(
          std::equal(tokens.begin(), tokens.end(), sequence.tokens().begin(), sequence.tokens().end()));
      const auto wanted = session.run(fresh, tokens);
      // Unturned keys stay as they are, to the bit.
      if (alibi) {
        EXPECT_EQ(std::memcmp(got.data(), wanted.data(), wanted.size_bytes()), 0) << to_string(cache);
      }
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4);
    }
  }
}

TEST(RemoveTokens, WindowsKeepWhatTheyStillHave) {
  const auto graph = random_decoder({.layers = 1, .window = 20});
  Session session(Program::compile(*graph), {.threads = 1});
  const std::vector<int64_t> tokens = random_tokens(1200, 97, 8);
  // By then the first blocks are gone.
  const std::vector<NaiveDecoder::Removal> removals = {{1000, 4, 498}, {1020, 4, 258}};
  EXPECT_LT(worst_difference(run_with(session, tokens, removals), NaiveDecoder(*graph).run(tokens, removals)),
            2e-4);
  // What is left is shorter than the window and needs the beginning.
  Sequence sequence = session.new_sequence();
  for (size_t i = 0; i < tokens.size(); i += 100) session.run(sequence, std::span(tokens).subspan(i, 100));
  EXPECT_FALSE(remove_tokens(session, sequence, 4, 1190));
  EXPECT_EQ(sequence.size(), 1200);
  // Going back stays possible as far as the window goes, no farther.
  ASSERT_TRUE(remove_tokens(session, sequence, 4, 600));
  EXPECT_THROW(sequence.rewind(500), Error);
  EXPECT_NO_THROW(sequence.rewind(100));
}

TEST(RemoveTokens, FixedPositionsAreNamed) {
  for (const auto& decoder : test::decoder_variations()) {
    const bool fixed = decoder.name == "gpt2" || decoder.name == "long_frequencies";
    const auto program = Program::compile(*random_decoder(decoder.shape));
    Session session(program, {.threads = 1});
    EXPECT_EQ(!fixed_positions(session).empty(), fixed) << decoder.name << ": " << fixed_positions(session);
    Session codes(program, {.threads = 1, .cache_dtype = DType::I8});
    EXPECT_EQ(!fixed_positions(codes).empty(), fixed || decoder.name != "alibi") << decoder.name;
    if (!fixed) continue;
    Sequence sequence = session.new_sequence();
    session.run(sequence, random_tokens(20, 97, 1));
    EXPECT_FALSE(remove_tokens(session, sequence, 3, 4));
    EXPECT_EQ(sequence.size(), 20);
  }
}

TEST(RemoveTokens, ForksAreLeftAlone) {
  Session session(Program::compile(*random_decoder({})), {.threads = 1});
  const std::vector<int64_t> tokens = random_tokens(150, 97, 3);
  Sequence sequence = session.new_sequence();
  session.run(sequence, tokens);
  Sequence fork = sequence.fork(), probe = sequence.fork();
  const int64_t next = 5;
  const auto row = session.run(probe, {&next, 1});
  const std::vector<float> wanted(row.begin(), row.end());
  ASSERT_TRUE(remove_tokens(session, sequence, 4, 70));
  const auto got = session.run(fork, {&next, 1});
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size_bytes()), 0);
}

TEST(RemoveTokens, WithoutRoomForCopiesNothingChanges) {
  const int64_t block = 2 * (12 + 16) * 64 * 4;
  Session session(Program::compile(*random_decoder({})), {.threads = 1, .cache_memory = 2 * block * 4});
  const std::vector<int64_t> tokens = random_tokens(190, 97, 3);
  Sequence sequence = session.new_sequence();
  session.run(sequence, tokens);
  {
    const Sequence fork = sequence.fork();
    EXPECT_QUERN_ERROR(remove_tokens(session, sequence, 1, 60), ErrorCode::OutOfMemory, "cache memory");
  }
  EXPECT_EQ(sequence.size(), 190);
  Session fresh(Program::compile(*random_decoder({})), {.threads = 1});
  Sequence other = fresh.new_sequence();
  fresh.run(other, tokens);
  const int64_t next = 5;
  const auto got = session.run(sequence, {&next, 1}), wanted = fresh.run(other, {&next, 1});
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size_bytes()), 0);
  // Alone it needs no more memory than it has.
  EXPECT_TRUE(remove_tokens(session, sequence, 1, 60));
}

TEST(RemoveTokens, SuchSequencesAreNotKept) {
  const test::TempDir dir;
  Session session(Program::compile(*random_decoder({})), {.threads = 1});
  Sequence sequence = session.new_sequence();
  session.run(sequence, random_tokens(50, 97, 3));
  EXPECT_QUERN_ERROR(remove_tokens(session, sequence, 40, 11), ErrorCode::InvalidArgument, "place 40",
                     "of 50");
  EXPECT_QUERN_ERROR(remove_tokens(session, sequence, -1, 1), ErrorCode::InvalidArgument);
  ASSERT_TRUE(remove_tokens(session, sequence, 2, 10));
  PrefixCache cache(session);
  EXPECT_QUERN_ERROR(cache.keep(sequence, 30), ErrorCode::InvalidArgument, "lost tokens");
  EXPECT_QUERN_ERROR(cache.keep(sequence.fork(), 30), ErrorCode::InvalidArgument, "lost tokens");
  EXPECT_QUERN_ERROR(save_sequence(sequence, dir / "a.qkv", "m"), ErrorCode::InvalidArgument, "lost tokens");
}

}  // namespace
}  // namespace quern::runtime
