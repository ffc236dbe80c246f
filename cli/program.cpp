// From words to a command, and from whatever it throws to one line and a status.
#include <cstdlib>
#include <map>
#include <new>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/version.h"
#include "ir/near_names.h"

namespace quern::cli {
namespace {

// " 'typed'", and what it may have been meant to be.
std::string unknown(const std::string& typed) {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  // What other tools call it.
  static const std::map<std::string, const char*> kElsewhere = {
      {"quantize", "convert"}, {"quantise", "convert"},  {"compile", "convert"},     {"optimize", "convert"},
      {"eval", "validate"},    {"evaluate", "validate"}, {"perplexity", "validate"}, {"ppl", "validate"},
      {"chat", "generate"},    {"benchmark", "bench"},   {"info", "inspect"},        {"show", "inspect"},
      {"infer", "run"},        {"tune", "tune-draft"},   {"train", "train-heads"}};
  const auto elsewhere = kElsewhere.find(typed);
  if (elsewhere != kElsewhere.end()) return " '" + typed + "'; did you mean '" + elsewhere->second + "'?";
  const std::string near = did_you_mean(typed, names);
  return " '" + typed + "'" + (near.empty() ? "; `quern help` lists the commands" : near);
}

ExitStatus print_help(std::span<const std::string> words, Console& console) {
  if (words.empty()) {
    console.print(general_help());
    return ExitStatus::Ok;
  }
  if (words.front() == "--markdown") {
    console.print(markdown_help());
    return ExitStatus::Ok;
  }
  const Command* command = find_command(words.front());
  if (command == nullptr) throw UsageError("there is no command" + unknown(words.front()));
  console.print(help_of(*command));
  return ExitStatus::Ok;
}

ExitStatus run_command(const Command& command, std::span<const std::string> words) {
  const Arguments arguments = options_of(command).parse(words);
  Console console({.json = command.has_json && arguments.flag("json"), .quiet = arguments.flag("quiet")});
  if (arguments.flag("help")) {
    console.print(help_of(command));
    return ExitStatus::Ok;
  }
  return command.run(arguments, console);
}

ExitStatus dispatch(std::span<const std::string> words) {
  Console console;
  if (words.empty()) {
    console.print(general_help());
    throw UsageError("no command given");
  }
  const std::string& first = words.front();
  const std::span<const std::string> rest = words.subspan(1);
  if (first == "--version" || first == "-V" || first == "version") {
    console.print(std::string("quern ") + version() + "\n");
    return ExitStatus::Ok;
  }
  if (first == "help" || first == "--help" || first == "-h") return print_help(rest, console);
  const Command* command = find_command(first);
  if (command == nullptr) {
    if (first.starts_with('-')) {
      throw UsageError("option '" + first + "' before a command; options follow it: quern COMMAND " + first);
    }
    throw UsageError("unknown command" + unknown(first));
  }
  try {
    return run_command(*command, rest);
  } catch (const UsageError& error) {
    throw UsageError(error.what() + concat(" (`quern help ", command->name, "` explains the command)"));
  }
}

// Every exception ends here, flushing what was printed before it.
ExitStatus run_and_translate(std::span<const std::string> words) {
  try {
    const ExitStatus status = dispatch(words);
    Console().flush();
    return status;
  } catch (const BrokenPipe&) {
    return ExitStatus::BrokenPipe;
  } catch (const UsageError& error) {
    print_error(error.what());
    return ExitStatus::Usage;
  } catch (const Error& error) {
    const bool bug = error.code() == ErrorCode::Internal;
    print_error((bug ? std::string("internal error, please report it: ") : "") + error.what());
    return exit_status_of(error.code());
  } catch (const std::bad_alloc&) {
    print_error("out of memory: the model or its data needs more than the system gives");
    return ExitStatus::Io;
  } catch (const std::exception& error) {
    print_error(std::string("internal error, please report it: ") + error.what());
    return ExitStatus::Internal;
  }
}

}  // namespace

const Command* find_command(std::string_view name) {
  for (const Command& command : commands()) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

OptionSet options_of(const Command& command) {
  OptionSet options;
  command.declare(options);
  options.section(kCommonSection);
  if (command.has_json) options.flag("json", "print one JSON object instead of text");
  options.flag("quiet,q", "no progress, no summary; results, warnings and errors alone");
  options.flag("help,h", "explain this command");
  return options;
}

ExitStatus run_program(std::span<const std::string> words) {
  const ExitStatus status = run_and_translate(words);
  std::fflush(stdout);  // what came before an error; if this fails there is an error already
  return status;
}

}  // namespace quern::cli
