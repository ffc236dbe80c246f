// A trained classifier over all of its labelled rows, by the kernels of plain graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "calibrate/dataset.h"
#include "calibrate/encoder_exit_calibration.h"
#include "calibrate/graph_model.h"
#include "formats/onnx/import.h"
#include "passes/compile.h"
#include "passes/registry.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

TEST(AuthorEncoder, HasTheRecordedAccuracyAndLogits) {
  QUERN_NEEDS_SHARED("models/author-encoder/model.onnx");
  const auto folder = shared_path("models/author-encoder");
  std::ifstream file(folder / "reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  onnx_format::ImportedModel imported = onnx_format::import_model(folder / "model.onnx");
  passes::prepare_for_execution(*imported.graph);
  const auto model = calibrate::make_graph_model(std::move(imported.graph));
  const calibrate::TokenData data = calibrate::TokenData::load(folder / "test.jsonl", {});
  ASSERT_TRUE(data.labelled());
  ASSERT_EQ(data.documents.size(), reference["rows"].get<size_t>());
  std::vector<std::span<const int64_t>> rows;
  for (const auto& document : data.documents) rows.emplace_back(document.ids);
  model->expect(rows);
  int64_t right = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    model->start(rows[i]);
    const float* logits = model->logits(0, 1)[0];
    right += std::max_element(logits, logits + model->width()) - logits == *data.documents[i].label ? 1 : 0;
    if (i >= reference["first_8_logits"].size()) continue;
    const auto expected = reference["first_8_logits"][i].get<std::vector<float>>();
    ASSERT_EQ(expected.size(), static_cast<size_t>(model->width()));
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_NEAR(logits[k], expected[k], 1e-3) << i << " " << k;
  }
  EXPECT_EQ(static_cast<double>(right) / static_cast<double>(rows.size()),
            reference["accuracy"].get<double>());
}

// Heads that nobody trained: the model's own behind earlier layers.
TEST(AuthorEncoder, LeavesEarlyWhereItIsSure) {
  QUERN_NEEDS_SHARED("models/author-encoder/model.onnx");
  const auto folder = shared_path("models/author-encoder");
  onnx_format::ImportedModel imported = onnx_format::import_model(folder / "model.onnx");
  passes::prepare_for_execution(*imported.graph);
  passes::PassContext context;
  const nlohmann::json options = {{"layers", "2,3,4,5"}};
  passes::PassRegistry::instance().create("insert-exit-heads", options)->run(*imported.graph, context);
  const calibrate::TokenData data = calibrate::TokenData::load(folder / "test.jsonl", {.samples = 256});
  calibrate::Texts texts;
  std::vector<int64_t> labels;
  for (const auto& document : data.documents) {
    texts.emplace_back(document.ids);
    labels.push_back(*document.label);
  }
  const calibrate::EncoderExitEvaluator evaluator(*imported.graph, {}, texts, labels);
  const calibrate::ExitQuality quality = evaluator.evaluate(0.6);
  EXPECT_GT(quality.agreement, 0.97);
  EXPECT_LT(quality.exits.average_layers(), 5);
  EXPECT_NEAR(*quality.accuracy, *quality.full_accuracy, 0.02);
}

}  // namespace
}  // namespace quern::test
