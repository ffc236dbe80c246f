#include "calibrate/samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/expect_error.h"

namespace quern::test {
namespace {

using calibrate::draw_samples;
using calibrate::Samples;
using calibrate::TokenData;

TokenData numbered(const std::vector<int64_t>& lengths) {
  TokenData data{.source = "numbers.jsonl", .digest = "abc"};
  int64_t next = 0;
  for (const int64_t length : lengths) {
    calibrate::Document document;
    for (int64_t i = 0; i < length; ++i) document.ids.push_back(next++);
    data.documents.push_back(document);
  }
  return data;
}

TEST(Samples, CutsDocumentsIntoWindows) {
  const Samples samples = draw_samples(numbered({10, 3, 8}), {.samples = 100, .context = 4});
  ASSERT_EQ(samples.windows.size(), 5U);
  EXPECT_EQ(samples.windows[0], (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(samples.windows[1], (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(samples.windows[2], (std::vector<int64_t>{10, 11, 12}))
      << "shorter than a window: one of its own";
  EXPECT_EQ(samples.windows[4], (std::vector<int64_t>{17, 18, 19, 20}));
  EXPECT_EQ(samples.tokens(), 19);
  EXPECT_EQ(samples.digest, "abc");
}

TEST(Samples, EachBeginsWithTheOpening) {
  TokenData data = numbered({11});
  data.documents[0].opening = 1;
  const Samples samples = draw_samples(data, {.samples = 100, .context = 4});
  EXPECT_EQ(samples.windows, (std::vector<std::vector<int64_t>>{{0, 1, 2, 3}, {0, 4, 5, 6}, {0, 7, 8, 9}}));
}

TEST(Samples, DrawsTheSameForTheSameSeed) {
  const TokenData data = numbered({4000});
  const Samples once = draw_samples(data, {.samples = 20, .context = 4, .seed = 5});
  EXPECT_EQ(draw_samples(data, {.samples = 20, .context = 4, .seed = 5}).windows, once.windows);
  EXPECT_NE(draw_samples(data, {.samples = 20, .context = 4, .seed = 6}).windows, once.windows);
  std::set<std::vector<int64_t>> distinct(once.windows.begin(), once.windows.end());
  EXPECT_EQ(distinct.size(), 20U);
  EXPECT_TRUE(std::is_sorted(once.windows.begin(), once.windows.end())) << "in the order of the data";
}

TEST(Samples, SayWhatIsWrong) {
  EXPECT_QUERN_ERROR(draw_samples(numbered({0, 0}), {}), ErrorCode::BadData, "numbers.jsonl", "no token");
  EXPECT_QUERN_ERROR(draw_samples(numbered({5}), {.samples = 0}), ErrorCode::InvalidArgument, "0");
}

}  // namespace
}  // namespace quern::test
