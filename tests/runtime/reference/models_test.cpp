// Whole models on the reference kernels: logits against recorded ones, and every value against shape
// inference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/onnx/import.h"
#include "runtime/interpreter.h"
#include "tests/runtime/reference/inference_check.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

using runtime::NamedValues;
using runtime::RuntimeValue;

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// A decoder or encoder as exporters write it, fed one sequence step by step.
class Stepper {
 public:
  // Not every file names its dimensions truly; of those that don't only the numbers are checked.
  explicit Stepper(const std::filesystem::path& path, bool names_are_true = true)
      : graph_(onnx_format::import_model(path).graph),
        interpreter_(*graph_),
        names_are_true_(names_are_true) {
    for (const Value* input : graph_->inputs()) {
      if (input->name().starts_with("past_key_values")) {
        cache_[input->name()] = Tensor::zeros(input->dtype(), past_shape(*input, 0));
      }
    }
  }

  // Logits of the given tokens, [tokens, vocabulary] flat; of a classifier [classes].
  std::vector<float> step(const std::vector<int64_t>& ids) {
    const auto count = static_cast<int64_t>(ids.size());
    const int64_t total = past_ + count;
    NamedValues inputs;
    for (const Value* input : graph_->inputs()) {
      const std::string& name = input->name();
      if (name == "input_ids") inputs[name] = Tensor::from<int64_t>({1, count}, ids);
      if (name == "attention_mask") inputs[name] = ones(total);
      if (name == "position_ids") inputs[name] = positions(count);
      if (name == "use_cache_branch") inputs[name] = Tensor::from<bool>({1}, {past_ > 0});
      if (cache_.contains(name)) inputs[name] = cache_.at(name);
    }
    runtime::RunOptions options;
    options.implementation = "reference";
    std::map<std::string, Dim> symbols;
    if (names_are_true_) {
      symbols = {{"batch_size", Dim(1)},
                 {"sequence_length", Dim(count)},
                 {"past_sequence_length", Dim(past_)},
                 {"total_sequence_length", Dim(total)}};
    }
    options.on_value = [&](const Value& value, const RuntimeValue& data) {
      const std::string problem = check_value(value, data, symbols);
      if (!problem.empty()) ADD_FAILURE() << value.name() << ": " << problem;
      ++checked_;
    };
    const NamedValues outputs = interpreter_.run(inputs, options);
    for (auto& [name, data] : cache_) {
      data = *outputs.at("present" + name.substr(std::string("past_key_values").size())).tensor();
    }
    if (!cache_.empty()) past_ = total;
    return outputs.at("logits").dense().to_floats();
  }
  size_t checked() const { return checked_; }
  const Graph& graph() const { return *graph_; }

 private:
  static Tensor ones(int64_t count) {
    return Tensor::from<int64_t>({1, count}, std::vector<int64_t>(static_cast<size_t>(count), 1));
  }
  Tensor positions(int64_t count) const {
    std::vector<int64_t> list;
    for (int64_t i = 0; i < count; ++i) list.push_back(past_ + i);
    return Tensor::from<int64_t>({1, count}, list);
  }
  static Shape past_shape(const Value& input, int64_t length) {
    Shape shape;
    for (size_t i = 0; i < 4; ++i)
      shape.push_back(input.shape()[i].as_constant().value_or(i == 0 ? 1 : length));
    return shape;
  }

  std::unique_ptr<Graph> graph_;
  runtime::Interpreter interpreter_;
  std::map<std::string, Tensor> cache_;
  int64_t past_ = 0;
  size_t checked_ = 0;
  bool names_are_true_;
};

double largest_difference(const std::vector<float>& a, const float* b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(static_cast<double>(a[i]) - b[i]));
  return most;
}

void check_reference(const std::string& folder, const std::string& file) {
  QUERN_NEEDS_SHARED("models/" + folder + "/" + file);
  const auto path = shared_path("models/" + folder);
  const nlohmann::json reference = read_json(path / "reference.json");
  std::ifstream data(path / "reference_logits.f32", std::ios::binary);
  const auto shape = reference["logits_shape"].get<std::vector<size_t>>();
  std::vector<float> expected(shape[0] * shape[1]);
  data.read(reinterpret_cast<char*>(expected.data()), static_cast<std::streamsize>(expected.size() * 4));
  const auto prompt = reference["prompt_ids"].get<std::vector<int64_t>>();

  Stepper model(path / file);
  std::vector<float> logits = model.step(prompt);
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_LT(largest_difference(logits, expected.data()), 1e-3);
  EXPECT_GE(model.checked(), model.graph().nodes().size());
}

TEST(ModelsOnTheReference, Storyteller) {
  check_reference("storyteller", "model.onnx");
}
TEST(ModelsOnTheReference, StorytellerWithoutCache) {
  check_reference("storyteller", "model_no_cache.onnx");
}
TEST(ModelsOnTheReference, StorytellerDraft) {
  check_reference("storyteller-draft", "model.onnx");
}
TEST(ModelsOnTheReference, Gpt2Style) {
  check_reference("gpt2-style", "model.onnx");
}

TEST(ModelsOnTheReference, AuthorEncoder) {
  QUERN_NEEDS_SHARED("models/author-encoder/model.onnx");
  const auto path = shared_path("models/author-encoder");
  const nlohmann::json reference = read_json(path / "reference.json");
  std::ifstream rows(path / "test.jsonl");
  Stepper model(path / "model.onnx");
  for (const auto& expected : reference["first_8_logits"]) {
    std::string line;
    ASSERT_TRUE(std::getline(rows, line));
    const auto row = nlohmann::json::parse(line);
    const std::vector<float> logits =
        model.step(row[row.contains("ids") ? "ids" : "input_ids"].get<std::vector<int64_t>>());
    const auto wanted = expected.get<std::vector<float>>();
    ASSERT_EQ(logits.size(), wanted.size());
    EXPECT_LT(largest_difference(logits, wanted.data()), 1e-3);
  }
}

// Every spelling of stories260K: the prompt, then two steps on the cache.
class Stories : public testing::TestWithParam<const char*> {};

double tolerance_of(const std::string& file) {
  const bool int4 = file.find("int4") != std::string::npos;
  const bool half = file.find("16") != std::string::npos && file.find("opset") == std::string::npos;
  // Recorded with activations rounded to 8 bits (accuracy_level 4, which is also what ONNX Runtime makes of
  // QDQ int4); with accuracy_level 0 it gives these logits within 1e-4.
  if (int4) return 0.3;
  if (half) return 5e-2;  // recorded with another order of roundings
  // Quantizes activations: a value at the border of two codes may fall either way.
  if (file == "model_quantized.onnx") return 1e-1;
  return 1e-3;
}

TEST_P(Stories, StepsGiveTheRecordedLogits) {
  const std::string file = GetParam();
  QUERN_NEEDS_SHARED("models/stories260K/" + file);
  const auto folder = shared_path("models/stories260K");
  const nlohmann::json golden = read_json(folder / "golden.json");
  const nlohmann::json& recorded = golden["files"][file];
  // The merged model calls attention_mask's length "sequence_length", with the cache in use too.
  Stepper model(folder / file, file != "decoder_model_merged.onnx");
  std::vector<int64_t> ids = golden["prompt_ids"];
  for (size_t step = 0; step < recorded["step_logits"].size(); ++step) {
    const std::vector<float> logits = model.step(ids);
    const auto wanted = recorded["step_logits"][step].get<std::vector<float>>();
    ASSERT_GE(logits.size(), wanted.size());
    const std::vector<float> last(logits.end() - static_cast<int64_t>(wanted.size()), logits.end());
    EXPECT_LT(largest_difference(last, wanted.data()), tolerance_of(file)) << "step " << step;
    ids = {recorded["greedy_ids"][step].get<int64_t>()};
    EXPECT_EQ(std::max_element(last.begin(), last.end()) - last.begin(), ids.front()) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Spellings, Stories,
                         testing::Values("decoder_model_merged.onnx", "genai_fp32_cpu.onnx",
                                         "genai_int4_cpu.onnx", "genai_int4_qdq.onnx",
                                         "genai_int4_tied_embed.onnx", "genai_uint4_qdq.onnx",
                                         "model_bnb4.onnx", "model_fp16.onnx", "model_fp16_fp16io.onnx",
                                         "model_q4.onnx", "model_q4_asym.onnx", "model_q4f16_fp16io.onnx",
                                         "model_quantized.onnx", "model_with_past_opset14.onnx",
                                         "model_with_past_opset17.onnx", "opset23_attention.onnx"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace quern::test
