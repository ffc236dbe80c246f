// Tiny models of the families, as the public exporters write them (families/make_families.py), against what
// ONNX Runtime recorded of them.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/onnx/import.h"
#include "ir/schema.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/interpreter.h"
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

std::filesystem::path family_path(const std::string& name) {
  return source_path("tests/models/families") / name;
}

json record_of(const std::string& name) {
  std::ifstream file(family_path(name + ".json"));
  return json::parse(file);
}

// The graph ready to run, and what the passes noted on the way.
std::pair<std::unique_ptr<Graph>, std::string> prepare(const std::string& name) {
  onnx_format::ImportedModel imported = onnx_format::import_model(family_path(name + ".onnx"));
  const passes::PipelineReport report = passes::prepare_for_execution(*imported.graph);
  std::string notes;
  for (const passes::PassRun& run : report.runs) {
    for (const std::string& note : run.report.notes) notes += note + "\n";
  }
  return {std::move(imported.graph), notes};
}

// Relative to the largest of what is expected.
void expect_near(std::span<const float> got, std::span<const float> wanted, const std::string& what,
                 float tolerance = 5e-5F) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  float scale = 0;
  for (const float x : wanted) scale = std::max(scale, std::fabs(x));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], wanted[i], tolerance * scale) << what << " at " << i;
}

std::vector<int64_t> ints(const json& list) {
  return list.get<std::vector<int64_t>>();
}
std::vector<float> floats(const json& list) {
  return list.get<std::vector<float>>();
}

// What the canonical form must say of a family beyond computing the same.
struct Family {
  const char* name;
  std::vector<int64_t> windows = {0, 0};  // of the layers' attention
  int64_t rotaries = 4;
  bool interleaved = false;
  bool slopes = false;
  float softcap = 0;
  bool sinks = false;
};

void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

class DecoderFamilyTest : public testing::TestWithParam<Family> {};

void expect_traits(const Graph& graph, const Family& family) {
  std::vector<int64_t> windows;
  int64_t rotaries = 0;
  for (const Node* node : graph.nodes()) {
    if (node->is("Rotary", kQuernDomain)) {
      ++rotaries;
      EXPECT_EQ(node->int_attribute("interleaved", 0) != 0, family.interleaved) << describe(*node);
    }
    if (!node->is("CachedAttention", kQuernDomain)) continue;
    windows.push_back(node->int_attribute("window", 0));
    EXPECT_EQ(node->input(4) != nullptr, family.slopes) << describe(*node);
    EXPECT_EQ(node->input(3) != nullptr, family.sinks) << describe(*node);
    EXPECT_FLOAT_EQ(node->float_attribute("softcap", 0), family.softcap) << describe(*node);
  }
  EXPECT_EQ(windows, family.windows);
  EXPECT_EQ(rotaries, family.rotaries) << to_text(graph);
}

// Prefill, three tokens behind it, and the prompt token by token.
void expect_decoding(Session& session, const json& record) {
  Sequence sequence = session.new_sequence();
  const auto append = [&](Sequence& to, const std::vector<int64_t>& tokens) {
    const SequenceStep step{.sequence = &to, .tokens = tokens, .logits = LogitsFor::All};
    session.run({&step, 1});
    std::vector<float> all;
    for (int64_t i = 0; i < session.logit_rows(0); ++i)
      all.insert(all.end(), session.logits(0, i).begin(), session.logits(0, i).end());
    return all;
  };
  const std::vector<float> prefill = append(sequence, ints(record["prompt"]));
  expect_near(prefill, floats(record["prefill"]), "prefill");
  for (size_t i = 0; i < record["steps"].size(); ++i) {
    expect_near(append(sequence, {record["step_ids"][i].get<int64_t>()}), floats(record["steps"][i]),
                concat("step ", i));
  }
  Sequence again = session.new_sequence();
  std::vector<float> pieces;
  for (const int64_t id : ints(record["prompt"])) {
    const std::vector<float> one = append(again, {id});
    pieces.insert(pieces.end(), one.begin(), one.end());
  }
  EXPECT_EQ(pieces, prefill) << "token by token";
}

// The two prompts that were padded to one length, without their padding, side by side.
void expect_two_prompts(Session& session, const json& record) {
  const json& padded = record["padded"];
  const auto vocabulary = record["vocabulary"].get<size_t>();
  const std::vector<float> wanted = floats(padded["logits"]);
  std::vector<std::vector<int64_t>> prompts;
  std::vector<Sequence> sequences;
  std::vector<size_t> hidden;
  for (size_t b = 0; b < 2; ++b) {
    const std::vector<int64_t> ids = ints(padded["ids"][b]), mask = ints(padded["mask"][b]);
    hidden.push_back(static_cast<size_t>(std::count(mask.begin(), mask.end(), 0)));
    prompts.emplace_back(ids.begin() + static_cast<int64_t>(hidden[b]), ids.end());
    sequences.push_back(session.new_sequence());
  }
  std::vector<SequenceStep> steps;
  for (size_t b = 0; b < 2; ++b)
    steps.push_back({.sequence = &sequences[b], .tokens = prompts[b], .logits = LogitsFor::All});
  session.run(steps);
  for (size_t b = 0; b < 2; ++b) {
    const size_t length = padded["ids"][b].size();
    for (size_t i = hidden[b]; i < length; ++i) {
      const auto row = std::span(wanted).subspan((b * length + i) * vocabulary, vocabulary);
      expect_near(session.logits(b, static_cast<int64_t>(i - hidden[b])), row,
                  concat("prompt ", b, " token ", i));
    }
  }
  const std::vector<int64_t> next = ints(padded["next"]);
  const std::vector<float> after = floats(padded["next_logits"]);
  for (size_t b = 0; b < 2; ++b)
    steps[b] = {.sequence = &sequences[b], .tokens = std::span(next).subspan(b, 1)};
  session.run(steps);
  for (size_t b = 0; b < 2; ++b)
    expect_near(session.logits(b), std::span(after).subspan(b * vocabulary, vocabulary),
                concat("after prompt ", b));
}

TEST_P(DecoderFamilyTest, IsCanonicalAndDecodesAsRecorded) {
  const Family& family = GetParam();
  const json record = record_of(family.name);
  const auto [graph, notes] = prepare(family.name);
  ASSERT_TRUE(passes::is_decoder(*graph)) << notes;
  expect_traits(*graph, family);
  Session session(Program::compile(*graph), {.threads = 1});
  expect_decoding(session, record);
  expect_two_prompts(session, record);
}

// The graph as it came, with a left-padded batch of two and no past: its operators by themselves.
TEST_P(DecoderFamilyTest, RunsPlain) {
  const json record = record_of(GetParam().name);
  const json& padded = record["padded"];
  const onnx_format::ImportedModel imported =
      onnx_format::import_model(family_path(GetParam().name + std::string(".onnx")));
  const auto length = static_cast<int64_t>(padded["ids"][0].size());
  runtime::NamedValues inputs;
  const auto matrix = [&](const char* key) {
    std::vector<int64_t> values;
    for (const json& row : padded[key]) values.insert(values.end(), row.begin(), row.end());
    return Tensor::from<int64_t>({2, length}, values);
  };
  for (const Value* input : imported.graph->inputs()) {
    if (input->name() == "input_ids" || input->name() == "attention_mask") {
      inputs[input->name()] = matrix(input->name() == "input_ids" ? "ids" : "mask");
    } else if (input->name() == "position_ids") {
      Tensor positions = matrix("mask");
      for (int64_t b = 0; b < 2; ++b) {
        int64_t count = 0;
        for (int64_t i = 0; i < length; ++i) {
          count += positions.int_at(b * length + i);
          positions.set_int(b * length + i, std::max<int64_t>(0, count - 1));
        }
      }
      inputs[input->name()] = positions;
    } else {
      Shape shape;
      for (const Dim& dim : input->shape())
        shape.push_back(shape.empty() ? 2 : dim.is_constant() ? dim.constant() : 0);
      inputs[input->name()] = Tensor::zeros(input->dtype(), shape);
    }
  }
  const std::vector<float> got =
      runtime::Interpreter(*imported.graph).run(inputs).at("logits").dense().to_floats();
  const std::vector<float> wanted = floats(padded["logits"]);
  ASSERT_EQ(got.size(), wanted.size());
  const auto vocabulary = record["vocabulary"].get<size_t>();
  for (size_t b = 0; b < 2; ++b) {
    const std::vector<int64_t> mask = ints(padded["mask"][b]);
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) continue;
      const size_t at = (b * mask.size() + i) * vocabulary;
      expect_near(std::span(got).subspan(at, vocabulary), std::span(wanted).subspan(at, vocabulary),
                  concat("row ", b, " token ", i));
    }
  }
}

std::string family_name(const testing::TestParamInfo<Family>& info) {
  return info.param.name;
}

const Family kDecoders[] = {
    {.name = "llama"},
    {.name = "llama3"},
    {.name = "mistral", .windows = {5, 5}},
    {.name = "qwen2"},
    {.name = "qwen3"},
    {.name = "gemma"},
    {.name = "gemma2", .windows = {5, 0}, .softcap = 5},
    {.name = "gemma3", .windows = {5, 0}},
    {.name = "phi"},
    {.name = "phi3"},
    {.name = "phi3_long"},
    {.name = "gpt2", .rotaries = 0},
    {.name = "gpt_neox"},
    {.name = "gptj", .interleaved = true},
    {.name = "opt", .rotaries = 0},
    {.name = "bloom", .rotaries = 0, .slopes = true},
    {.name = "mpt", .rotaries = 0, .slopes = true},
    {.name = "falcon"},
    {.name = "stablelm"},
    {.name = "olmo"},
    {.name = "olmo2"},
    {.name = "granite"},
    {.name = "smollm3", .rotaries = 2},
};

INSTANTIATE_TEST_SUITE_P(Families, DecoderFamilyTest, testing::ValuesIn(kDecoders), family_name);

// Encoders stay graphs over batch and sequence; their attention, norms, products and activations are
// operators.
class EncoderFamilyTest : public testing::TestWithParam<const char*> {};

TEST_P(EncoderFamilyTest, IsFusedAndComputesAsRecorded) {
  const json record = record_of(GetParam());
  const auto [graph, notes] = prepare(GetParam());
  EXPECT_FALSE(passes::is_decoder(*graph));
  std::map<std::string, int> count;
  for (const Node* node : graph->nodes()) ++count[node->op()];
  EXPECT_EQ(count["Attention"], 2) << to_text(*graph);
  EXPECT_EQ(count["LayerNormalization"] + count["SkipLayerNormalization"], 5) << to_text(*graph);
  EXPECT_GE(count["Linear"], 2 * 6) << to_text(*graph);
  EXPECT_EQ(count["Gelu"], 2) << to_text(*graph);
  EXPECT_EQ(count["Softmax"], 0) << to_text(*graph);
  runtime::NamedValues inputs;
  for (const auto& [name, input] : record["inputs"].items()) {
    const auto shape = input["shape"].get<Shape>();
    const std::vector<float> numbers = floats(input["data"]);
    inputs[name] = Tensor::from<float>(shape, numbers);
    if (name != "pixel_values") inputs[name] = inputs[name].dense().cast(DType::I64);
  }
  // What costs time must not be left to the reference.
  runtime::RunOptions options;
  options.on_kernel = [](const Node& node, std::string_view implementation) {
    const std::set<std::string> costly = {
        "Attention", "Linear", "LayerNormalization", "SkipLayerNormalization", "Gelu", "MatMul", "Gemm"};
    if (costly.contains(node.op())) {
      EXPECT_EQ(implementation, "cpu") << describe(node);
    }
  };
  const runtime::NamedValues outputs = runtime::Interpreter(*graph).run(inputs, options);
  for (const auto& [name, output] : record["outputs"].items()) {
    const Tensor got = outputs.at(name).dense();
    EXPECT_EQ(got.shape(), output["shape"].get<Shape>());
    expect_near(got.to_floats(), floats(output["data"]), name);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EncoderFamilyTest,
                         testing::Values("bert", "distilbert", "roberta", "minilm", "vit"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quern::test
