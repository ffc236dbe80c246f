#include "calibrate/windows.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace quern::calibrate {
namespace {

TEST(Windows, CountsTheNextTokenOfEveryPosition) {
  // The text of the example model's reference: 47132 tokens, of which 184 windows of 256 are scored.
  const std::vector<Window> windows = cut_windows(47132, {.context = 256});
  ASSERT_EQ(windows.size(), 184u);
  EXPECT_EQ(windows[0], (Window{0, 256, 0}));
  EXPECT_EQ(windows[183], (Window{183 * 256, 256, 0}));
}

TEST(Windows, TheLastTokenIsATargetOnly) {
  EXPECT_EQ(cut_windows(9, {.context = 4}).size(), 2u);
  EXPECT_EQ(cut_windows(8, {.context = 4}).size(), 1u);
}

TEST(Windows, WithAStrideEachScoresWhatTheOneBeforeDidNot) {
  const std::vector<Window> windows = cut_windows(11, {.context = 4, .stride = 2});
  EXPECT_EQ(windows, (std::vector<Window>{{0, 4, 0}, {2, 4, 2}, {4, 4, 2}, {6, 4, 2}}));
  std::vector<int> scored(11);
  for (const Window& window : windows) {
    for (int64_t p = window.first; p < window.length; ++p)
      ++scored[static_cast<size_t>(window.begin + p + 1)];
  }
  EXPECT_EQ(scored, (std::vector<int>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(Windows, AShortTextIsOneShortWindow) {
  EXPECT_EQ(cut_windows(3, {.context = 4}), (std::vector<Window>{{0, 2, 0}}));
  EXPECT_EQ(cut_windows(5, {.context = 4}), (std::vector<Window>{{0, 4, 0}}));
  EXPECT_TRUE(cut_windows(1, {.context = 4}).empty());
  EXPECT_TRUE(cut_windows(0, {.context = 4}).empty());
}

TEST(Windows, EachBeginsWithTheOpening) {
  const WindowProtocol protocol{.context = 4, .opening = 1};
  const std::vector<Window> windows = cut_windows(11, protocol);
  EXPECT_EQ(windows, (std::vector<Window>{{0, 4, 0}, {4, 4, 1, 1}, {7, 4, 1, 1}}));
  std::vector<int> scored(11);
  for (const Window& window : windows) {
    for (int64_t p = window.first; p < window.length; ++p) ++scored[static_cast<size_t>(window.target(p))];
  }
  EXPECT_EQ(scored, (std::vector<int>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(
      protocol.describe(),
      "non-overlapping windows of 4 tokens, each begun with the 1 token that the tokenizer puts before a "
      "text, each scored on its own, the next token of every position counted that stands in the text");
}

TEST(Windows, AnOpeningOfTwoDoesNotScoreItself) {
  EXPECT_EQ(cut_windows(8, {.context = 4, .stride = 1, .opening = 2}),
            (std::vector<Window>{{0, 4, 1}, {3, 4, 3, 2}, {4, 4, 3, 2}, {5, 4, 3, 2}}));
  EXPECT_EQ(cut_windows(3, {.context = 4, .opening = 2}), (std::vector<Window>{{0, 2, 1}}));
  EXPECT_TRUE(cut_windows(2, {.context = 4, .opening = 2}).empty());
  EXPECT_QUERN_ERROR(cut_windows(8, {.context = 2, .opening = 2}), ErrorCode::InvalidArgument, "context of 2",
                     "no room");
}

TEST(Windows, RefusesNonsense) {
  EXPECT_QUERN_ERROR(cut_windows(9, {.context = 0}), ErrorCode::InvalidArgument, "context of 0");
  EXPECT_QUERN_ERROR(cut_windows(9, {.context = 4, .stride = 5}), ErrorCode::InvalidArgument, "stride of 5");
  EXPECT_QUERN_ERROR(cut_windows(9, {.context = 4, .stride = -1}), ErrorCode::InvalidArgument,
                     "stride of -1");
}

}  // namespace
}  // namespace quern::calibrate
