// Mixtures of experts: only what is routed is computed, whatever stands beside it, in every format.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/onnx/import.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/quern.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

using nlohmann::json;
using runtime::LogitsFor;
using runtime::Program;
using runtime::Sequence;
using runtime::SequenceStep;
using runtime::Session;

using Rows = std::vector<std::vector<float>>;

// The decoder with weights as the options of quantize-weights say.
std::unique_ptr<Graph> decoder(const std::string& name, const json& weights = json::object()) {
  onnx_format::ImportedModel imported =
      onnx_format::import_model(source_path("tests/models/families") / (name + ".onnx"));
  passes::Recipe recipe{.steps = passes::execution_recipe().steps};
  recipe.steps.pop_back();  // the weights are computed when all is decided
  if (!weights.empty()) recipe.steps.push_back({.pass = "quantize-weights", .options = weights});
  recipe.steps.push_back({.pass = "materialize-weights"});
  passes::PassContext context;
  passes::run_recipe(recipe, *imported.graph, context);
  EXPECT_TRUE(passes::is_decoder(*imported.graph));
  return std::move(imported.graph);
}

Rows run(Session& session, std::span<const SequenceStep> steps, size_t of) {
  session.run(steps);
  Rows rows;
  for (int64_t i = 0; i < session.logit_rows(of); ++i)
    rows.emplace_back(session.logits(of, i).begin(), session.logits(of, i).end());
  return rows;
}

std::vector<int64_t> prompt(int64_t seed, int64_t length) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(3 + (seed * 17 + i * i * 7 + i * 3) % 60);
  return ids;
}

Rows alone(Session& session, const std::vector<int64_t>& tokens) {
  Sequence sequence = session.new_sequence();
  const SequenceStep step{.sequence = &sequence, .tokens = tokens, .logits = LogitsFor::All};
  return run(session, {&step, 1}, 0);
}

// Four sequences side by side, one of them in pieces; each must be what it is by itself, to the bit.
void expect_batch_invariant(const Graph& graph, int threads) {
  const auto program = Program::compile(graph);
  Session session(program, {.threads = threads});
  Session single(program, {.threads = 1});
  std::vector<std::vector<int64_t>> prompts;
  std::vector<Sequence> sequences;
  for (int64_t s = 0; s < 4; ++s) {
    prompts.push_back(prompt(s, 5 + 3 * s));
    sequences.push_back(session.new_sequence());
  }
  std::vector<SequenceStep> steps;
  for (size_t s = 0; s < 4; ++s)
    steps.push_back({.sequence = &sequences[s], .tokens = prompts[s], .logits = LogitsFor::All});
  session.run(steps);
  for (size_t s = 0; s < 4; ++s) {
    const Rows expected = alone(single, prompts[s]);
    ASSERT_EQ(static_cast<size_t>(session.logit_rows(s)), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto got = session.logits(s, static_cast<int64_t>(i));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), expected[i].begin()))
          << "sequence " << s << " token " << i;
    }
  }
  Sequence pieces = single.new_sequence();
  const Rows whole = alone(single, prompts[3]);
  for (size_t i = 0; i < prompts[3].size(); ++i) {
    const SequenceStep step{.sequence = &pieces, .tokens = std::span(prompts[3]).subspan(i, 1)};
    EXPECT_EQ(run(single, {&step, 1}, 0).front(), whole[i]) << "token " << i;
  }
}

class ExpertsTest : public testing::TestWithParam<const char*> {};

TEST_P(ExpertsTest, DoNotDependOnWhatIsBeside) {
  const auto graph = decoder(GetParam());
  expect_batch_invariant(*graph, 1);
  expect_batch_invariant(*graph, 2);
}

// Two of four experts serve each token: in each layer the experts' products see each token twice in all, and
// no step of an expert without tokens is called.
TEST_P(ExpertsTest, ComputeTheRoutedOnesAlone) {
  const auto graph = decoder(GetParam());
  for (const int threads : {1, 2}) {
    Session session(Program::compile(*graph), {.threads = threads, .serial_work = 0});
    session.set_profiling(true);
    const std::vector<int64_t> tokens = prompt(5, 1);
    Sequence sequence = session.new_sequence();
    const SequenceStep step{.sequence = &sequence, .tokens = tokens};
    session.run({&step, 1});
    int64_t calls = 0, rows = 0;
    for (const runtime::StepProfile& line : session.profile()) {
      if (line.kind != "accumulate") continue;
      calls += line.calls;
      rows += line.rows;
    }
    EXPECT_EQ(calls, 2 * 2) << threads;
    EXPECT_EQ(rows, 2 * 2) << threads;
  }
}

double relative_error(const Rows& got, const Rows& wanted) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (size_t c = 0; c < wanted[i].size(); ++c) {
      error += std::pow(got[i][c] - wanted[i][c], 2.0);
      norm += std::pow(wanted[i][c], 2.0);
    }
  }
  return std::sqrt(error / norm);
}

struct Format {
  const char* name;
  const char* options;
  double error;  // of all logits, relative; a routing that flips is part of it
};

// Each expert's weights are quantized as every other projection's.
TEST_P(ExpertsTest, TakeEveryFormat) {
  const auto exact = decoder(GetParam());
  Session reference(Program::compile(*exact), {.threads = 1});
  const std::vector<int64_t> tokens = prompt(2, 9);
  const Rows wanted = alone(reference, tokens);
  for (const Format& format : {
           Format{"int8", R"({"weights": "int8"})", 0.15},
           Format{"int8 and activations", R"({"weights": "int8", "activations": "dynamic"})", 0.4},
           Format{"int4", R"({"weights": "int4", "group-size": 16})", 1.2},
           Format{"fp8", R"({"weights": "fp8-e4m3"})", 0.8},
       }) {
    SCOPED_TRACE(format.name);
    const auto graph = decoder(GetParam(), json::parse(format.options));
    int64_t quantized = 0;
    for (const Node* node : graph->nodes()) {
      if (!node->is("Linear", "ai.quern")) continue;
      const bool of_expert =
          node->input(0)->producer() && node->input(0)->producer()->is("ExpertRows", "ai.quern");
      quantized += of_expert && !node->input(1)->tensor() ? 1 : 0;
    }
    EXPECT_GE(quantized, 2 * 4);
    Session session(Program::compile(*graph), {.threads = 1});
    EXPECT_LT(relative_error(alone(session, tokens), wanted), format.error);
    expect_batch_invariant(*graph, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertsTest,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quern::test
