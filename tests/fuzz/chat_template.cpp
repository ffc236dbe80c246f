// Chat templates, rendered with a small conversation.
#include "formats/chat_template/chat_template.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "tests/fuzz/fuzz.h"

void quern::fuzz::run(std::span<const std::byte> input) {
  static const auto variables = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})");
  const std::string_view source(reinterpret_cast<const char*>(input.data()), input.size());
  chat_template::ChatTemplate(source).render(variables,
                                             {.now = 0, .max_steps = 100'000, .max_output = 1 << 20});
}
