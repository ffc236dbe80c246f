#include <algorithm>

#include "cli/command.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace quern::cli {
namespace {

constexpr size_t kTextColumn = 30;
constexpr size_t kMostColumns = 100;

size_t width() {
  return std::min<size_t>(kMostColumns, static_cast<size_t>(std::max(60, terminal_width(Stream::Out))));
}

std::string heading(const std::string& text) {
  return "\n" + styled(text + ":", Style::Bold, Stream::Out) + "\n";
}

std::string entry(const std::string& left, const std::string& text) {
  std::string line = "  " + left;
  if (display_width(line) + 2 > kTextColumn) {
    line += "\n" + std::string(kTextColumn, ' ');
  } else {
    line += std::string(kTextColumn - display_width(line), ' ');
  }
  return line + wrap(text, width(), kTextColumn) + "\n";
}

std::string usage_line(const Command& command, const OptionSet& options) {
  std::string line = std::string("quern ") + command.name;
  for (const PositionalSpec& spec : options.positionals()) {
    const std::string name = spec.repeated ? spec.name + "..." : spec.name;
    line += spec.required ? " " + name : " [" + name + "]";
  }
  return line + " [options]";
}

// For a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '<') result += '\\';
    result += c;
  }
  return result;
}

std::string option_name(const OptionSpec& spec) {
  std::string name = "--" + spec.name;
  if (spec.kind == OptionSpec::Kind::Choice) {
    name += " TYPE";
  } else if (spec.kind != OptionSpec::Kind::Flag) {
    name += " " + spec.placeholder;
  }
  return spec.letter != 0 ? std::string("-") + spec.letter + ", " + name : name;
}

std::string option_help(const OptionSpec& spec) {
  std::string help = spec.help;
  if (spec.kind == OptionSpec::Kind::Choice) {
    std::string all;
    for (const std::string& choice : spec.choices) all += (all.empty() ? "" : ", ") + choice;
    help += ": " + all;
  }
  if (spec.repeated) help += "; may be repeated";
  if (spec.preset) help += " [" + *spec.preset + "]";
  return help;
}

std::string markdown_of(const Command& command) {
  const OptionSet options = options_of(command);
  std::string text = std::string("\n## quern ") + command.name + "\n\n`" + usage_line(command, options) +
                     "`: " + command.summary + ".\n";
  if (*command.details != '\0') text += "\n" + std::string(command.details) + "\n";
  text += "\n| option | meaning |\n|---|---|\n";
  for (const PositionalSpec& spec : options.positionals())
    text += "| `" + spec.name + "` | " + cell(spec.help) + " |\n";
  for (const OptionSpec& spec : options.options()) {
    if (spec.section == kCommonSection) continue;
    text += "| `" + cell(option_name(spec)) + "` | " + cell(option_help(spec)) + " |\n";
  }
  text += "\n```sh\n";
  for (const Example& example : options.examples())
    text += "# " + example.what + "\n" + example.command + "\n";
  return text + "```\n";
}

}  // namespace

std::string markdown_help() {
  std::string text =
      "# Commands\n\nMade by `quern help --markdown`. What all commands share, exit statuses and the keys of "
      "JSON "
      "output: [cli.md](cli.md).\n";
  for (const Command& command : commands()) text += markdown_of(command);
  return text;
}

std::string general_help() {
  std::string text =
      "quern turns ONNX transformers into small, fast artifacts, proves what that cost in accuracy, and "
      "runs\n"
      "them on the CPU.\n\nUsage: quern COMMAND [options]\n";
  std::string group;
  for (const Command& command : commands()) {
    if (group != command.group) {
      group = command.group;
      text += heading(group);
    }
    text += entry(command.name, command.summary);
  }
  text +=
      "\n`quern help COMMAND` explains a command, with examples; `quern --version` says which quern this "
      "is.\n";
  return text;
}

std::string help_of(const Command& command) {
  const OptionSet options = options_of(command);
  std::string text = std::string("quern ") + command.name + ": " + command.summary +
                     "\n\nUsage: " + usage_line(command, options) + "\n";
  std::string details = command.details;
  for (size_t at = 0; at < details.size();) {
    const size_t end = std::min(details.find("\n\n", at), details.size());
    text += "\n" + wrap(details.substr(at, end - at), width(), 0) + "\n";
    at = end + 2;
  }
  if (!options.positionals().empty()) text += heading("Arguments");
  for (const PositionalSpec& spec : options.positionals()) text += entry(spec.name, spec.help);
  std::string section;
  for (const OptionSpec& spec : options.options()) {
    if (section != spec.section) {
      section = spec.section;
      text += heading(section);
    }
    text += entry((spec.letter != 0 ? "" : "    ") + option_name(spec), option_help(spec));
  }
  if (!options.examples().empty()) text += heading("Examples");
  for (const Example& example : options.examples()) {
    text += "  " + styled(example.command, Style::Green, Stream::Out) + "\n      " +
            wrap(example.what, width(), 6) + "\n";
  }
  return text;
}

}  // namespace quern::cli
