// Tiny models with what ONNX Runtime recorded of them (families/make_families.py), and checks against it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/onnx/import.h"
#include "ir/schema.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "runtime/interpreter.h"
#include "runtime/quern.h"

namespace quern::test {

using nlohmann::json;
using runtime::LogitsFor;
using runtime::Program;
using runtime::Sequence;
using runtime::SequenceStep;
using runtime::Session;

// The record of the model `file`, without its extension.
inline json record_of(const std::filesystem::path& file) {
  std::ifstream stream(file.string() + ".json");
  return json::parse(stream);
}

// The graph ready to run, and what the passes noted on the way.
inline std::pair<std::unique_ptr<Graph>, std::string> prepare(const std::filesystem::path& file) {
  onnx_format::ImportedModel imported = onnx_format::import_model(file.string() + ".onnx");
  passes::PassContext context;
  context.explain = true;
  const passes::PipelineReport report =
      passes::run_recipe(passes::execution_recipe(), *imported.graph, context);
  std::string notes;
  for (const passes::PassRun& run : report.runs) {
    for (const std::string& note : run.report.notes) notes += note + "\n";
    if (run.pass != "fuse-experts" && run.pass != "fuse-attention") continue;
    for (const passes::MatchFailure& failure : run.report.failures)
      notes += concat(run.pass, ", ", failure.where, ": ", failure.reason, "\n");
  }
  return {std::move(imported.graph), notes};
}

// Relative to the largest of what is expected.
inline void expect_near(std::span<const float> got, std::span<const float> wanted, const std::string& what,
                        float tolerance = 5e-5F) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  float scale = 0;
  for (const float x : wanted) scale = std::max(scale, std::fabs(x));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], wanted[i], tolerance * scale) << what << " at " << i;
}

inline std::vector<int64_t> ints(const json& list) {
  return list.get<std::vector<int64_t>>();
}
inline std::vector<float> floats(const json& list) {
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

inline void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}

inline void expect_traits(const Graph& graph, const Family& family) {
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
inline void expect_decoding(Session& session, const json& record, float tolerance = 5e-5F) {
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
  expect_near(prefill, floats(record["prefill"]), "prefill", tolerance);
  for (size_t i = 0; i < record["steps"].size(); ++i) {
    expect_near(append(sequence, {record["step_ids"][i].get<int64_t>()}), floats(record["steps"][i]),
                concat("step ", i), tolerance);
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
inline void expect_two_prompts(Session& session, const json& record) {
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

// A graph run once on the recorded inputs.
inline void expect_outputs(const Graph& graph, const json& record, const runtime::RunOptions& options = {}) {
  runtime::NamedValues inputs;
  for (const auto& [name, input] : record["inputs"].items()) {
    const auto shape = input["shape"].get<Shape>();
    const std::vector<float> numbers = floats(input["data"]);
    inputs[name] = Tensor::from<float>(shape, numbers);
    if (name != "pixel_values") inputs[name] = inputs[name].dense().cast(DType::I64);
  }
  const runtime::NamedValues outputs = runtime::Interpreter(graph).run(inputs, options);
  for (const auto& [name, output] : record["outputs"].items()) {
    const Tensor got = outputs.at(name).dense();
    EXPECT_EQ(got.shape(), output["shape"].get<Shape>());
    expect_near(got.to_floats(), floats(output["data"]), name);
  }
}

}  // namespace quern::test
