#include "runtime/decoder/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/cpu/isa.h"
#include "tests/runtime/decoder/naive_decoder.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::DecoderShape;
using test::NamedDecoder;
using test::random_decoder;
using test::random_tokens;

using Rows = std::vector<std::vector<float>>;

// The logits of all tokens, appended in pieces of the given sizes (the last one repeated).
Rows run_in_pieces(Session& session, Sequence& sequence, std::span<const int64_t> tokens,
                   const std::vector<int64_t>& pieces) {
  Rows rows;
  size_t next = 0;
  while (!tokens.empty()) {
    const int64_t wanted = pieces[std::min(next++, pieces.size() - 1)];
    const auto count = std::min(static_cast<size_t>(wanted), tokens.size());
    const SequenceStep step{.sequence = &sequence, .tokens = tokens.first(count), .logits = LogitsFor::All};
    session.run({&step, 1});
    for (int64_t i = 0; i < session.logit_rows(0); ++i) {
      const auto row = session.logits(0, i);
      rows.emplace_back(row.begin(), row.end());
    }
    tokens = tokens.subspan(count);
  }
  return rows;
}

Rows fresh_logits(Session& session, std::span<const int64_t> tokens) {
  Sequence sequence = session.new_sequence();
  return run_in_pieces(session, sequence, tokens, {static_cast<int64_t>(tokens.size())});
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

testing::AssertionResult same_bits(const Rows& a, const Rows& b) {
  if (a.size() != b.size())
    return testing::AssertionFailure() << a.size() << " rows, " << b.size() << " expected";
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) return testing::AssertionFailure() << "row " << i << " differs";
  }
  return testing::AssertionSuccess();
}

class DecoderVariationTest : public testing::TestWithParam<NamedDecoder> {
 protected:
  DecoderVariationTest()
      : graph_(random_decoder(GetParam().shape)),
        program_(Program::compile(*graph_)),
        tokens_(random_tokens(90, GetParam().shape.vocabulary, 5)) {}

  std::unique_ptr<Graph> graph_;
  std::shared_ptr<const Program> program_;
  std::vector<int64_t> tokens_;
};

// Full attention recomputed in double precision, against cached rows.
TEST_P(DecoderVariationTest, MatchesNaiveRecomputation) {
  const auto wanted = test::NaiveDecoder(*graph_).run(tokens_);
  for (const bool reference : {false, true}) {
    const cpu::ForcedKernels forced(cpu::active_isa(), reference);
    const auto program = Program::compile(*graph_);
    for (const DType cache : {DType::F32, DType::F16, DType::I8, DType::I4}) {
      Session session(program, {.threads = 1, .cache_dtype = cache});
      // Cut, but long enough at first that other rotary frequencies are in use from the start.
      Sequence sequence = session.new_sequence();
      const Rows got = run_in_pieces(session, sequence, tokens_, {48, 1, 13, 28});
      ASSERT_EQ(got.size(), wanted.size());
      double worst = 0, scale = 0, noise = 0, signal = 0;
      for (size_t t = 0; t < got.size(); ++t) {
        ASSERT_EQ(got[t].size(), wanted[t].size());
        for (size_t i = 0; i < got[t].size(); ++i) {
          worst = std::max(worst, std::fabs(got[t][i] - wanted[t][i]));
          scale = std::max(scale, std::fabs(wanted[t][i]));
          noise += std::pow(got[t][i] - wanted[t][i], 2);
          signal += std::pow(wanted[t][i], 2);
        }
      }
      EXPECT_GT(scale, 0.1);
      // Integer weights are multiplied with activations of 16 bits.
      const bool rounds = !reference && is_integer(GetParam().shape.weights);
      const double tolerance = cache == DType::F16 ? 5e-3 : rounds ? 1e-3 : 2e-4;
      if (is_integer(cache)) {  // its rounding is noise
        EXPECT_LT(std::sqrt(noise / signal), cache == DType::I8 ? 0.04 : 0.6) << to_string(cache);
        continue;
      }
      EXPECT_LT(worst, scale * tolerance) << (reference ? "reference" : "kernels");
    }
  }
}

TEST_P(DecoderVariationTest, LogitsDoNotDependOnPieces) {
  for (const DType cache : {DType::F32, DType::F16, DType::I8, DType::I4}) {
    Session session(program_, {.threads = 1, .cache_dtype = cache});
    const Rows whole = fresh_logits(session, tokens_);
    if (cache == DType::F32) {
      Session two(program_, {.threads = 2, .serial_work = 0});
      EXPECT_TRUE(same_bits(fresh_logits(two, tokens_), whole)) << "2 threads";
      if (GetParam().shape.original_context > 0)
        break;  // rows before the change of frequencies differ, rightly
      Sequence mixed = two.new_sequence();
      EXPECT_TRUE(same_bits(run_in_pieces(two, mixed, tokens_, {1, 30, 5, 54}), whole))
          << "2 threads, pieces";
    }
    for (const int64_t piece : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 64}) {
      Sequence sequence = session.new_sequence();
      EXPECT_TRUE(same_bits(run_in_pieces(session, sequence, tokens_, {piece}), whole))
          << "pieces of " << piece;
    }
    Session small(program_, {.threads = 1, .cache_dtype = cache, .max_rows = 10});
    EXPECT_TRUE(same_bits(fresh_logits(small, tokens_), whole)) << "passes of 10 rows";
  }
}

TEST_P(DecoderVariationTest, LogitsDoNotDependOnCompany) {
  // Threads that wait for one another are slow on a busy machine: not in every variation.
  const bool together_by_two = GetParam().name == "llama" || GetParam().name == "weights_i4";
  Session session(program_, {.threads = together_by_two ? 2 : 1, .serial_work = 0});
  std::vector<std::vector<int64_t>> texts;
  std::vector<Rows> alone;
  for (unsigned i = 0; i < 5; ++i) {
    texts.push_back(random_tokens(10 + 7 * i, GetParam().shape.vocabulary, 20 + i));
    alone.push_back(fresh_logits(session, texts.back()));
  }
  // All in one call, in pieces that differ from one sequence to another, and some of them late.
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < texts.size(); ++i) sequences.push_back(session.new_sequence());
  std::vector<Rows> together(texts.size());
  for (size_t round = 0; round < 60; ++round) {
    std::vector<SequenceStep> steps;
    std::vector<size_t> owners;
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::span<const int64_t> left = std::span(texts[i]).subspan(together[i].size());
      const size_t count = std::min(left.size(), round < 2 * i ? 0 : 1 + (round + i) % 4);
      if (count == 0) continue;
      steps.push_back({.sequence = &sequences[i], .tokens = left.first(count), .logits = LogitsFor::All});
      owners.push_back(i);
    }
    session.run(steps);
    for (size_t s = 0; s < steps.size(); ++s) {
      for (int64_t r = 0; r < session.logit_rows(s); ++r) {
        const auto row = session.logits(s, r);
        together[owners[s]].emplace_back(row.begin(), row.end());
      }
    }
  }
  const bool changes = GetParam().shape.original_context > 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (changes && texts[i].size() > 40) continue;
    EXPECT_TRUE(same_bits(together[i], alone[i])) << "sequence " << i;
  }
}

// The logits asked for are those of the tokens, whichever subset it is.
TEST_P(DecoderVariationTest, GivesLogitsOfTheTokensAskedFor) {
  Session session(program_, {.threads = 1, .max_rows = 16});
  const Rows whole = fresh_logits(session, tokens_);
  const std::vector<int32_t> wanted = {0, 3, 15, 16, 40, 89};
  Sequence a = session.new_sequence(), b = session.new_sequence(), c = session.new_sequence();
  const std::vector<SequenceStep> steps = {
      {.sequence = &a, .tokens = tokens_, .logits = LogitsFor::None},
      {.sequence = &b, .tokens = tokens_, .logit_tokens = wanted},
      {.sequence = &c, .tokens = tokens_},
  };
  session.run(steps);
  EXPECT_EQ(session.logit_rows(0), 0);
  ASSERT_EQ(session.logit_rows(1), static_cast<int64_t>(wanted.size()));
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(same_bits(session.logits(1, static_cast<int64_t>(i)), whole[static_cast<size_t>(wanted[i])]));
  }
  ASSERT_EQ(session.logit_rows(2), 1);
  EXPECT_TRUE(same_bits(session.logits(2), whole.back()));
  EXPECT_QUERN_ERROR(session.logits(0), ErrorCode::InvalidArgument, "logits");
  EXPECT_QUERN_ERROR(session.logits(2, 1), ErrorCode::InvalidArgument, "logits");
}

INSTANTIATE_TEST_SUITE_P(All, DecoderVariationTest, testing::ValuesIn(test::decoder_variations()),
                         [](const auto& info) { return info.param.name; });

TEST(Session, ReportsTraits) {
  DecoderShape shape;
  shape.learned_positions = 300;
  const auto graph = random_decoder(shape);
  const DecoderTraits traits = Program::compile(*graph)->traits();
  EXPECT_EQ(traits.vocabulary, shape.vocabulary);
  EXPECT_EQ(traits.context, 300);
  ASSERT_EQ(traits.layers.size(), 2U);
  EXPECT_EQ(traits.layers[0], (CacheLayerShape{2, 12, 12, 0}));
  EXPECT_GT(traits.streamed_bytes, 0);
}

TEST(Session, RefusesWhatMakesNoSense) {
  DecoderShape shape;
  shape.learned_positions = 50;
  const auto graph = random_decoder(shape);
  const auto program = Program::compile(*graph);
  EXPECT_QUERN_ERROR(Session(program, {.context = 51}), ErrorCode::InvalidArgument, "51", "50");
  EXPECT_QUERN_ERROR(Session(program, {.cache_dtype = DType::I64}), ErrorCode::InvalidArgument, "i64");
  Session session(program, {.threads = 1}), other(program, {.threads = 1});
  Sequence sequence = session.new_sequence(), foreign = other.new_sequence(), none;
  const std::vector<int64_t> prompt = random_tokens(51, shape.vocabulary, 1);
  EXPECT_QUERN_ERROR(session.run(sequence, prompt), ErrorCode::BadData, "51 tokens", "context of 50");
  session.run(sequence, std::span(prompt).first(49));
  EXPECT_QUERN_ERROR(session.run(sequence, std::span(prompt).first(2)), ErrorCode::BadData, "2 more", "49",
                     "50");
  const std::vector<int64_t> bad = {97}, negative = {-1};
  EXPECT_QUERN_ERROR(session.run(sequence, bad), ErrorCode::BadData, "97", "vocabulary");
  EXPECT_QUERN_ERROR(session.run(sequence, negative), ErrorCode::BadData, "-1");
  EXPECT_QUERN_ERROR(session.run(foreign, bad), ErrorCode::BadData, "97");
  EXPECT_QUERN_ERROR(session.run(foreign, std::span(prompt).first(1)), ErrorCode::InvalidArgument,
                     "another session");
  EXPECT_QUERN_ERROR(session.run(none, prompt), ErrorCode::InvalidArgument, "new_sequence");
  const std::vector<SequenceStep> twice = {{.sequence = &sequence, .tokens = std::span(prompt).first(1)},
                                           {.sequence = &sequence, .tokens = std::span(prompt).first(0)}};
  EXPECT_QUERN_ERROR(session.run(twice), ErrorCode::InvalidArgument, "two steps");
  EXPECT_EQ(sequence.size(), 49);
}

TEST(Session, KeepsTheCacheWithinItsMemory) {
  DecoderShape shape;
  const auto graph = random_decoder(shape);
  const auto program = Program::compile(*graph);
  // Keys and values of 64 positions, 2 KV heads of 12 (values padded to 16), 2 layers.
  const int64_t block = 2 * 64 * (12 + 16) * 4 * 2;
  Session session(program, {.threads = 1, .cache_memory = 3 * block});
  const std::vector<int64_t> prompt = random_tokens(200, shape.vocabulary, 1);
  Sequence a = session.new_sequence();
  EXPECT_QUERN_ERROR(session.run(a, prompt), ErrorCode::OutOfMemory, "cache memory",
                     std::to_string(3 * block));
  EXPECT_EQ(a.size(), 0);
  EXPECT_EQ(session.cache_bytes(), 0);
  session.run(a, std::span(prompt).first(64));
  Sequence b = a.fork();
  EXPECT_EQ(session.cache_bytes(), block);
  const std::vector<float> before = {session.logits(0).begin(), session.logits(0).end()};
  session.run(b, std::span(prompt).subspan(64, 100));
  EXPECT_EQ(session.cache_bytes(), 3 * block);
  EXPECT_QUERN_ERROR(session.run(a, std::span(prompt).first(1)), ErrorCode::OutOfMemory, "cache memory");
  b = Sequence();
  EXPECT_EQ(session.cache_bytes(), block);
  a.rewind(1);
  session.run(a, std::span(prompt).subspan(63, 1));
  EXPECT_TRUE(same_bits(session.logits(0), before));
  EXPECT_EQ(session.peak_cache_bytes(), 3 * block);
}

}  // namespace
}  // namespace quern::runtime
