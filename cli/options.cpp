#include "cli/options.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>

#include "ir/error.h"
#include "ir/near_names.h"

namespace quern::cli {
namespace {

namespace po = boost::program_options;

using Kind = OptionSpec::Kind;

template <class... Args>
[[noreturn]] void usage_error(const Args&... args) {
  throw UsageError(concat(args...));
}

template <class T>
std::optional<T> parse_all(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::string plain(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return std::to_string(static_cast<int64_t>(value));
  return concat(value);
}

std::string range_text(const OptionSpec& spec) {
  const bool bounded = spec.most < 9e15;
  if (bounded) return "from " + plain(spec.least) + " to " + plain(spec.most);
  return "of at least " + plain(spec.least);
}

bool contains(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

// "a, b or c"
std::string alternatives(const std::vector<std::string>& choices) {
  std::string all;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) all += i + 1 == choices.size() ? " or " : ", ";
    all += choices[i];
  }
  return all;
}

void check_value(const OptionSpec& spec, const std::string& text) {
  const std::string option = "option '--" + spec.name + "'";
  if (spec.kind == Kind::Choice) {
    if (contains(spec.choices, text)) return;
    usage_error(option, " takes ", alternatives(spec.choices), ", not '", text, "'");
  }
  if (spec.kind == Kind::Share) {
    const std::optional<double> share = parse_share(text);
    if (!share) usage_error(option, " takes a share such as 1% or 0.01, not '", text, "'");
    // Nearly everyone who writes 5 means 5%, and a gate of 500%, or a limit of 100%, lets everything pass.
    const bool lets_all_pass = *share > 1 || (*share == 1 && spec.name.starts_with("max-"));
    if (lets_all_pass && !text.ends_with('%')) {
      usage_error(option, " takes a share such as 1% or 0.01; '", text, "' would be ", *share * 100,
                  "%: write ", text, "%", *share == 1 ? " or 100%" : "");
    }
    return;
  }
  const bool integer = spec.kind == Kind::Integer;
  if (!integer && spec.kind != Kind::Number) return;
  std::optional<double> value;
  if (integer) {
    if (const auto whole = parse_integer(text)) value = static_cast<double>(*whole);
  } else {
    value = parse_number(text);
  }
  if (!value || !std::isfinite(*value) || *value < spec.least || *value > spec.most) {
    usage_error(option, " takes ", integer ? "a whole number " : "a number ", range_text(spec), ", not '",
                text, "'");
  }
}

const OptionSpec* find_option(const std::vector<OptionSpec>& options, const std::string& key) {
  for (const OptionSpec& spec : options) {
    if (key == spec.name || (spec.letter != 0 && key == std::string("-") + spec.letter)) return &spec;
  }
  return nullptr;
}

// Boost reports an unknown option as it was typed, dashes and "=value" included or not.
[[noreturn]] void unknown_option(std::string typed, const std::vector<OptionSpec>& options) {
  typed = typed.substr(0, typed.find('='));
  const std::string bare = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()));
  std::vector<std::string> names;
  for (const OptionSpec& spec : options) names.push_back("--" + spec.name);
  if (!typed.starts_with('-')) typed = (bare.size() == 1 ? "-" : "--") + typed;
  usage_error("unknown option '", typed, "'", did_you_mean("--" + bare, names));
}

}  // namespace

std::optional<int64_t> parse_integer(std::string_view text) {
  return parse_all<int64_t>(text);
}

std::optional<double> parse_number(std::string_view text) {
  return parse_all<double>(text);
}

std::optional<double> parse_share(std::string_view text) {
  double unit = 1;
  if (text.ends_with('%')) {
    text.remove_suffix(1);
    unit = 0.01;
  }
  const std::optional<double> value = parse_number(text);
  if (!value || !std::isfinite(*value)) return {};
  return *value * unit;
}

std::optional<std::string> Arguments::text(const std::string& name) const {
  if (const auto found = values_.find(name); found != values_.end()) return found->second.back();
  const auto preset = presets_.find(name);
  if (preset == presets_.end()) throw std::logic_error("undeclared option " + name);
  return preset->second;
}

std::optional<int64_t> Arguments::integer(const std::string& name) const {
  const std::optional<std::string> value = text(name);
  return value ? parse_integer(*value) : std::nullopt;
}

std::optional<double> Arguments::number(const std::string& name) const {
  const std::optional<std::string> value = text(name);
  return value ? parse_share(*value) : std::nullopt;
}

std::vector<std::string> Arguments::list(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

std::string Arguments::text_of(const std::string& name) const {
  return text(name).value();
}
int64_t Arguments::integer_of(const std::string& name) const {
  return integer(name).value();
}
double Arguments::number_of(const std::string& name) const {
  return number(name).value();
}

OptionSet& OptionSet::section(std::string title) {
  section_ = std::move(title);
  return *this;
}

OptionSet& OptionSet::positional(PositionalSpec spec) {
  positionals_.push_back(std::move(spec));
  return *this;
}

OptionSet& OptionSet::add(OptionSpec spec, const std::string& names) {
  const size_t comma = names.find(',');
  spec.name = names.substr(0, comma);
  if (comma != std::string::npos) spec.letter = names.at(comma + 1);
  spec.section = section_;
  options_.push_back(std::move(spec));
  return *this;
}

OptionSet& OptionSet::flag(const std::string& names, std::string help) {
  return add({.kind = Kind::Flag, .help = std::move(help)}, names);
}

OptionSet& OptionSet::text(const std::string& names, std::string placeholder, std::string help,
                           std::optional<std::string> preset) {
  return add({.kind = Kind::Text,
              .placeholder = std::move(placeholder),
              .help = std::move(help),
              .preset = std::move(preset)},
             names);
}

OptionSet& OptionSet::texts(const std::string& names, std::string placeholder, std::string help) {
  return add(
      {.kind = Kind::Text, .placeholder = std::move(placeholder), .help = std::move(help), .repeated = true},
      names);
}

OptionSet& OptionSet::choice(const std::string& names, std::vector<std::string> choices, std::string help,
                             std::optional<std::string> preset) {
  std::string placeholder;
  for (const std::string& choice : choices) placeholder += (placeholder.empty() ? "" : "|") + choice;
  return add({.kind = Kind::Choice,
              .placeholder = std::move(placeholder),
              .help = std::move(help),
              .choices = std::move(choices),
              .preset = std::move(preset)},
             names);
}

OptionSet& OptionSet::integer(const std::string& names, std::string placeholder, Range range,
                              std::string help, std::optional<int64_t> preset) {
  std::optional<std::string> shown;
  if (preset) shown = std::to_string(*preset);
  return add({.kind = Kind::Integer,
              .placeholder = std::move(placeholder),
              .help = std::move(help),
              .preset = std::move(shown),
              .least = range.least,
              .most = range.most},
             names);
}

OptionSet& OptionSet::number(const std::string& names, std::string placeholder, Range range, std::string help,
                             std::optional<std::string> preset) {
  return add({.kind = Kind::Number,
              .placeholder = std::move(placeholder),
              .help = std::move(help),
              .preset = std::move(preset),
              .least = range.least,
              .most = range.most},
             names);
}

OptionSet& OptionSet::share(const std::string& names, std::string placeholder, std::string help) {
  return add({.kind = Kind::Share, .placeholder = std::move(placeholder), .help = std::move(help)}, names);
}

OptionSet& OptionSet::example(std::string command, std::string what) {
  examples_.push_back({std::move(command), std::move(what)});
  return *this;
}

Arguments OptionSet::parse_words(std::span<const std::string> words) const {
  po::options_description description;
  for (const OptionSpec& spec : options_) {
    const std::string names = spec.letter == 0 ? spec.name : spec.name + "," + spec.letter;
    if (spec.kind == Kind::Flag) {
      description.add_options()(names.c_str(), "");
    } else {
      description.add_options()(names.c_str(), po::value<std::string>(), "");
    }
  }
  po::positional_options_description all;
  all.add("positional arguments", -1);
  description.add_options()("positional arguments", po::value<std::vector<std::string>>(), "");

  Arguments arguments;
  for (const OptionSpec& spec : options_) arguments.presets_[spec.name] = spec.preset;
  for (const PositionalSpec& spec : positionals_) arguments.presets_[spec.name] = {};
  std::vector<std::string> loose;
  const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  const po::parsed_options parsed = po::command_line_parser({words.begin(), words.end()})
                                        .options(description)
                                        .positional(all)
                                        .style(style)
                                        .run();
  for (const po::option& option : parsed.options) {
    if (option.position_key >= 0) {
      loose.insert(loose.end(), option.value.begin(), option.value.end());
      continue;
    }
    const OptionSpec* spec = find_option(options_, option.string_key);
    if (spec == nullptr) unknown_option(option.string_key, options_);
    std::vector<std::string>& values = arguments.values_[spec->name];
    if (!values.empty() && !spec->repeated && spec->kind != Kind::Flag) {
      usage_error("option '--", spec->name, "' is given twice");
    }
    values.push_back(option.value.empty() ? "" : option.value.front());
  }
  assign_positionals(std::move(loose), arguments);
  return arguments;
}

void OptionSet::assign_positionals(std::vector<std::string> words, Arguments& arguments) const {
  size_t next = 0;
  for (const PositionalSpec& spec : positionals_) {
    if (next == words.size()) break;
    std::vector<std::string>& values = arguments.values_[spec.name];
    values.push_back(words[next++]);
    while (spec.repeated && next < words.size()) values.push_back(words[next++]);
  }
  // Kept for check(), so that --help beside it still helps.
  if (next < words.size()) arguments.values_[""] = {words[next]};
}

void OptionSet::check(const Arguments& arguments) const {
  if (arguments.given("")) usage_error("unexpected argument '", arguments.values_.at("").front(), "'");
  for (const OptionSpec& spec : options_) {
    for (const std::string& value : arguments.list(spec.name)) check_value(spec, value);
  }
  for (const PositionalSpec& spec : positionals_) {
    // First of all: who left out the action is not to be told that what follows it is missing.
    for (const std::string& value : arguments.list(spec.name)) {
      if (spec.choices.empty() || contains(spec.choices, value)) continue;
      usage_error("'", value, "' is no ", spec.name, "; there is ", alternatives(spec.choices));
    }
    if (spec.required && !arguments.given(spec.name)) {
      usage_error("missing ", spec.name, ": ", spec.help);
    }
  }
}

Arguments OptionSet::parse(std::span<const std::string> words) const {
  try {
    Arguments arguments = parse_words(words);
    if (!arguments.given("help")) check(arguments);
    return arguments;
  } catch (const po::unknown_option& error) {
    unknown_option(error.get_option_name(), options_);
  } catch (const po::error_with_option_name& error) {
    const OptionSpec* spec = find_option(options_, error.get_option_name().substr(2));
    if (spec != nullptr && spec->kind == Kind::Flag) {
      usage_error("option '--", spec->name, "' takes no value");
    }
    usage_error("option '", error.get_option_name(), "' needs a value",
                spec != nullptr ? concat(": --", spec->name, " ", spec->placeholder) : "");
  } catch (const po::error& error) {
    usage_error(error.what());
  }
}

}  // namespace quern::cli
