#include "runtime/decoder/hidden_states.h"

#include <gtest/gtest.h>

#include "runtime/decoder/session.h"
#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

using test::random_decoder;
using test::random_tokens;

constexpr int64_t kTokens = 23;

class HiddenStatesTest : public testing::TestWithParam<test::NamedDecoder> {
 protected:
  HiddenStatesTest() : graph_(random_decoder(GetParam().shape)), hidden_(find_hidden_states(*graph_)) {}

  // The outputs of all tokens, `output` after one another.
  std::vector<float> all_of(Session& session, int entry, int output, std::span<const float> rows = {}) {
    Sequence sequence = session.new_sequence();
    const SequenceStep step{.sequence = &sequence, .tokens = tokens_, .logits = LogitsFor::All};
    session.run({&step, 1}, {.entry = entry, .rows = rows});
    return outputs(session, output);
  }

  static std::vector<float> outputs(Session& session, int output) {
    std::vector<float> all;
    for (int64_t i = 0; i < kTokens; ++i) {
      const auto row = session.logits(0, i, output);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  std::unique_ptr<Graph> graph_;
  HiddenStates hidden_;
  std::vector<int64_t> tokens_ = random_tokens(kTokens, 97, 5);
};

TEST_P(HiddenStatesTest, AreFound) {
  EXPECT_EQ(static_cast<int64_t>(hidden_.after_block.size()), GetParam().shape.layers);
  for (const Value* value : hidden_.after_block) EXPECT_NE(value, nullptr);
  ASSERT_NE(hidden_.final_norm, nullptr);
  EXPECT_EQ(hidden_.final_norm->output(), hidden_.after_final_norm);
  EXPECT_EQ(hidden_.head->output()->name(), "logits");
}

// The head computed from the last hidden states, and the last layers from those in the middle, give the bits
// that the whole model gives.
TEST_P(HiddenStatesTest, CanBeGoneOnFrom) {
  const std::string last = hidden_.after_final_norm->name(), middle = hidden_.after_block[0]->name();
  const auto program = Program::compile(
      *graph_, {.entries = {{"logits", last, middle}, {"logits"}, {"logits"}}, .starts = {"", last, middle}});
  EXPECT_EQ(program->start_width(0), 0);
  EXPECT_EQ(program->start_width(1), GetParam().shape.width);
  for (const int64_t max_rows : {512, 5}) {
    Session session(program, {.threads = 1, .max_rows = max_rows});
    const std::vector<float> logits = all_of(session, 0, 0);
    const std::vector<float> last_rows = outputs(session, 1), middle_rows = outputs(session, 2);
    session.run_rows(1, last_rows);
    EXPECT_EQ(outputs(session, 0), logits);
    EXPECT_EQ(all_of(session, 2, 0, middle_rows), logits);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HiddenStatesTest, testing::ValuesIn(test::decoder_variations()),
                         [](const auto& info) { return info.param.name; });

TEST(HiddenStates, RefusesWhatMakesNoSense) {
  const auto graph = random_decoder({});
  const HiddenStates hidden = find_hidden_states(*graph);
  const std::string last = hidden.after_final_norm->name(), middle = hidden.after_block[0]->name();
  EXPECT_QUERN_ERROR(find_hidden_states(*graph, "scores"), ErrorCode::InvalidArgument, "scores");
  EXPECT_QUERN_ERROR(Program::compile(*graph, {.entries = {{"logits"}}, .starts = {"nothing"}}),
                     ErrorCode::InvalidArgument, "'nothing' to go on from");
  const auto program = Program::compile(
      *graph, {.entries = {{"logits"}, {"logits"}, {"logits"}}, .starts = {"", last, middle}});
  Session session(program, {.threads = 1});
  const std::vector<float> rows(48 * 2);
  EXPECT_QUERN_ERROR(session.run_rows(0, rows), ErrorCode::InvalidArgument, "appends to sequences");
  EXPECT_QUERN_ERROR(session.run_rows(1, std::span(rows).first(50)), ErrorCode::InvalidArgument,
                     "50 features");
  EXPECT_QUERN_ERROR(session.run_rows(2, rows), ErrorCode::InvalidArgument, "appends to sequences");
  EXPECT_QUERN_ERROR(session.run_rows(3, rows), ErrorCode::InvalidArgument, "the program has 3");
  Sequence sequence = session.new_sequence();
  const std::vector<int64_t> tokens = {1, 2, 3};
  const SequenceStep step{.sequence = &sequence, .tokens = tokens};
  EXPECT_QUERN_ERROR(session.run({&step, 1}, {.entry = 2, .rows = rows}), ErrorCode::InvalidArgument,
                     "takes 144 features");
}

}  // namespace
}  // namespace quern::runtime
