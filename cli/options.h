// The options of a command: declared once, and from that parsed, checked, and explained by --help.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace quern::cli {

// The command line makes no sense. what() is one line.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct OptionSpec {
  enum class Kind { Flag, Text, Integer, Number, Share, Choice };
  Kind kind = Kind::Flag;
  std::string name;         // "weights": --weights
  char letter = 0;          // 'o': -o too; 0: none
  std::string placeholder;  // "FILE"
  std::string help;
  std::string section;
  bool repeated = false;              // may be given more than once
  std::vector<std::string> choices;   // Choice
  std::optional<std::string> preset;  // what it is unless given; shown in the help
  double least = 0;                   // Integer, Number: the range
  double most = 0;
};

struct PositionalSpec {
  std::string name;
  std::string help;
  bool required = true;
  bool repeated = false;                  // the last one only: takes all that follow
  std::vector<std::string> choices = {};  // empty: anything
};

struct Example {
  std::string command;
  std::string what;
};

// What was given, checked. Asking for an option that was not declared is a bug: std::logic_error.
class Arguments {
 public:
  bool given(const std::string& name) const { return values_.contains(name); }
  // A flag.
  bool flag(const std::string& name) const { return given(name); }
  // A value, or its preset; nothing if neither is there.
  std::optional<std::string> text(const std::string& name) const;
  std::optional<int64_t> integer(const std::string& name) const;
  std::optional<double> number(const std::string& name) const;
  // All values of a repeated option, or of a repeated positional.
  std::vector<std::string> list(const std::string& name) const;
  // As text(), integer() and number(), for options that have a preset, and for required positionals.
  std::string text_of(const std::string& name) const;
  int64_t integer_of(const std::string& name) const;
  double number_of(const std::string& name) const;

 private:
  friend class OptionSet;
  std::map<std::string, std::vector<std::string>> values_;
  std::map<std::string, std::optional<std::string>> presets_;
};

class OptionSet {
 public:
  // Options declared after this stand under `title` in the help.
  OptionSet& section(std::string title);
  OptionSet& positional(PositionalSpec spec);
  // `names`: "output,o", or "json".
  OptionSet& flag(const std::string& names, std::string help);
  OptionSet& text(const std::string& names, std::string placeholder, std::string help,
                  std::optional<std::string> preset = {});
  OptionSet& texts(const std::string& names, std::string placeholder, std::string help);  // repeated
  OptionSet& choice(const std::string& names, std::vector<std::string> choices, std::string help,
                    std::optional<std::string> preset = {});
  struct Range {
    double least;
    double most;
  };
  OptionSet& integer(const std::string& names, std::string placeholder, Range range, std::string help,
                     std::optional<int64_t> preset = {});
  OptionSet& number(const std::string& names, std::string placeholder, Range range, std::string help,
                    std::optional<std::string> preset = {});
  // A share of one, written 0.01 or 1%.
  OptionSet& share(const std::string& names, std::string placeholder, std::string help);
  OptionSet& example(std::string command, std::string what);

  const std::vector<OptionSpec>& options() const { return options_; }
  const std::vector<PositionalSpec>& positionals() const { return positionals_; }
  const std::vector<Example>& examples() const { return examples_; }

  // Throws UsageError. --help anywhere leaves the rest unchecked.
  Arguments parse(std::span<const std::string> words) const;

 private:
  OptionSet& add(OptionSpec spec, const std::string& names);
  Arguments parse_words(std::span<const std::string> words) const;
  void assign_positionals(std::vector<std::string> words, Arguments& arguments) const;
  void check(const Arguments& arguments) const;

  std::string section_ = "Options";
  std::vector<OptionSpec> options_;
  std::vector<PositionalSpec> positionals_;
  std::vector<Example> examples_;
};

// "0.01" and "1%" are 0.01. Nothing where the text is no number.
std::optional<double> parse_share(std::string_view text);
// Whole decimal numbers only: "12", "-1"; "1e3" and "12x" are none.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

}  // namespace quern::cli
