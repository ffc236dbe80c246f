#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "formats/chat_template/chat_template.h"
#include "ir/error.h"

namespace quern::chat_template {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::string> read_if_there(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw_error(ErrorCode::Io, "can't read '", path.string(), "'");
  return text;
}

// A text, or an object with the text as its content.
std::optional<std::string> token_text(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.contains("content") && json["content"].is_string())
    return json["content"].get<std::string>();
  return std::nullopt;
}

void read_special_tokens(const Json& config, ChatFiles& files) {
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    if (const auto text = token_text(value)) files.special_tokens.emplace(key, *text);
  }
}

void read_templates(const Json& config, ChatFiles& files) {
  if (!config.contains("chat_template")) return;
  const Json& chat_template = config["chat_template"];
  if (chat_template.is_string()) files.templates["default"] = chat_template.get<std::string>();
  if (!chat_template.is_array()) return;
  for (const Json& entry : chat_template) {
    files.templates[entry.at("name").get<std::string>()] = entry.at("template").get<std::string>();
  }
}

// read(json) of a file, if it is there.
template <class Read>
void with_json(const std::filesystem::path& path, Read&& read) {
  const auto text = read_if_there(path);
  if (!text) return;
  try {
    read(Json::parse(*text));
  } catch (const Json::exception& error) {
    throw_error(ErrorCode::InvalidModel, "'", path.string(), "': ", error.what());
  }
}

}  // namespace

ChatFiles read_chat_files(const std::filesystem::path& folder) {
  ChatFiles files;
  with_json(folder / "tokenizer_config.json", [&](const Json& json) {
    read_special_tokens(json, files);
    read_templates(json, files);
  });
  with_json(folder / "special_tokens_map.json", [&](const Json& json) { read_special_tokens(json, files); });
  if (const auto text = read_if_there(folder / "chat_template.jinja")) files.templates["default"] = *text;
  return files;
}

std::string special_tokens_to_json(const std::map<std::string, std::string>& tokens) {
  return Json(tokens).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::map<std::string, std::string> parse_special_tokens(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object())
    throw_error(ErrorCode::Corrupt, "the special tokens of the chat template are no JSON object");
  ChatFiles files;
  read_special_tokens(json, files);
  return files.special_tokens;
}

}  // namespace quern::chat_template
