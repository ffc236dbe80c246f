// Numbers, tables and lines as people read them.
#include <gtest/gtest.h>

#include "cli/console.h"
#include "cli/format.h"
#include "cli/table.h"

namespace quern::cli {
namespace {

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(999.9e3), "1.00 MB");
  EXPECT_EQ(format_bytes(3976192), "3.98 MB");
  EXPECT_EQ(format_bytes(19122507), "19.1 MB");
  EXPECT_EQ(format_bytes(7.2e12), "7.20 TB");
  EXPECT_EQ(format_bytes(7.2e16), "72000 TB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(format_seconds(0.0004), "0.4 ms");
  EXPECT_EQ(format_seconds(0.34), "340 ms");
  EXPECT_EQ(format_seconds(0.9999), "1.0 s");
  EXPECT_EQ(format_seconds(12.3), "12 s");
  EXPECT_EQ(format_seconds(59.97), "1 min 0 s");
  EXPECT_EQ(format_seconds(7380), "2 h 3 min");
}

TEST(Format, Numbers) {
  EXPECT_EQ(format_number(43.6655), "43.67");
  EXPECT_EQ(format_number(0.0012345), "0.001234");
  EXPECT_EQ(format_number(0), "0");
  EXPECT_EQ(format_number(1e-7), "1.000e-07");
  EXPECT_EQ(format_number(std::numeric_limits<double>::quiet_NaN()), "nan");
  EXPECT_EQ(format_percent(0.98765), "98.77%");
  EXPECT_EQ(format_signed_percent(0.0042), "+0.42%");
  EXPECT_EQ(format_grouped(47104), "47,104");
  EXPECT_EQ(format_grouped(-1234567), "-1,234,567");
  EXPECT_EQ(format_grouped(12), "12");
}

TEST(Table, AlignsByWidthOnTheScreen) {
  Table table({{"name"}, {"bytes", Align::Right}});
  table.add_row({"naïve", "7"});
  table.add_row({"x", "1,024"});
  EXPECT_EQ(table.to_string(2), "  name   bytes\n  naïve      7\n  x      1,024\n");
}

TEST(Table, LeavesNoSpacesAtTheEnd) {
  Table table({{""}, {""}});
  table.add_row({"a", "b"});
  table.add_row({"long", ""});
  EXPECT_EQ(table.to_string(), "a     b\nlong\n");
}

TEST(Wrap, BreaksAtSpaces) {
  EXPECT_EQ(wrap("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(wrap("unbreakable", 4, 0), "unbreakable");
}

TEST(OneLine, HidesControlCharacters) {
  EXPECT_EQ(one_line("a\nb\x1b[31m\x7f"), "a\\nb\\x1b[31m\\x7f");
  EXPECT_EQ(one_line("héllo"), "héllo");
}

}  // namespace
}  // namespace quern::cli
