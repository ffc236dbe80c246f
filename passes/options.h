// Typed options of a pass, declared once: their names, defaults, documentation, and how JSON sets them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace quern::passes {

// What a pass tells of one option, for documentation and `quern passes`.
struct OptionInfo {
  std::string name;  // "group-size": the words joined by hyphens
  std::string type;  // "bool", "integer", "number", "string", "list", "object"
  nlohmann::json default_value;
  std::string documentation;         // one sentence
  std::vector<std::string> choices;  // of a string or a list's strings; empty: any
};

// The options of one pass object. Fields are members of the pass; the table reads and writes them through
// pointers, so it must not outlive them. Their values when they are declared are the defaults.
class OptionTable {
 public:
  // `field` may be bool, int64_t, double, std::string, std::vector<std::string>, or nlohmann::json (a list or
  // object that the pass checks by itself).
  using Field =
      std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, nlohmann::json*>;
  void add(std::string name, Field field, std::string documentation, std::vector<std::string> choices = {});

  // Sets the fields named by the object `values`; the others keep what they have. `owner` is for messages.
  // Throws Error{InvalidArgument} on an unknown name (showing near ones), another type than the option's, an
  // integer out of range, or a string that is none of the choices.
  void set(const nlohmann::json& values, const std::string& owner);

  // All of them, as they are now; and only those that differ from their defaults.
  nlohmann::json values() const;
  nlohmann::json changed_values() const;
  const std::vector<OptionInfo>& info() const { return info_; }

 private:
  std::vector<OptionInfo> info_;
  std::vector<Field> fields_;
};

}  // namespace quern::passes
