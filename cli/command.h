// A sub-command of `quern`.
#pragma once

#include <span>
#include <string_view>

#include "cli/console.h"
#include "cli/exit_status.h"
#include "cli/options.h"

namespace quern::cli {

struct Command {
  const char* name;
  const char* summary;  // one line, lower case, no full stop
  const char* group;    // the heading it stands under in `quern help`
  const char* details;  // paragraphs for its own help, or ""
  // Declares its options; --help, --json and --quiet are added to them.
  void (*declare)(OptionSet&);
  // Does the work. Errors are thrown: Error, UsageError.
  ExitStatus (*run)(const Arguments&, Console&);
  bool has_json = true;
};

// All of them, in the order of the help.
std::span<const Command> commands();
// Null if there is none of that name.
const Command* find_command(std::string_view name);

// The options of `command` with the common ones.
OptionSet options_of(const Command& command);
// What `quern help` and `quern help COMMAND` print.
std::string general_help();
std::string help_of(const Command& command);
// docs/commands.md: `quern help --markdown`.
std::string markdown_help();

// The section of the options that all commands have.
inline constexpr const char* kCommonSection = "Output";

// Runs the program; `words` without the program's name. Prints errors and maps them to statuses; never
// throws.
ExitStatus run_program(std::span<const std::string> words);

}  // namespace quern::cli
