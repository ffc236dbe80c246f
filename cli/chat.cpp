#include "cli/chat.h"

#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "formats/chat_template/chat_template.h"
#include "ir/error.h"

namespace quern::cli {
namespace {

using Json = nlohmann::ordered_json;
using chat_template::ChatFiles;

// Where no file names them, they are known by their ids.
void name_by_id(const LoadedModel& model, ChatFiles& files) {
  const auto name = [&](const char* variable, std::optional<int64_t> id) {
    const auto token = id ? model.tokenizer->token_of(*id) : std::nullopt;
    if (token) files.special_tokens.emplace(variable, *token);
  };
  name("bos_token", model.tokenizer->bos_hint());
  if (!model.end_ids.empty()) name("eos_token", model.end_ids.front());
}

// An array of messages, or an object with them and more variables for the template, such as "tools".
Json read_messages(const std::string& path) {
  Json json = Json::parse(read_input(path), nullptr, false);
  if (json.is_array()) json = Json{{"messages", std::move(json)}};
  const auto messages = json.is_object() ? json.find("messages") : json.end();
  const bool found = json.is_object() && messages != json.end() && messages->is_array() && !messages->empty();
  if (!found) {
    throw_error(ErrorCode::BadData, "'", path,
                "' holds no messages: expected a JSON array such as [{\"role\": \"user\", \"content\": "
                "\"Hello\"}], or an object with one under \"messages\"");
  }
  for (const Json& message : *messages) {
    if (message.is_object() && message.contains("role") && message["role"].is_string()) continue;
    throw_error(ErrorCode::BadData, "'", path, "': a message is an object with a \"role\", not ",
                message.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return json;
}

void set_variable(Json& variables, const std::string& setting) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError("--chat-set takes NAME=VALUE, not '" + setting + "'");
  }
  const std::string value = setting.substr(equals + 1);
  const Json json = Json::parse(value, nullptr, false);
  variables[setting.substr(0, equals)] = json.is_discarded() ? Json(value) : json;
}

Json variables_of(const Arguments& arguments, const std::string& text) {
  Json variables;
  if (const auto path = arguments.text("messages")) {
    variables = read_messages(*path);
  } else {
    variables["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
  }
  if (const auto system = arguments.text("system")) {
    Json& messages = variables["messages"];
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *system}});
  }
  variables["add_generation_prompt"] = true;
  for (const std::string& setting : arguments.list("chat-set")) set_variable(variables, setting);
  return variables;
}

std::string template_of(const Arguments& arguments, const LoadedModel& model, const ChatFiles& files,
                        bool tools) {
  if (const auto path = arguments.text("chat-template")) return read_input(*path);
  const auto tool_use = files.templates.find("tool_use");
  if (tools && tool_use != files.templates.end()) return tool_use->second;
  const auto found = files.templates.find("default");
  if (found != files.templates.end()) return found->second;
  throw_error(ErrorCode::BadData, "'", model.file.path.string(),
              "' has no chat template: no chat_template.jinja, and none in a tokenizer_config.json; "
              "--chat-template FILE gives one");
}

}  // namespace

void declare_chat_options(OptionSet& options) {
  options.section("Conversations")
      .flag("chat", "the prompt is what a user says; it is put into the model's chat template")
      .text("system", "TEXT", "a system message before it (--chat is implied here and below)")
      .text(
          "messages", "FILE.json",
          "a whole conversation in place of a prompt: an array of messages, or an object with \"messages\", "
          "\"tools\" and whatever else the template knows")
      .text("chat-template", "FILE",
            "a Jinja template; default: the artifact's own, or the one beside the model")
      .texts("chat-set", "NAME=VALUE", "a variable of the template, such as enable_thinking=false");
}

bool wants_chat(const Arguments& arguments) {
  const bool messages = arguments.given("messages");
  const bool chat = messages || arguments.flag("chat") || arguments.given("system") ||
                    arguments.given("chat-template") || arguments.given("chat-set");
  if (chat && arguments.given("ids"))
    throw UsageError("--ids are a finished prompt; --chat makes one of text");
  if (messages && (arguments.given("prompt") || arguments.given("prompt-file"))) {
    throw UsageError("--messages and a prompt are both given; put what the user says last into the messages");
  }
  return chat;
}

std::string chat_prompt(const Arguments& arguments, const LoadedModel& model, const std::string& text) {
  ChatFiles files = model.file.folder.chat;
  name_by_id(model, files);
  Json variables = variables_of(arguments, text);
  const bool tools = variables.contains("tools") && !variables["tools"].empty();
  const chat_template::ChatTemplate chat(template_of(arguments, model, files, tools));
  for (const auto& [name, token] : files.special_tokens) {
    if (!variables.contains(name)) variables[name] = token;
  }
  return chat.render(variables);
}

}  // namespace quern::cli
