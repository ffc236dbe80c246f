#include "runtime/generate/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/expect_error.h"

namespace quern::runtime {
namespace {

TEST(StopStrings, HoldsWhatMayBecomeOne) {
  StopStrings stop({"END", "\n\n"});
  EXPECT_EQ(stop.push("aE"), "a");
  EXPECT_EQ(stop.push("N"), "");
  EXPECT_EQ(stop.push("Eb"), "ENEb");
  EXPECT_EQ(stop.push("\n"), "");
  EXPECT_EQ(stop.push("c\n"), "\nc");
  EXPECT_EQ(stop.push("\nmore"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.met(), "\n\n");
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, GivesBackWhatNeverCame) {
  StopStrings stop({"stop"});
  EXPECT_EQ(stop.push("sto"), "");
  EXPECT_EQ(stop.finish(), "sto");
  EXPECT_FALSE(stop.stopped());
}

TEST(StopStrings, TheFirstInTheTextCounts) {
  StopStrings stop({"later", "soon"});
  EXPECT_EQ(stop.push("very soon, later"), "very ");
  EXPECT_EQ(stop.met(), "soon");
}

// However the text is cut: the pieces add up to what stands before the first stop string that is completed.
TEST(StopStrings, DoesNotDependOnThePieces) {
  std::mt19937 random(3);
  const std::vector<std::string> strings = {"aab", "abab", "bbb"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += "ab"[random() % 2];
    size_t end = std::string::npos, begin = text.size();
    for (const std::string& s : strings) {
      const size_t at = text.find(s);
      if (at != std::string::npos &&
          (end == std::string::npos || at + s.size() < end || (at + s.size() == end && at < begin))) {
        end = at + s.size();
        begin = at;
      }
    }
    StopStrings stop(strings);
    std::string out;
    for (const char c : text) out += stop.push(std::string(1, c));
    out += stop.finish();
    EXPECT_EQ(stop.stopped(), end != std::string::npos) << text;
    EXPECT_EQ(out, text.substr(0, begin)) << text;
  }
}

TEST(StopStrings, RefusesAnEmptyOne) {
  EXPECT_QUERN_ERROR(StopStrings({""}), ErrorCode::InvalidArgument, "empty");
}

}  // namespace
}  // namespace quern::runtime
