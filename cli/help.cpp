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

std::string option_entry(const OptionSpec& spec) {
  std::string left =
      spec.letter != 0 ? std::string("-") + spec.letter + ", --" + spec.name : "    --" + spec.name;
  std::string help = spec.help;
  if (spec.kind == OptionSpec::Kind::Choice) {
    std::string all;
    for (const std::string& choice : spec.choices) all += (all.empty() ? "" : ", ") + choice;
    help += ": " + all;
    left += " TYPE";
  } else if (spec.kind != OptionSpec::Kind::Flag) {
    left += " " + spec.placeholder;
  }
  if (spec.repeated) help += "; may be repeated";
  if (spec.preset) help += " [" + *spec.preset + "]";
  return entry(left, help);
}

}  // namespace

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
    text += option_entry(spec);
  }
  if (!options.examples().empty()) text += heading("Examples");
  for (const Example& example : options.examples()) {
    text += "  " + styled(example.command, Style::Green, Stream::Out) + "\n      " +
            wrap(example.what, width(), 6) + "\n";
  }
  return text;
}

}  // namespace quern::cli
