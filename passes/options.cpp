#include "passes/options.h"

#include <algorithm>

#include "ir/error.h"
#include "ir/near_names.h"

namespace quern::passes {
namespace {

using nlohmann::json;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

json read(const OptionTable::Field& field) {
  return std::visit([](const auto* value) { return json(*value); }, field);
}

std::string type_name(const OptionTable::Field& field) {
  return std::visit(
      Overloaded{[](const bool*) { return "bool"; }, [](const int64_t*) { return "integer"; },
                 [](const double*) { return "number"; }, [](const std::string*) { return "string"; },
                 [](const std::vector<std::string>*) { return "list"; },
                 [](const json* value) { return value->is_object() ? "object" : "list"; }},
      field);
}

bool has_type(const OptionTable::Field& field, const json& value) {
  return std::visit(
      Overloaded{
          [&](const bool*) { return value.is_boolean(); },
          // nlohmann keeps integers beyond i64 as unsigned or float; the latter is no integer.
          [&](const int64_t*) {
            return value.is_number_integer() &&
                   (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
          },
          [&](const double*) { return value.is_number(); },
          [&](const std::string*) { return value.is_string(); },
          [&](const std::vector<std::string>*) {
            return value.is_array() &&
                   std::all_of(value.begin(), value.end(), [](const json& item) { return item.is_string(); });
          },
          [&](const json* field) { return field->is_object() ? value.is_object() : value.is_array(); }},
      field);
}

void check_choice(const OptionInfo& info, const std::string& given, const std::string& where) {
  if (info.choices.empty()) return;
  if (std::find(info.choices.begin(), info.choices.end(), given) != info.choices.end()) return;
  std::string all;
  for (const std::string& choice : info.choices) all += (all.empty() ? "" : ", ") + choice;
  throw_error(ErrorCode::InvalidArgument, where, ": '", given, "' is none of ", all);
}

}  // namespace

void OptionTable::add(std::string name, Field field, std::string documentation,
                      std::vector<std::string> choices) {
  info_.push_back(
      {std::move(name), type_name(field), read(field), std::move(documentation), std::move(choices)});
  fields_.push_back(field);
}

void OptionTable::set(const json& values, const std::string& owner) {
  if (values.is_null()) return;
  if (!values.is_object()) {
    throw_error(ErrorCode::InvalidArgument, owner, ": options must be a JSON object, not ",
                values.type_name());
  }
  for (const auto& item : values.items()) {
    const std::string& name = item.key();
    const json& value = item.value();
    const auto found =
        std::find_if(info_.begin(), info_.end(), [&](const OptionInfo& info) { return info.name == name; });
    if (found == info_.end()) {
      std::vector<std::string> names;
      for (const OptionInfo& info : info_) names.push_back(info.name);
      const std::string hint = names.empty() ? "; it has no options" : did_you_mean(name, names);
      throw_error(ErrorCode::InvalidArgument, owner, " has no option '", name, "'", hint);
    }
    const std::string where = owner + ", option '" + name + "'";
    const Field& field = fields_[static_cast<size_t>(found - info_.begin())];
    if (!has_type(field, value)) {
      const std::string items = std::holds_alternative<std::vector<std::string>*>(field) ? " of strings" : "";
      throw_error(ErrorCode::InvalidArgument, where, " must be of type ", found->type, items, ", not ",
                  value.dump());
    }
    if (value.is_string()) check_choice(*found, value.get<std::string>(), where);
    if (std::holds_alternative<std::vector<std::string>*>(field)) {
      for (const json& choice : value) check_choice(*found, choice.get<std::string>(), where);
    }
    std::visit([&](auto* target) { *target = value.get<std::remove_reference_t<decltype(*target)>>(); },
               field);
  }
}

json OptionTable::values() const {
  json result = json::object();
  for (size_t i = 0; i < info_.size(); ++i) result[info_[i].name] = read(fields_[i]);
  return result;
}

json OptionTable::changed_values() const {
  json result = json::object();
  for (size_t i = 0; i < info_.size(); ++i) {
    if (read(fields_[i]) != info_[i].default_value) result[info_[i].name] = read(fields_[i]);
  }
  return result;
}

}  // namespace quern::passes
