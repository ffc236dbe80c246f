#include "formats/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ir/error.h"
#include "tests/support/paths.h"

namespace quern::tokenizer {
namespace {

// The bytes of a, b, space and of the euro sign's three bytes, with two merges.
constexpr const char* kSmall = R"({
  "added_tokens": [{"id": 8, "content": "<end>", "special": true, "normalized": false}],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "â": 4, "Ĥ": 5, "¬": 6, "Ġab": 7},
            "merges": ["a b", ["Ġ", "ab"]]}
})";

std::string error_of(const std::string& json) {
  try {
    Tokenizer::from_json(json);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

TEST(Tokenizer, MergesWithinPieces) {
  const Tokenizer tokenizer = Tokenizer::from_json(kSmall);
  EXPECT_EQ(tokenizer.encode("ab ab<end>ba"), (std::vector<int64_t>{2, 7, 8, 1, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{2, 7, 8, 1, 0}), "ab ab<end>ba");
  EXPECT_EQ(tokenizer.decode(std::vector<int64_t>{2, 7, 8, 1, 0}, {.skip_special_tokens = true}), "ab abba");
  EXPECT_EQ(tokenizer.vocab_size(), 9);
  EXPECT_EQ(tokenizer.token_of(7), "Ġab");
  EXPECT_EQ(tokenizer.token_of(99), std::nullopt);
  EXPECT_EQ(tokenizer.id_of("<end>"), 8);
  EXPECT_TRUE(tokenizer.is_special(8));
}

TEST(Tokenizer, SerializesToItsOwnBytes) {
  const Tokenizer tokenizer = Tokenizer::from_json(kSmall);
  EXPECT_EQ(tokenizer.to_bytes(), kSmall);
  EXPECT_EQ(Tokenizer::from_bytes(tokenizer.to_bytes()).encode("ab"), (std::vector<int64_t>{2}));
}

TEST(StreamDecoder, NeverShowsHalfACharacter) {
  const Tokenizer tokenizer = Tokenizer::from_json(kSmall);
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(2), "ab");
  EXPECT_EQ(decoder.push(4), "");
  EXPECT_EQ(decoder.push(5), "");
  EXPECT_EQ(decoder.push(6), "€");
  EXPECT_EQ(decoder.push(4), "");
  EXPECT_EQ(decoder.push(0), "\uFFFDa");
  EXPECT_EQ(decoder.push(4), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.push(1), "b");
}

TEST(Tokenizer, ALongRunDoesNotTakeQuadraticTime) {
  const Tokenizer tokenizer = Tokenizer::from_json(kSmall);
  std::string text;
  for (int i = 0; i < 500000; ++i) text += "ab";
  EXPECT_EQ(tokenizer.encode(text).size(), 500000U);
}

TEST(Tokenizer, BadFilesAreErrorsThatSayWhatIsWrong) {
  EXPECT_NE(error_of("{").find("not a valid tokenizer.json"), std::string::npos);
  EXPECT_NE(error_of("[]").find("not an object"), std::string::npos);
  EXPECT_NE(error_of("{}").find("lacks 'model'"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).find("levels deep"), std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]}})").find("needs the token 'b'"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}})").find("same id 0"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"vocab": {"a": -1}, "merges": []}})").find("is -1"), std::string::npos);
  EXPECT_NE(
      error_of(R"({"model": {"vocab": {"a": 4000000000}, "merges": []}})").find("has the id 4000000000"),
      std::string::npos);
  EXPECT_NE(error_of(R"({"model": {"vocab": {"a": 1}, "merges": ["a"]}})").find("expected as two tokens"),
            std::string::npos);
}

TEST(Tokenizer, AddedPrefixSpaceMayBeAPieceByItself) {
  const Tokenizer tokenizer = Tokenizer::from_json(R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true},
    "model": {"type": "WordLevel", "vocab": {"?": 0, "Ġ": 1}, "unk_token": "?"}})");
  EXPECT_EQ(tokenizer.encode("\u2009x"), (std::vector<int64_t>{1, 0, 0}));
}

TEST(Tokenizer, DecodesTheRecordedPromptsBackToTheirIds) {
  for (const char* model : {"storyteller", "gpt2-style"}) {
    const std::string folder = std::string("models/") + model;
    QUERN_NEEDS_SHARED(folder);
    const Tokenizer tokenizer = Tokenizer::from_file(test::shared_path(folder + "/tokenizer.json"));
    const auto ids =
        read_json(test::shared_path(folder + "/reference.json"))["prompt_ids"].get<std::vector<int64_t>>();
    EXPECT_EQ(tokenizer.encode(tokenizer.decode(ids)), ids);
    EXPECT_EQ(tokenizer.vocab_size(), 4096);
    EXPECT_EQ(tokenizer.eos_hints(), (std::vector<int64_t>{0}));
  }
}

}  // namespace
}  // namespace quern::tokenizer
