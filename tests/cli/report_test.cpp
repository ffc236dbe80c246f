// The forms of a validation's outcome, from made-up figures.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/report/svg.h"
#include "cli/validation.h"
#include "runtime/generate/random.h"
#include "tests/support/temp_dir.h"

namespace quern::cli {
namespace {

TensorGroup group(const std::string& name, int64_t parameters, int64_t bytes, const std::string& format) {
  return {.name = name,
          .tensors = 1,
          .parameters = parameters,
          .parameter_bytes = bytes,
          .bytes = bytes,
          .formats = {{format, bytes}}};
}

ModelFacts facts(int64_t bytes_per_parameter, const std::string& format) {
  ModelFacts facts;
  for (const auto& [name, parameters] : std::vector<std::pair<std::string, int64_t>>{
           {"mlp", 2359296}, {"embedding and head (tied)", 786432}, {"attention", 786432}}) {
    facts.groups.push_back(group(name, parameters, parameters * bytes_per_parameter, format));
    facts.parameters += parameters;
    facts.weight_bytes += parameters * bytes_per_parameter;
  }
  return facts;
}

calibrate::Comparison comparison() {
  calibrate::Comparison result;
  runtime::RandomStream random(3);
  for (int w = 0; w < 100; ++w) {
    double sum = 0;
    for (int p = 0; p < 64; ++p) {
      const double kl =
          std::exp(-9 + 1.3 * (random.next_uniform() + random.next_uniform() + random.next_uniform()));
      result.agreement.kls.push_back(kl);
      sum += kl;
    }
    result.by_window.push_back({3.7, 3.7 + 0.002 * (random.next_uniform() - 0.4), sum / 64});
  }
  for (int p = 0; p < 64; ++p) result.kl_by_position.push_back(1e-3 + 2e-4 * random.next_uniform());
  result.windows = 100;
  result.scored = 6400;
  result.protocol = {.context = 64};
  result.reference.perplexity = {43.6655, calibrate::Interval{41.1, 46.3}};
  result.candidate.perplexity = {43.712, calibrate::Interval{41.2, 46.4}};
  result.perplexity_increase = {0.00106, calibrate::Interval{0.0004, 0.0017}};
  result.agreement.kl_mean = 9.1e-4;
  result.agreement.kl_median = 8.2e-4;
  result.agreement.kl_p99 = 3.1e-3;
  result.agreement.kl_max = 6e-3;
  result.agreement.kl_interval = calibrate::Interval{8.8e-4, 9.5e-4};
  result.agreement.top1 = {0.9874, calibrate::Interval{0.985, 0.99}};
  result.agreement.top5 = {0.9998, {}};
  return result;
}

Validation sample() {
  Validation v;
  v.reference = {"model.onnx", "ONNX", "aa11", 19122507, facts(4, "f32"), 8120, 410};
  v.candidate = {"a<b>&\"c\".quern",
                 "quern artifact",
                 "bb22",
                 4360000,
                 facts(1, "int8 symmetric per channel"),
                 12210,
                 1205};
  v.data_path = "heldout.txt";
  v.data_digest = "cc33";
  v.data_tokens = 6412;
  v.comparison = comparison();
  v.thresholds = {{.option = "max-ppl-increase",
                   .what = "perplexity increase",
                   .limit = 0.01,
                   .value = 0.00106,
                   .interval = v.comparison.perplexity_increase.interval},
                  {.option = "min-top1",
                   .what = "top-1 agreement",
                   .limit = 0.99,
                   .value = 0.9874,
                   .at_least = true,
                   .interval = v.comparison.agreement.top1.interval}};
  v.commands = {"quern validate model.onnx 'a<b>.quern' --data heldout.txt"};
  v.recipe = "{\n  \"version\": 1\n}";
  v.machine = "a processor, 2 threads";
  v.version = "0.1.0";
  return v;
}

TEST(ValidationJson, HasTheDocumentedKeys) {
  const nlohmann::ordered_json object = to_json(sample());
  EXPECT_DOUBLE_EQ(object.at("reference").at("perplexity"), 43.6655);
  EXPECT_DOUBLE_EQ(object.at("candidate").at("perplexity"), 43.712);
  EXPECT_DOUBLE_EQ(object.at("kl").at("mean"), 9.1e-4);
  EXPECT_DOUBLE_EQ(object.at("kl").at("p99"), 3.1e-3);
  EXPECT_DOUBLE_EQ(object.at("top1"), 0.9874);
  EXPECT_EQ(object.at("candidate").at("size_bytes"), 4360000);
  EXPECT_DOUBLE_EQ(object.at("candidate").at("bits_per_weight"), 8);
  EXPECT_DOUBLE_EQ(object.at("reference").at("bits_per_weight"), 32);
  EXPECT_EQ(object.at("protocol").at("context"), 64);
  EXPECT_EQ(object.at("passed"), false);
  EXPECT_EQ(object.at("thresholds").at(0).at("met"), true);
  EXPECT_EQ(object.at("thresholds").at(1).at("met"), false);
  EXPECT_EQ(object.at("top5_interval"), nullptr);
}

TEST(ValidationJson, WritesWhatIsNoNumberAsNull) {
  Validation v = sample();
  v.comparison.agreement.kl_max = std::numeric_limits<double>::infinity();
  EXPECT_NE(to_json(v).dump().find("\"max\":null"), std::string::npos);
}

TEST(ValidationText, SaysWhatWasMissed) {
  const std::string text = to_text(sample());
  EXPECT_NE(text.find("MISSED  top-1 agreement 98.7%, at least 99.0% wanted"), std::string::npos) << text;
  EXPECT_NE(text.find("ok      perplexity increase 0.106%, at most 1.00% allowed"), std::string::npos)
      << text;
  EXPECT_NE(text.find("6,400 tokens scored"), std::string::npos) << text;
}

TEST(Threshold, KnowsWhenTheDataIsTooLittle) {
  Threshold threshold{.limit = 0.01, .value = 0.009, .interval = calibrate::Interval{0.005, 0.012}};
  EXPECT_TRUE(threshold.met());
  EXPECT_TRUE(threshold.within_noise());
  threshold.interval = calibrate::Interval{0.005, 0.0099};
  EXPECT_FALSE(threshold.within_noise());
}

TEST(ValidationHtml, IsSelfContainedAndEscapesNames) {
  const std::string page = to_html(sample());
  // QUERN_KEEP_REPORT=file keeps the page for looking at it.
  if (const char* kept = std::getenv("QUERN_KEEP_REPORT")) test::write_text(kept, page);
  for (const char* reference : {"http:", "https:", "<script", "<link", "<img", "url("}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
  EXPECT_EQ(page.find("a<b>"), std::string::npos);
  EXPECT_NE(page.find("a&lt;b&gt;&amp;&quot;c&quot;.quern"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
  for (const char* tag : {"svg", "figure", "table", "div", "dl", "pre", "title"}) {
    const auto count = [&](const std::string& text) {
      size_t found = 0;
      for (size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
      return found;
    };
    EXPECT_EQ(count(std::string("<") + tag + ">") + count(std::string("<") + tag + " "),
              count(std::string("</") + tag + ">"))
        << tag;
  }
}

TEST(ValidationHtml, StandsFiguresThatAreEmptyOrEqual) {
  Validation v = sample();
  v.comparison = {};
  v.comparison.agreement.kls.assign(100, 0);
  EXPECT_EQ(to_html(v).find("inf"), std::string::npos);
  v.tensors = calibrate::TensorComparison{.samples = 3, .outputs = {{"logits", 0, 120, 1}}};
  EXPECT_NE(to_html(v).find("SQNR"), std::string::npos);
}

TEST(Svg, TicksAreRoundAndEncloseTheRange) {
  EXPECT_EQ(report::nice_ticks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(report::nice_ticks(3, 17, 5), (std::vector<double>{0, 5, 10, 15, 20}));
  EXPECT_EQ(report::nice_ticks(-7, 3, 5), (std::vector<double>{-8, -6, -4, -2, 0, 2, 4}));
  EXPECT_EQ(report::nice_ticks(2, 2, 5).size(), 2u);
}

}  // namespace
}  // namespace quern::cli
