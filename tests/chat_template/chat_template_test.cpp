#include "formats/chat_template/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/file/checksum.h"
#include "ir/error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::chat_template {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path fixture(const std::string& name) {
  return test::source_path("tests/chat_template/fixtures/" + name);
}

Json read_json(const std::filesystem::path& path) {
  return Json::parse(test::read_text(path));
}

RenderOptions at_recorded_time() {
  std::tm time{};
  EXPECT_NE(strptime("2024-07-09 08:05:03", "%Y-%m-%d %H:%M:%S", &time), nullptr);
  time.tm_isdst = -1;
  RenderOptions options;
  options.now = std::mktime(&time);
  return options;
}

// As the fixtures record it: the text, or what kind of error it is.
Json result_of(const std::string& source, const Json& variables) {
  std::optional<ChatTemplate> chat_template;
  try {
    chat_template.emplace(source);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("line"), std::string::npos) << error.what();
    return {{"error", "syntax"}};
  }
  try {
    return {{"text", chat_template->render(variables, at_recorded_time())}};
  } catch (const Error&) {
    return {{"error", "render"}};
  }
}

TEST(ChatTemplate, SnippetsRenderAsInJinja) {
  for (const Json& entry : read_json(fixture("snippets.json"))) {
    const auto source = entry["source"].get<std::string>();
    Json expected = entry;
    expected.erase("source");
    // Jinja looks filters and tests up when it compiles; here they are found missing when they are met.
    if (source.find("no_filter") != std::string::npos || source.find("no_test") != std::string::npos)
      expected = {{"error", "render"}};
    EXPECT_EQ(result_of(source, Json::object()), expected) << source;
  }
}

class Conversations : public testing::TestWithParam<const char*> {};

TEST_P(Conversations, RenderAsInJinja) {
  const Json recorded = read_json(fixture("conversations.json"));
  const std::string source = test::read_text(fixture(std::string("templates/") + GetParam() + ".jinja"));
  for (const auto& [name, variables] : recorded["conversations"].items()) {
    EXPECT_EQ(result_of(source, variables), recorded["results"][GetParam()][name]) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, Conversations,
                         testing::Values("chatml", "llama3_style", "gemma_style", "phi_style",
                                         "mistral_style", "macros_style"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ChatTemplate, Qwen3RendersAsInJinja) {
  QUERN_NEEDS_SHARED("tokenizers/qwen3/chat_template.jinja");
  const ChatFiles files = read_chat_files(test::shared_path("tokenizers/qwen3"));
  EXPECT_EQ(files.special_tokens.at("eos_token"), "<|im_end|>");
  const Json digests = read_json(fixture("qwen3.json"));
  const Json conversations = read_json(fixture("conversations.json"))["conversations"];
  for (const auto& [name, variables] : conversations.items()) {
    Json result = result_of(files.templates.at("default"), variables);
    if (result.contains("text")) {
      Sha256 digest;
      digest.update(result["text"].get<std::string>());
      result = {{"sha256", to_hex(digest.finish())}};
    }
    EXPECT_EQ(result, digests[name]) << name;
  }
}

std::string error_of(const std::string& source, const RenderOptions& options = {}) {
  try {
    ChatTemplate(source).render(Json::object(), options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ChatTemplate, ErrorsSayWhereAndWhat) {
  EXPECT_NE(error_of("a\n{{ x").find("line 2"), std::string::npos);
  EXPECT_NE(error_of("{% if x %}").find("endif"), std::string::npos);
  EXPECT_NE(error_of("\n\n{{ x.y }}").find("line 3: 'x' is undefined"), std::string::npos);
  EXPECT_NE(error_of("{{ raise_exception('no system role') }}").find("no system role"), std::string::npos);
  EXPECT_NE(error_of("{% include 'x' %}").find("'include' is not supported"), std::string::npos);
  EXPECT_NE(error_of("{{ 1 | no_such }}").find("no filter 'no_such'"), std::string::npos);
  EXPECT_NE(error_of("{{ x.__class__ }}{% set x = 1 %}").find("'x' is undefined"), std::string::npos);
  EXPECT_NE(error_of("{% set x = 'a' %}{{ x.__class__ }}").find("not for templates"), std::string::npos);
}

TEST(ChatTemplate, CostlyTemplatesAreStopped) {
  const RenderOptions limits{.now = {}, .max_steps = 200'000, .max_output = 1 << 20};
  const std::string loop = "{% for a in range(1000) %}";
  EXPECT_NE(error_of(loop + loop + loop + "x{% endfor %}{% endfor %}{% endfor %}", limits).find("steps"),
            std::string::npos);
  EXPECT_NE(error_of("{{ 'abcdefgh' * 1000000000 }}", limits), "");
  EXPECT_NE(error_of("{{ [1] * 1000000000 }}", limits), "");
  EXPECT_NE(error_of("{{ range(1000000000) }}", limits), "");
  EXPECT_NE(error_of("{{ 'a'.ljust(1000000000) }}", limits), "");
  EXPECT_NE(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", limits).find("levels deep"),
            std::string::npos);
  EXPECT_NE(error_of("{% set ns = namespace(t='ab') %}" + loop + "{% set ns.t = ns.t + ns.t %}{% endfor %}",
                     limits),
            "");
  EXPECT_NE(error_of("{% set ns = namespace(t=[]) %}" + loop + "{% set ns.t = [ns.t] %}{% endfor %}", limits)
                .find("levels deep"),
            std::string::npos);
  EXPECT_NE(
      error_of("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}").find("can't hold a namespace"),
      std::string::npos);
  EXPECT_NE(
      error_of("{{ '" + std::string(1000, 'a') + "'.replace('a', '" + std::string(100000, 'b') + "') }}",
               limits),
      "");
}

TEST(ChatTemplate, DeepNestingIsAnErrorNotACrash) {
  const auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  EXPECT_NE(error_of("{{ " + repeat("(", 100000) + "1"), "");
  EXPECT_NE(error_of("{{ 1" + repeat(" + 1", 100000) + " }}"), "");
  EXPECT_NE(error_of("{{ " + repeat("not ", 100000) + "1 }}"), "");
  EXPECT_NE(error_of("{{ " + repeat("-", 100000) + "1 }}"), "");
  EXPECT_NE(error_of("{{ 1" + repeat("|abs", 100000) + " }}"), "");
  EXPECT_NE(error_of("{{ x" + repeat("[0]", 100000) + " }}"), "");
  EXPECT_NE(error_of("{{ 1" + repeat(" if 1 else 1", 100000) + " }}"), "");
  EXPECT_NE(error_of(repeat("{% if 1 %}", 100000)), "");
  EXPECT_NE(error_of("{% if 0 %}" + repeat("{% elif 0 %}", 100000) + "{% endif %}"), "");
  EXPECT_EQ(error_of("{{ 1" + repeat(" + 1", 500) + " }}"), "");
}

TEST(ChatFiles, TheTemplateFileWinsOverTheConfig) {
  const test::TempDir folder;
  EXPECT_TRUE(read_chat_files(folder.path()).templates.empty());
  test::write_text(folder / "tokenizer_config.json",
                   R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null,
                       "chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  ChatFiles files = read_chat_files(folder.path());
  EXPECT_EQ(files.templates, (std::map<std::string, std::string>{{"default", "a"}, {"tool_use", "b"}}));
  EXPECT_EQ(files.special_tokens,
            (std::map<std::string, std::string>{{"bos_token", "<s>"}, {"eos_token", "</s>"}}));
  test::write_text(folder / "chat_template.jinja", "c");
  EXPECT_EQ(read_chat_files(folder.path()).templates.at("default"), "c");
  test::write_text(folder / "tokenizer_config.json", "{");
  EXPECT_THROW(read_chat_files(folder.path()), Error);
}

}  // namespace
}  // namespace quern::chat_template
