// quern passes: what the compiler can do to a graph.
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/table.h"
#include "ir/near_names.h"
#include "passes/registry.h"

namespace quern::cli {
namespace {

void declare(OptionSet& options) {
  options.positional({.name = "PASS", .help = "explain this pass and its options", .required = false})
      .example("quern passes", "lists all passes, a line each")
      .example("quern passes quantize-weights", "explains one, with its options and their defaults")
      .example("quern passes --json", "the same for all of them, for scripts");
}

nlohmann::ordered_json describe(const passes::Pass& pass) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const passes::OptionInfo& info : pass.options().info()) {
    nlohmann::ordered_json option = {{"name", info.name},
                                     {"type", info.type},
                                     {"default", nlohmann::ordered_json::parse(info.default_value.dump())},
                                     {"documentation", info.documentation}};
    if (!info.choices.empty()) option["choices"] = info.choices;
    options.push_back(std::move(option));
  }
  return {{"name", pass.name()}, {"summary", pass.summary()}, {"options", options}};
}

std::string explain(const passes::Pass& pass) {
  std::string text = pass.name() + ": " + pass.summary() + "\n";
  if (pass.options().info().empty()) return text + "\nIt has no options.\n";
  text += "\n" + styled("Options, as a recipe sets them:", Style::Bold, Stream::Out) + "\n";
  for (const passes::OptionInfo& info : pass.options().info()) {
    text += "  " + info.name + " (" + info.type + ", default " + info.default_value.dump() + ")\n      " +
            wrap(info.documentation, 100, 6) + "\n";
    if (info.choices.empty()) continue;
    std::string choices;
    for (const std::string& choice : info.choices) choices += (choices.empty() ? "" : ", ") + choice;
    text += "      one of: " + choices + "\n";
  }
  return text;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const passes::PassRegistry& registry = passes::PassRegistry::instance();
  std::vector<std::string> names = registry.names();
  const std::optional<std::string> wanted = arguments.text("PASS");
  if (wanted) {
    if (!registry.contains(*wanted)) {
      throw UsageError("there is no pass '" + *wanted + "'" + did_you_mean(*wanted, names));
    }
    names = {*wanted};
  }
  if (console.json()) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const std::string& name : names) all.push_back(describe(*registry.create(name)));
    console.print_json({{"passes", all}});
  } else if (wanted) {
    console.print(explain(*registry.create(*wanted)));
  } else {
    Table table({{""}, {""}});
    for (const std::string& name : names) table.add_row({name, registry.create(name)->summary()});
    console.print(table.to_string());
  }
  return ExitStatus::Ok;
}

}  // namespace

Command passes_command() {
  return {.name = "passes",
          .summary = "list the passes of the compiler, and their options",
          .group = "Look",
          .details = "",
          .declare = declare,
          .run = run};
}

}  // namespace quern::cli
