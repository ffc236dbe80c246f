// What holds for every command: help, unknown names, exit statuses, output streams.
#include <gtest/gtest.h>

#include "cli/command.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

TEST(Frame, SaysItsVersion) {
  const ProgramResult result = quern({"--version"});
  EXPECT_EQ(result.status, 0);
  EXPECT_TRUE(result.out.starts_with("quern 0.")) << result.out;
}

TEST(Frame, HelpListsEveryCommand) {
  const ProgramResult result = quern({"help"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.err, "");
  for (const cli::Command& command : cli::commands()) {
    EXPECT_NE(result.out.find(std::string("\n  ") + command.name + " "), std::string::npos) << command.name;
  }
}

TEST(Frame, EveryCommandExplainsItselfWithExamples) {
  for (const cli::Command& command : cli::commands()) {
    const ProgramResult help = quern({command.name, "--help"});
    EXPECT_EQ(help.status, 0) << command.name;
    EXPECT_EQ(help.err, "") << command.name;
    EXPECT_NE(help.out.find("\nExamples:\n  quern " + std::string(command.name)), std::string::npos)
        << help.out;
    EXPECT_NE(help.out.find("--quiet"), std::string::npos) << command.name;
    EXPECT_EQ(quern({"help", command.name}).out, help.out) << command.name;
    EXPECT_EQ(help.out.find('\033'), std::string::npos) << "colours outside a terminal: " << command.name;
  }
}

TEST(Frame, TheDocumentationIsWhatTheHelpSays) {
  EXPECT_EQ(quern({"help", "--markdown"}).out, read_text(source_path("docs/commands.md")))
      << "build/cli/quern help --markdown > docs/commands.md";
}

TEST(Frame, NoCommandIsAUsageErrorWithHelp) {
  const ProgramResult result = quern({});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.out.find("Usage:"), std::string::npos);
  EXPECT_EQ(result.err, "quern: no command given\n");
}

TEST(Frame, NamesNearCommands) {
  expect_refused(quern({"tokenise"}), 2, {"unknown command 'tokenise'; did you mean 'tokenize'?"});
  expect_refused(quern({"quantize"}), 2, {"did you mean 'convert'?"});
  expect_refused(quern({"frobnicate"}), 2, {"`quern help` lists the commands"});
  expect_refused(quern({"help", "frobnicate"}), 2, {"frobnicate", "`quern help` lists the commands"});
  expect_refused(quern({"help", "convret"}), 2, {"did you mean 'convert'?"});
  expect_refused(quern({"--json"}), 2, {"before a command"});
}

TEST(Frame, NamesTheActionsOfACommand) {
  expect_refused(quern({"cache", "model.quern"}), 2, {"'model.quern' is no ACTION; there is build"});
  expect_refused(quern({"train-heads", "model.quern", "x"}), 2, {"there is medusa or exits"});
}

TEST(Frame, NamesTheCommandThatExplainsAWrongOption) {
  expect_refused(quern({"tokenize", "--pices"}), 2, {"did you mean '--pieces'?", "quern help tokenize"});
}

TEST(Frame, AnErrorIsOneLineWhateverAFileIsCalled) {
  expect_refused(quern({"tokenize", "no\nsuch\033[31mfile", "-p", "x"}), 5, {"no\\x0asuch\\x1b[31mfile"});
}

TEST(Frame, AFullDiskUnderStandardOutputIsAnError) {
  const ProgramResult result = quern({"help"}, {.standard_output = "/dev/full"});
  EXPECT_EQ(result.status, 5);
  EXPECT_NE(result.err.find("standard output"), std::string::npos) << result.err;
}

TEST(Frame, AReaderThatWentAwayEndsItQuietly) {
  const std::string script = quern_binary() + " tokenize " + example("tokenizer.json") + " --file " +
                             example("heldout.txt") +
                             " --pieces 2>err | head -n 1 >out; "
                             "echo ${PIPESTATUS[0]} >status";
  const TempDir folder;
  run_program({"/bin/bash", "-c", script}, {.folder = folder.path()});
  EXPECT_EQ(read_text(folder / "status"), "141\n");
  EXPECT_EQ(read_text(folder / "err"), "");
}

}  // namespace
}  // namespace quern::test
