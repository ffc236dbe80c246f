// Histograms, observers and calibration tables.
#include "calibrate/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using calibrate::ActivationRows;
using calibrate::CalibrationTable;
using calibrate::ExactSum;
using calibrate::MagnitudeHistogram;
using calibrate::MovingAverage;
using calibrate::Observer;
using nlohmann::json;

TEST(MagnitudeHistogram, BinsHoldTheirNumbers) {
  for (const float value : {1.0F, 1.5F, 0.001F, 123.4F, 3e-10F, 7e9F}) {
    const int bin = MagnitudeHistogram::bin_of(value);
    EXPECT_GT(bin, 0);
    EXPECT_EQ(MagnitudeHistogram::bin_of(-value), -bin);
    EXPECT_GE(MagnitudeHistogram::upper(bin) * 1.0000001, value);
    EXPECT_NEAR(MagnitudeHistogram::middle(bin), value, value / 64);
    EXPECT_NEAR(MagnitudeHistogram::middle(-bin), -value, value / 64);
  }
  EXPECT_EQ(MagnitudeHistogram::bin_of(0.0F), 0);
  EXPECT_EQ(MagnitudeHistogram::bin_of(1e-30F), 0);
  EXPECT_EQ(MagnitudeHistogram::bin_of(1e30F), MagnitudeHistogram::kBins);
}

TEST(MagnitudeHistogram, PercentilesAreWithinABin) {
  MagnitudeHistogram histogram;
  for (int i = 1; i <= 10000; ++i) histogram.add(static_cast<float>(i) * (i % 2 == 0 ? 1.0F : -1.0F));
  EXPECT_EQ(histogram.total(), 10000);
  EXPECT_NEAR(histogram.magnitude_at(0.999), 9990, 160);
  EXPECT_NEAR(histogram.magnitude_at(1), 10000, 160);
  EXPECT_NEAR(histogram.value_at(0.001), -9980, 160);
  EXPECT_NEAR(histogram.value_at(0.75), 5000, 80);
  EXPECT_EQ(MagnitudeHistogram().magnitude_at(0.5), 0);
}

// A bell with one far outlier: what entropy and squared error must cut, unlike the extremes.
TEST(MagnitudeHistogram, EntropyAndErrorCutOutliers) {
  MagnitudeHistogram histogram;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 200000; ++i) histogram.add(normal(random));
  histogram.add(30);
  EXPECT_LT(histogram.entropy_limit(8), 29);
  EXPECT_GT(histogram.entropy_limit(8), 2.5);
  EXPECT_LT(histogram.least_error_limit(8), 25);
  EXPECT_GE(histogram.least_error_limit(8), 3);
  EXPECT_GT(histogram.magnitude_at(1), 29);
  MagnitudeHistogram zeros;
  zeros.add(0);
  EXPECT_EQ(zeros.entropy_limit(8), 0);
  EXPECT_EQ(zeros.least_error_limit(8), 0);
}

TEST(ExactSum, OrderDoesNotMatterAndTextComesBack) {
  std::mt19937 random(3);
  std::vector<double> numbers;
  for (int i = 0; i < 1000; ++i)
    numbers.push_back(
        std::ldexp(std::normal_distribution<double>()(random), static_cast<int>(random() % 40) - 20));
  ExactSum forward;
  ExactSum backward;
  for (size_t i = 0; i < numbers.size(); ++i) {
    forward.add(numbers[i]);
    backward.add(numbers[numbers.size() - 1 - i]);
  }
  EXPECT_EQ(forward, backward);
  EXPECT_EQ(ExactSum::parse(forward.to_string()), forward);
  ExactSum negative;
  negative.add(-2.5);
  EXPECT_EQ(ExactSum::parse(negative.to_string()).value(), -2.5);
  EXPECT_QUERN_ERROR(ExactSum::parse("12g"), ErrorCode::BadData, "12g");
  EXPECT_QUERN_ERROR(ExactSum::parse(""), ErrorCode::BadData);
}

TEST(MovingAverage, JoinsLikeOneRun) {
  MovingAverage whole, first, second;
  for (int i = 0; i < 50; ++i) {
    const double value = std::sin(i) + i * 0.1;
    whole.add(value);
    (i < 20 ? first : second).add(value);
  }
  first.append(second);
  EXPECT_NEAR(first.value(), whole.value(), 1e-12);
  MovingAverage constant;
  for (int i = 0; i < 5; ++i) constant.add(4);
  EXPECT_NEAR(constant.value(), 4, 1e-12);
}

// Rows with a known mean, square and extreme per channel.
TEST(Observer, CountsWhatItSees) {
  const std::vector<float> data = {1, -2, 0, 3, 4, 0};
  Observer observer;
  observer.add({.rows = 2, .width = 3, .data = data.data(), .stride = 3});
  EXPECT_EQ(observer.rows(), 2);
  EXPECT_EQ(observer.min(), -2);
  EXPECT_EQ(observer.max(), 4);
  EXPECT_EQ(observer.channel_absmax(), (std::vector<float>{3, 4, 0}));
  EXPECT_EQ(observer.channel_mean_abs(), (std::vector<double>{2, 3, 0}));
  EXPECT_EQ(observer.channel_mean_square(), (std::vector<double>{5, 10, 0}));
  EXPECT_EQ(observer.histogram().total(), 6);
  const nlohmann::ordered_json object = observer.to_json("x");
  EXPECT_EQ(Observer::from_json(object, "here").to_json("x"), object);
  nlohmann::ordered_json broken = object;
  broken["state"]["sums_abs"].erase(0);
  EXPECT_QUERN_ERROR(Observer::from_json(broken, "here"), ErrorCode::BadData, "here");
}

class TableTest : public testing::Test {
 protected:
  TableTest() {
    std::mt19937 random(5);
    samples_.digest = "data";
    samples_.options = {.samples = 12, .context = 20, .seed = 0};
    for (int i = 0; i < 12; ++i) {
      std::vector<int64_t> ids;
      for (int t = 0; t < 20; ++t) ids.push_back(static_cast<int64_t>(random() % 97));
      samples_.windows.push_back(ids);
    }
    graph_ = DecoderBuilder({}).build();
  }

  CalibrationTable empty() const {
    return {.model_digest = "model", .data_digest = "data", .samples = samples_.options, .windows = 12};
  }
  CalibrationTable observed(int64_t first, int64_t last) const {
    CalibrationTable table = empty();
    calibrate::observe(*graph_, samples_, {.range = {first, last}, .threads = 1}, table);
    return table;
  }
  // Without what is allowed to differ in the last bits.
  static json comparable(const CalibrationTable& table) {
    json object = json::parse(table.to_text());
    for (json& tensor : object["tensors"]) {
      tensor["state"].erase("average_min");
      tensor["state"].erase("average_max");
    }
    return object;
  }

  calibrate::Samples samples_;
  std::unique_ptr<Graph> graph_;
};

TEST_F(TableTest, ObservesTheInputOfEveryProduct) {
  const CalibrationTable table = observed(0, 12);
  EXPECT_TRUE(table.is_complete());
  EXPECT_TRUE(table.unreached().empty());
  const std::vector<std::string> names = calibrate::product_inputs(*graph_);
  EXPECT_EQ(table.tensors.size(), names.size());
  for (const std::string& name : names) EXPECT_EQ(table.tensors.at(name).rows(), 12 * 20) << name;
}

TEST_F(TableTest, ShardsJoinToWhatOneRunGives) {
  const json whole = comparable(observed(0, 12));
  CalibrationTable parts = observed(4, 9);
  parts.merge(observed(0, 4));
  EXPECT_FALSE(parts.is_complete());
  parts.merge(observed(9, 12));
  EXPECT_EQ(comparable(parts), whole);
}

TEST_F(TableTest, AnInterruptedRunGoesOn) {
  CalibrationTable table = empty();
  struct Stop {};
  EXPECT_THROW(calibrate::observe(*graph_, samples_,
                                  {.range = {0, 12},
                                   .threads = 1,
                                   .progress =
                                       [](int64_t done, int64_t) {
                                         if (done == 5) throw Stop{};
                                       }},
                                  table),
               Stop);
  CalibrationTable left = CalibrationTable::parse(table.to_text(), "part");
  EXPECT_EQ(left.seen, (std::vector<std::pair<int64_t, int64_t>>{{0, 5}}));
  calibrate::observe(*graph_, samples_, {.range = {0, 12}, .threads = 1}, left);
  EXPECT_EQ(comparable(left), comparable(observed(0, 12)));
}

TEST_F(TableTest, TextComesBack) {
  const CalibrationTable table = observed(0, 12);
  EXPECT_EQ(CalibrationTable::parse(table.to_text(), "t").to_text(), table.to_text());
}

TEST_F(TableTest, SaysWhatDoesNotBelongTogether) {
  CalibrationTable table = observed(0, 6);
  EXPECT_QUERN_ERROR(table.merge(observed(5, 8)), ErrorCode::InvalidArgument, "both", "5 to 5");
  CalibrationTable other = observed(6, 12);
  other.data_digest = "other";
  EXPECT_QUERN_ERROR(table.merge(other), ErrorCode::InvalidArgument, "different samples");
  other.model_digest = "m2";
  EXPECT_QUERN_ERROR(table.merge(other), ErrorCode::InvalidArgument, "m2");
  EXPECT_QUERN_ERROR(table.check_model("m3", "'x.onnx'"), ErrorCode::InvalidArgument, "x.onnx", "m3");
  EXPECT_QUERN_ERROR(CalibrationTable::parse("{}", "t.json"), ErrorCode::BadData, "t.json");
  EXPECT_QUERN_ERROR(CalibrationTable::parse("{\"quern_calibration\": 1}", "t.json"), ErrorCode::BadData,
                     "t.json");
  EXPECT_QUERN_ERROR(CalibrationTable::parse("{\"quern_calibration\": 99}", "t.json"), ErrorCode::Unsupported,
                     "99");
}

TEST_F(TableTest, InfiniteActivationsAreNamedByTensorAndToken) {
  Value* table = graph_->find_value("embed_tokens");
  Tensor broken = *table->tensor();
  broken.set(0, INFINITY);
  Rewriter rewriter(*graph_);
  rewriter.set_constant(table, broken);
  rewriter.commit();
  samples_.windows = {{3, 0, 5}};
  CalibrationTable fresh = empty();
  EXPECT_QUERN_ERROR(calibrate::observe(*graph_, samples_, {.range = {0, 1}, .threads = 1}, fresh),
                     ErrorCode::BadData, "activation '", "row 1");
}

}  // namespace
}  // namespace quern::test
