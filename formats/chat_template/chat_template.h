// Chat templates: the Jinja templates by which models want conversations written.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace quern::chat_template {

struct RenderOptions {
  // The time that strftime_now() has; unset: now.
  std::optional<std::time_t> now;
  // A template that takes more work, or writes or builds more, is stopped.
  int64_t max_steps = 20'000'000;
  size_t max_output = size_t{1} << 26;  // bytes
};

// The part of Jinja that chat templates use, as Hugging Face `transformers` sets it up: trimmed blocks,
// `tojson` that leaves HTML alone, `raise_exception`, `strftime_now`, `break` and `continue`, `generation`.
// Immutable; copies share.
class ChatTemplate {
 public:
  // Throws Error{InvalidModel} for a syntax error and Error{Unsupported} for a block that is no part of it
  // (`include`, `extends`, recursive loops, ...); both name the line.
  explicit ChatTemplate(std::string_view source);

  // `variables` is an object: `messages`, `tools`, `add_generation_prompt`, `bos_token`, ... Throws
  // Error{BadData} where the template refuses (raise_exception), uses what is undefined, or costs too much;
  // Error{Unsupported} for a filter or test that isn't there.
  std::string render(const nlohmann::ordered_json& variables, const RenderOptions& options = {}) const;

 private:
  struct Tree;
  std::shared_ptr<const Tree> tree_;
};

// What the files of a model say about chats.
struct ChatFiles {
  // Sources of templates by name; the usual one is called "default".
  std::map<std::string, std::string> templates;
  // bos_token, eos_token, ...: variables of every template.
  std::map<std::string, std::string> special_tokens;
};

// Reads chat_template.jinja, tokenizer_config.json and special_tokens_map.json in `folder`; the earlier wins.
// Files that aren't there say nothing. Throws Error{Io}, Error{InvalidModel}.
ChatFiles read_chat_files(const std::filesystem::path& folder);

// The attachment of an artifact that has ChatFiles::special_tokens as a JSON object.
inline constexpr const char* kSpecialTokensAttachment = "special_tokens.json";
// ChatFiles::special_tokens as that object, and back. Throws Error{Corrupt}.
std::string special_tokens_to_json(const std::map<std::string, std::string>& tokens);
std::map<std::string, std::string> parse_special_tokens(std::string_view json);

}  // namespace quern::chat_template
