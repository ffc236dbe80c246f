#include "formats/artifact/contradictions.h"

#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace quern::artifact {
namespace {

using Sentences = std::vector<std::string>;

struct Folder {
  test::TempDir dir;
  void write(const char* name, const char* text) const { test::write_text(dir / name, text); }
  Sentences contradictions(const GraphFacts& graph = {}) const {
    return find_contradictions(dir.path(), graph);
  }
};

TEST(Contradictions, FilesThatAgreeHaveNone) {
  const Folder folder;
  EXPECT_EQ(folder.contradictions(), Sentences{});
  folder.write(
      "genai_config.json",
      R"({"model": {"eos_token_id": [2, 7], "bos_token_id": 1, "context_length": 512, "vocab_size": 99}})");
  folder.write("generation_config.json", R"({"eos_token_id": 7})");
  folder.write("config.json",
               R"({"eos_token_id": 2, "bos_token_id": 1, "max_position_embeddings": 512, "vocab_size": 99})");
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<e>"}, "bos_token": "<b>",
      "model_max_length": 1000000000000000019884624838656,
      "added_tokens_decoder": {"1": {"content": "<b>"}, "2": {"content": "<e>"}}})");
  EXPECT_EQ(folder.contradictions({.context_length = 512, .vocabulary = 99}), Sentences{});
}

TEST(Contradictions, EachNamesBothSidesAndWhatIsTaken) {
  const Folder folder;
  folder.write("generation_config.json", R"({"eos_token_id": [2, 7]})");
  folder.write("config.json", R"({"eos_token_id": 2, "bos_token_id": 1, "text_config": {"n_ctx": 512}})");
  folder.write("tokenizer_config.json", R"({"eos_token": "<e>", "bos_token": "<e>", "model_max_length": 256,
      "added_tokens_decoder": {"9": {"content": "<e>"}, "x": {}, "10": 3}})");
  EXPECT_EQ(folder.contradictions(), (Sentences{"generation_config.json says that texts end with token 2, 7, "
                                                "tokenizer_config.json that they end with "
                                                "9; 2, 7 is taken",
                                                "config.json says that the token that begins texts is 1, "
                                                "tokenizer_config.json that it is 9; 1 is taken",
                                                "config.json says that the context length is 512, "
                                                "tokenizer_config.json that it is 256; 512 is taken"}));
}

TEST(Contradictions, TheGraphWins) {
  const Folder folder;
  folder.write("config.json", R"({"max_position_embeddings": 4096, "vocab_size": 100})");
  EXPECT_EQ(folder.contradictions({.context_length = 2048, .vocabulary = 128}),
            (Sentences{
                "config.json says that the context length is 4096, the graph's tables reach to 2048; 2048 is "
                "taken",
                "config.json says that there are 100 tokens, the graph embeds 128; the graph's are taken"}));
  // Tables that reach further are no contradiction.
  EXPECT_EQ(folder.contradictions({.context_length = 8192, .vocabulary = 100}), Sentences{});
}

TEST(Contradictions, WhatIsNoConfigurationSaysNothing) {
  const Folder folder;
  folder.write("config.json", "[1, 2");
  folder.write("generation_config.json", R"({"eos_token_id": "two", "bos_token_id": null})");
  folder.write("tokenizer_config.json",
               R"({"eos_token": 3, "bos_token": {"content": 4}, "added_tokens_decoder": []})");
  EXPECT_EQ(folder.contradictions({.context_length = 1, .vocabulary = 1}), Sentences{});
}

}  // namespace
}  // namespace quern::artifact
