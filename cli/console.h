// Everything that the program says goes through here.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cli/terminal.h"

namespace quern::cli {

// Whoever read standard output went away; nothing is left to be said.
class BrokenPipe {};

// Results go to standard output, everything else to standard error, so that either can be redirected alone.
class Console {
 public:
  struct Settings {
    bool json = false;   // results are one JSON object
    bool quiet = false;  // nothing but results, warnings and errors
  };
  Console() = default;
  explicit Console(Settings settings) : settings_(settings) {}

  bool json() const { return settings_.json; }
  bool quiet() const { return settings_.quiet; }

  // Results, to standard output. Throw Error{Io} where that fails, BrokenPipe where nobody reads any more.
  void print(std::string_view text);
  void print_json(const nlohmann::ordered_json& object);  // pretty, one object, a line feed
  // Writes what is buffered; the streaming of `generate` needs it after each piece.
  void flush();

  // A line to standard error, unless quiet.
  void note(std::string_view line);
  // A line to standard error, "quern: warning: ...".
  void warn(std::string_view line);

  // The summary of a command that has results in files: printed to standard output unless quiet or JSON.
  void summary(std::string_view text);

 private:
  Settings settings_;
};

// "quern: ..." to standard error, in one line.
void print_error(std::string_view message);

// `text` as one line: control characters, which file names and models can hold, are written as \xNN.
std::string one_line(std::string_view text);

}  // namespace quern::cli
