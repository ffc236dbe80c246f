#include "cli/options.h"

#include <gtest/gtest.h>

namespace quern::cli {
namespace {

OptionSet sample() {
  OptionSet options;
  options.positional({.name = "MODEL", .help = "a model"})
      .positional({.name = "REST", .help = "more", .required = false, .repeated = true})
      .flag("quiet,q", "")
      .flag("help,h", "")
      .text("output,o", "FILE", "")
      .texts("override", "RULE", "")
      .choice("weights", {"fp32", "int8"}, "", "fp32")
      .integer("count,n", "N", {1, 100}, "", 7)
      .number("temperature", "T", {0, 10}, "")
      .share("max-ppl-increase", "SHARE", "");
  return options;
}

Arguments parse(const std::vector<std::string>& words) {
  return sample().parse(words);
}

std::string complaint(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Options, ReadsEveryKind) {
  const Arguments arguments =
      parse({"-q", "m.onnx", "--output=a=b", "--override", "x=1", "--override", "y=2", "--weights", "int8",
             "-n9", "--temperature", "0.5", "--max-ppl-increase", "1%", "r1", "r2"});
  EXPECT_TRUE(arguments.flag("quiet"));
  EXPECT_FALSE(arguments.flag("help"));
  EXPECT_EQ(arguments.text_of("MODEL"), "m.onnx");
  EXPECT_EQ(arguments.text_of("output"), "a=b");
  EXPECT_EQ(arguments.list("override"), (std::vector<std::string>{"x=1", "y=2"}));
  EXPECT_EQ(arguments.text_of("weights"), "int8");
  EXPECT_EQ(arguments.integer_of("count"), 9);
  EXPECT_DOUBLE_EQ(arguments.number_of("temperature"), 0.5);
  EXPECT_DOUBLE_EQ(arguments.number_of("max-ppl-increase"), 0.01);
  EXPECT_EQ(arguments.list("REST"), (std::vector<std::string>{"r1", "r2"}));
}

TEST(Options, PresetsStandInForWhatIsNotGiven) {
  const Arguments arguments = parse({"m"});
  EXPECT_EQ(arguments.text_of("weights"), "fp32");
  EXPECT_EQ(arguments.integer_of("count"), 7);
  EXPECT_FALSE(arguments.given("weights"));
  EXPECT_FALSE(arguments.text("output").has_value());
  EXPECT_FALSE(arguments.number("temperature").has_value());
  EXPECT_TRUE(arguments.list("REST").empty());
}

TEST(Options, AskingForAnUndeclaredOptionIsABug) {
  EXPECT_THROW(static_cast<void>(parse({"m"}).text("weight")), std::logic_error);
}

TEST(Options, TakesValuesThatLookLikeOptions) {
  EXPECT_EQ(parse({"m", "--output=-x"}).text_of("output"), "-x");
  EXPECT_EQ(parse({"m", "-o", "-"}).text_of("output"), "-");
  EXPECT_EQ(parse({"--", "-m"}).text_of("MODEL"), "-m");
  EXPECT_EQ(complaint({"m", "-n", "-3"}), "option '--count' takes a whole number from 1 to 100, not '-3'");
}

TEST(Options, NamesNearOptions) {
  EXPECT_EQ(complaint({"m", "--weigths", "int8"}), "unknown option '--weigths'; did you mean '--weights'?");
  EXPECT_EQ(complaint({"m", "--weigths=int8"}), "unknown option '--weigths'; did you mean '--weights'?");
  EXPECT_EQ(complaint({"m", "--zzz"}), "unknown option '--zzz'");
  EXPECT_EQ(complaint({"m", "-x"}), "unknown option '-x'");
}

TEST(Options, DoesNotGuessAbbreviations) {
  EXPECT_NE(complaint({"m", "--weig", "int8"}), "");
}

TEST(Options, RefusesWhatMakesNoSense) {
  EXPECT_EQ(complaint({}), "missing MODEL: a model");
  EXPECT_EQ(complaint({"m", "--weights", "int7"}), "option '--weights' takes fp32 or int8, not 'int7'");
  EXPECT_EQ(complaint({"m", "-n", "0"}), "option '--count' takes a whole number from 1 to 100, not '0'");
  EXPECT_EQ(complaint({"m", "-n", "1e1"}), "option '--count' takes a whole number from 1 to 100, not '1e1'");
  EXPECT_EQ(complaint({"m", "--temperature", "nan"}),
            "option '--temperature' takes a number from 0 to 10, not 'nan'");
  EXPECT_EQ(complaint({"m", "--max-ppl-increase", "1%%"}),
            "option '--max-ppl-increase' takes a share such as 1% or 0.01, not '1%%'");
  EXPECT_EQ(complaint({"m", "-o", "a", "-o", "b"}), "option '--output' is given twice");
  EXPECT_EQ(complaint({"m", "-o"}), "option '--output' needs a value: --output FILE");
  EXPECT_EQ(complaint({"m", "--quiet=yes"}), "option '--quiet' takes no value");
}

TEST(Options, RefusesArgumentsTooMany) {
  OptionSet options;
  options.positional({.name = "MODEL", .help = "a model"}).flag("help,h", "");
  const std::vector<std::string> words = {"a", "b"};
  EXPECT_THROW(options.parse(words), UsageError);
}

TEST(Options, HelpIsGivenWhateverElseIsWrong) {
  EXPECT_TRUE(parse({"--help"}).flag("help"));
  EXPECT_TRUE(parse({"--weights", "int7", "-h"}).flag("help"));
}

TEST(Options, RefusesSharesAboveOneWithoutAPercentSign) {
  OptionSet options;
  options.share("most", "SHARE", "");
  for (const char* word : {"--most=5%", "--most=500%", "--most=1", "--most=0.05"})
    EXPECT_NO_THROW(options.parse(std::vector<std::string>{word})) << word;
  EXPECT_THROW(options.parse(std::vector<std::string>{"--most=5"}), UsageError);
  EXPECT_THROW(options.parse(std::vector<std::string>{"--most=1.01"}), UsageError);
  // Of a limit, 1 is as likely 1% as 100%.
  options.share("max-loss", "SHARE", "");
  EXPECT_THROW(options.parse(std::vector<std::string>{"--max-loss=1"}), UsageError);
  EXPECT_NO_THROW(options.parse(std::vector<std::string>{"--max-loss=100%"}));
}

TEST(Options, ReadsShares) {
  EXPECT_DOUBLE_EQ(parse_share("1%").value(), 0.01);
  EXPECT_DOUBLE_EQ(parse_share("-0.5").value(), -0.5);
  EXPECT_FALSE(parse_share("").has_value());
  EXPECT_FALSE(parse_share("%").has_value());
  EXPECT_FALSE(parse_share("inf").has_value());
}

}  // namespace
}  // namespace quern::cli
