// Trained models from their ONNX files, by the canonical form and the decoder, against what PyTorch and ONNX
// Runtime recorded of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "formats/onnx/import.h"
#include "formats/tokenizer/tokenizer.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/quern.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

using runtime::LogitsFor;
using runtime::Program;
using runtime::Sequence;
using runtime::SequenceStep;
using runtime::Session;

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::shared_ptr<const Program> compile(const std::filesystem::path& model) {
  onnx_format::ImportedModel imported = onnx_format::import_model(model);
  passes::prepare_for_execution(*imported.graph);
  EXPECT_TRUE(passes::is_decoder(*imported.graph)) << model;
  return Program::compile(*imported.graph);
}

std::vector<int64_t> greedy(Session& session, const std::vector<int64_t>& prompt, int64_t count) {
  const std::vector<std::vector<int64_t>> prompts = {prompt};
  return runtime::generate(session, prompts, {.max_new_tokens = count}).results[0].ids;
}

// The logits of all tokens, appended in pieces.
std::vector<float> all_logits(Session& session, std::span<const int64_t> tokens, size_t piece) {
  Sequence sequence = session.new_sequence();
  std::vector<float> all;
  while (!tokens.empty()) {
    const auto now = tokens.first(std::min(piece, tokens.size()));
    tokens = tokens.subspan(now.size());
    const SequenceStep step{.sequence = &sequence, .tokens = now, .logits = LogitsFor::All};
    session.run({&step, 1});
    for (int64_t i = 0; i < session.logit_rows(0); ++i) {
      all.insert(all.end(), session.logits(0, i).begin(), session.logits(0, i).end());
    }
  }
  return all;
}

struct Recorded {
  const char* folder;
  const char* file;
};

void PrintTo(const Recorded& recorded, std::ostream* out) {
  *out << recorded.folder << "/" << recorded.file;
}

class RecordedModelTest : public testing::TestWithParam<Recorded> {
 protected:
  std::filesystem::path folder() const { return shared_path("models") / GetParam().folder; }
  std::filesystem::path model() const { return folder() / GetParam().file; }
  nlohmann::json recorded() const { return nlohmann::json::parse(read_all(folder() / "reference.json")); }
};

TEST_P(RecordedModelTest, LogitsAndGreedyTokens) {
  QUERN_NEEDS_SHARED("models");
  const nlohmann::json reference = recorded();
  const auto prompt = reference["prompt_ids"].get<std::vector<int64_t>>();
  const std::string bytes = read_all(folder() / reference["logits_file"].get<std::string>());
  std::vector<float> wanted(bytes.size() / sizeof(float));
  std::memcpy(wanted.data(), bytes.data(), bytes.size());
  float scale = 0;
  for (const float x : wanted) scale = std::max(scale, std::fabs(x));

  Session session(compile(model()), {.threads = 2});
  const std::vector<float> got = all_logits(session, prompt, prompt.size());
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted[i], 1e-3f * std::max(std::fabs(wanted[i]), 0.1f * scale)) << "element " << i;
  }
  EXPECT_EQ(all_logits(session, prompt, 1), got) << "token by token";
  EXPECT_EQ(all_logits(session, prompt, 7), got) << "by sevens";
  EXPECT_EQ(greedy(session, prompt, 64), reference["greedy_64"].get<std::vector<int64_t>>());
}

class RecordedPerplexityTest : public RecordedModelTest {};

// The recorded protocol: windows of 256 tokens, each scored on its own, every next token counted.
TEST_P(RecordedPerplexityTest, IsTheRecordedOne) {
  QUERN_NEEDS_SHARED("models");
  if (!std::filesystem::exists(shared_path("text/valid.txt"))) GTEST_SKIP() << "needs shared/text/valid.txt";
  const nlohmann::json reference = recorded();
  const auto tokenizer = tokenizer::Tokenizer::from_file(folder() / "tokenizer.json");
  const std::vector<int64_t> tokens = tokenizer.encode(read_all(shared_path("text/valid.txt")));
  Session session(compile(model()), {.threads = 2});
  constexpr size_t kWindow = 256;
  const auto scored = reference["valid_tokens_scored"].get<int64_t>();
  double loss = 0;
  int64_t count = 0;
  for (size_t first = 0; first + 1 < tokens.size() && count < scored; first += kWindow) {
    const auto window = std::span(tokens).subspan(first, std::min(kWindow, tokens.size() - 1 - first));
    Sequence sequence = session.new_sequence();
    const SequenceStep step{.sequence = &sequence, .tokens = window, .logits = LogitsFor::All};
    session.run({&step, 1});
    for (size_t i = 0; i < window.size() && count < scored; ++i) {
      const auto logits = session.logits(0, static_cast<int64_t>(i));
      double total = 0;
      for (const float x : logits) total += std::exp(static_cast<double>(x));
      loss += std::log(total) - logits[static_cast<size_t>(tokens[first + i + 1])];
      ++count;
    }
  }
  EXPECT_EQ(count, scored);
  const double recorded_perplexity = reference["valid_perplexity"].get<double>();
  EXPECT_NEAR(std::exp(loss / static_cast<double>(count)), recorded_perplexity, 1e-4 * recorded_perplexity);
}

std::string name_of(const testing::TestParamInfo<Recorded>& info) {
  std::string name = std::string(info.param.folder) + "_" + info.param.file;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

constexpr Recorded kModels[] = {{"storyteller", "model.onnx"},
                                {"storyteller-draft", "model.onnx"},
                                {"gpt2-style", "model.onnx"},
                                {"storyteller", "model_no_cache.onnx"}};

INSTANTIATE_TEST_SUITE_P(Models, RecordedModelTest, testing::ValuesIn(kModels), name_of);
// The same weights without a cache would give the same figure.
INSTANTIATE_TEST_SUITE_P(Models, RecordedPerplexityTest, testing::ValuesIn(kModels, kModels + 3), name_of);

// The example in the repository, without anything beside it.
TEST(Example, GreedyTokensAndPieces) {
  const auto folder = source_path("examples/storyteller");
  const nlohmann::json reference = nlohmann::json::parse(read_all(folder / "reference.json"));
  const auto prompt = reference["prompt_ids"].get<std::vector<int64_t>>();
  const auto wanted = reference["greedy_64"].get<std::vector<int64_t>>();
  const auto program = compile(folder / "model.onnx");
  Session session(program, {.threads = 2});
  EXPECT_EQ(greedy(session, prompt, 64), wanted);
  Session half(program, {.threads = 1, .cache_dtype = DType::F16});
  const std::vector<float> whole = all_logits(half, prompt, prompt.size());
  EXPECT_EQ(all_logits(half, prompt, 5), whole);
  // Several texts side by side decode as each does alone.
  std::vector<std::vector<int64_t>> prompts;
  for (size_t i = 1; i <= 4; ++i)
    prompts.emplace_back(prompt.begin(), prompt.begin() + static_cast<int64_t>(11 * i));
  const auto together = runtime::generate(session, prompts, {.max_new_tokens = 20}).results;
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(together[i].ids, greedy(session, prompts[i], 20));
}

}  // namespace
}  // namespace quern::test
