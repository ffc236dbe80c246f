// quern generate --chat: conversations, by the template that lies beside the model.
#include <gtest/gtest.h>

#include "tests/cli/quern_binary.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using nlohmann::json;

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}{% if loud %}LOUD\n{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

// A folder with the example model and a template.
class Chat : public testing::Test {
 protected:
  Chat() {
    for (const char* name : {"model.onnx", "tokenizer.json"})
      std::filesystem::create_symlink(example(name), dir_ / name);
    write_text(dir_ / "chat_template.jinja", kTemplate);
    write_text(dir_ / "tokenizer_config.json", R"({"bos_token": {"content": "<B>"}, "eos_token": "<E>"})");
  }

  json generate(std::vector<std::string> words, const ProgramRun& how = {}) {
    words.insert(words.begin(), {"generate", dir_.path().string(), "-n", "2", "--quiet"});
    return quern_json(words, 0, how);
  }

  TempDir dir_;
};

TEST_F(Chat, ThePromptIsWhatTheTemplateWrites) {
  const json answer = generate({"--chat", "--system", "Be brief.", "-p", "Hi there"});
  const std::string prompt = "<B>[system] Be brief.\n[user] Hi there\n[assistant]";
  EXPECT_EQ(answer["prompt"], prompt);
  const json tokens = quern_json({"tokenize", example("tokenizer.json"), "--no-special", "--text", prompt});
  EXPECT_EQ(answer["prompt_ids"], tokens["ids"]);
  EXPECT_EQ(answer["ids"].size(), 2U);
  ProgramRun how;
  how.standard_input = "Hi there";
  EXPECT_EQ(generate({"--chat", "--system", "Be brief."}, how)["prompt_ids"], answer["prompt_ids"]);
}

TEST_F(Chat, MessagesMayComeFromAFile) {
  write_text(dir_ / "list.json", R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                    {"role": "user", "content": "é"}])");
  write_text(dir_ / "object.json",
             R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}], "loud": true})");
  EXPECT_EQ(generate({"--messages", (dir_ / "list.json").string()})["prompt"],
            "<B>[user] a\n[assistant] b\n[user] é\n[assistant]");
  EXPECT_EQ(generate({"--messages", (dir_ / "object.json").string(), "--system", "s"})["prompt"],
            "<B>[system] s\n[user] a\ntools: [{\"name\": \"f\"}]\nLOUD\n[assistant]");
}

TEST_F(Chat, TemplatesAndTheirVariablesCanBeGiven) {
  write_text(dir_ / "other.jinja", "{{ eos_token }}{{ mode }}{{ depth + 1 }}:{{ messages[0].content }}");
  const json answer = generate({"--chat-template", (dir_ / "other.jinja").string(), "--chat-set", "depth=2",
                                "--chat-set", "mode=fast", "-p", "x"});
  EXPECT_EQ(answer["prompt"], "<E>fast3:x");
}

TEST_F(Chat, TheAnswerAloneIsPrinted) {
  const ProgramResult result =
      quern({"generate", dir_.path().string(), "-n", "2", "--quiet", "--chat", "-p", "Hi"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out.find("[user]"), std::string::npos) << result.out;
}

TEST_F(Chat, AnArtifactCarriesTemplateAndSpecialTokens) {
  const TempDir other;
  const std::string artifact = (other / "m.quern").string();
  ASSERT_EQ(quern({"convert", dir_.path().string(), "-o", artifact, "--quiet"}).status, 0);
  const json answer = quern_json({"generate", artifact, "-n", "2", "--quiet", "--chat", "-p", "Hi"});
  EXPECT_EQ(answer["prompt"], "<B>[user] Hi\n[assistant]");
}

TEST_F(Chat, ContradictingFilesAreReported) {
  write_text(dir_ / "config.json", R"({"eos_token_id": 3, "vocab_size": 4096})");
  write_text(dir_ / "generation_config.json", R"({"eos_token_id": 2})");
  const std::string expected = "generation_config.json says that texts end with token 2";
  const ProgramResult result = quern({"generate", dir_.path().string(), "-n", "1", "-p", "Hi"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.err.find("warning: " + expected), std::string::npos) << result.err;
  const json converted =
      quern_json({"convert", dir_.path().string(), "-o", (dir_ / "m.quern").string(), "--quiet"});
  ASSERT_EQ(converted["warnings"].size(), 1U);
  EXPECT_EQ(converted["warnings"][0].get<std::string>().find(expected), 0U);
}

TEST_F(Chat, WhatMakesNoSenseIsRefused) {
  const std::string model = dir_.path().string();
  write_text(dir_ / "bad.json", R"({"messages": ["Hi"]})");
  write_text(dir_ / "refuses.jinja", "{{ raise_exception('roles must alternate') }}");
  write_text(dir_ / "broken.jinja", "{% if %}");
  const auto path = [&](const char* name) { return (dir_ / name).string(); };
  expect_refused(quern({"generate", model, "--messages", path("bad.json")}), 3, {"bad.json", "role"});
  expect_refused(quern({"generate", model, "--chat", "--ids", "1,2"}), 2, {"--ids"});
  expect_refused(quern({"generate", model, "--messages", path("bad.json"), "-p", "x"}), 2, {"--messages"});
  expect_refused(quern({"generate", model, "--chat-set", "x", "-p", "x"}), 2, {"NAME=VALUE"});
  expect_refused(quern({"generate", model, "--chat-template", path("refuses.jinja"), "-p", "x"}), 3,
                 {"roles must alternate"});
  expect_refused(quern({"generate", model, "--chat-template", path("broken.jinja"), "-p", "x"}), 3,
                 {"line 1"});
  expect_refused(quern({"generate", example("model.onnx"), "--chat", "-p", "x"}), 3, {"no chat template"});
}

}  // namespace
}  // namespace quern::test
