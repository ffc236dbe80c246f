// Tokenizers that aren't a tokenizer.json, against the software whose files they are
// (make_other_fixtures.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/tokenizer/tokenizer.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::tokenizer {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int64_t>;

std::filesystem::path other(const std::string& name) {
  return test::source_path("tests/tokenizer/fixtures/other/" + name);
}

Json read_json(const std::filesystem::path& path) {
  return Json::parse(test::read_text(path));
}

Json all_texts() {
  return read_json(test::source_path("tests/tokenizer/fixtures/texts.json"));
}

std::string stream_decode(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int64_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(piece));
    text += piece;
  }
  return text + decoder.finish();
}

void expect_recorded(const Tokenizer& tokenizer, const Json& texts, const std::string& name,
                     DecodeOptions decoding = {}) {
  const Json cases = read_json(other(name + ".cases.json"));
  ASSERT_EQ(cases.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(texts[i].dump());
    const auto text = texts[i].get<std::string>();
    const Ids ids = tokenizer.encode(text);
    ASSERT_EQ(ids, cases[i]["ids"].get<Ids>());
    const std::string decoded = cases[i].value("decoded", text);
    EXPECT_EQ(tokenizer.decode(ids, decoding), decoded);
    if (decoding.skip_special_tokens) continue;
    EXPECT_EQ(stream_decode(tokenizer, ids), decoded);
  }
}

class SentencePieceModels : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieceModels, IdsAndTextsAreThoseOfSentencePiece) {
  const std::string name = GetParam();
  const Tokenizer tokenizer = Tokenizer::from_file(other(name + ".model"));
  expect_recorded(tokenizer, all_texts(), name);
  const Tokenizer again = Tokenizer::from_bytes(tokenizer.to_bytes());
  EXPECT_EQ(again.to_bytes(), tokenizer.to_bytes());
  EXPECT_EQ(again.encode("Hello, world!"), tokenizer.encode("Hello, world!"));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, SentencePieceModels,
                         testing::Values("unigram", "unigram_bytes", "bpe", "bpe_symbols", "word", "char"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SentencePiece, MalformedUtf8IsReplacedByteByByte) {
  const Tokenizer tokenizer = Tokenizer::from_file(other("unigram.model"));
  for (const Json& entry : read_json(other("malformed.json"))) {
    const auto hex = entry["hex"].get<std::string>();
    std::string text;
    for (size_t i = 0; i < hex.size(); i += 2)
      text.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    EXPECT_EQ(tokenizer.encode(text), entry["ids"].get<Ids>()) << hex;
  }
}

TEST(SentencePiece, TheConfigBesideTheFileSaysWhatFramesATextWith) {
  const test::TempDir folder;
  std::filesystem::copy(other("bpe.model"), folder / "tokenizer.model");
  const Ids plain = Tokenizer::from_file(folder / "tokenizer.model").encode("ab");
  test::write_text(folder / "tokenizer_config.json", R"({"add_bos_token": true, "add_eos_token": true})");
  const Tokenizer framing = Tokenizer::from_file(folder / "tokenizer.model");
  Ids framed = {1};
  framed.insert(framed.end(), plain.begin(), plain.end());
  framed.push_back(2);
  EXPECT_EQ(framing.encode("ab"), framed);
  EXPECT_EQ(framing.encode("ab", {.add_special_tokens = false}), plain);
  EXPECT_EQ(Tokenizer::from_bytes(framing.to_bytes()).encode("ab"), framed);
  EXPECT_EQ(framing.bos_hint(), 1);
  EXPECT_EQ(framing.eos_hints(), (Ids{2}));
}

TEST(SentencePiece, TheSharedModelLoads) {
  QUERN_NEEDS_SHARED("tokenizers/sentencepiece/test_model.model");
  const Tokenizer tokenizer =
      Tokenizer::from_file(test::shared_path("tokenizers/sentencepiece/test_model.model"));
  const Ids ids = tokenizer.encode("I saw a girl with a telescope.");
  EXPECT_EQ(tokenizer.decode(ids), "I saw a girl with a telescope.");
}

TEST(Tiktoken, IdsAndTextsAreThoseOfTiktoken) {
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  TiktokenOptions options;
  options.pattern = pattern;
  AddedToken end;
  end.id = 427;
  end.content = "<|endoftext|>";
  end.normalized = false;
  end.special = true;
  options.special_tokens = {end};
  const std::string file = test::read_text(other("small.tiktoken"));
  const Tokenizer tokenizer = Tokenizer::from_tiktoken(file, options);
  expect_recorded(tokenizer, all_texts(), "small");
  EXPECT_EQ(Tokenizer::from_bytes(tokenizer.to_bytes()).encode("a<|endoftext|>"),
            tokenizer.encode("a<|endoftext|>"));
  EXPECT_THROW(Tokenizer::from_bytes(file), Error);  // whose pattern is it?
}

TEST(Llama2c, IdsAndTextsAreThoseOfItsProgram) {
  const Tokenizer tokenizer = Tokenizer::from_file(other("tok.bin"));
  expect_recorded(tokenizer, read_json(other("tok.texts.json")), "tok", {.skip_special_tokens = true});
}

TEST(Llama2c, TheSharedTokenizerReproducesTheRecordedPrompt) {
  QUERN_NEEDS_SHARED("models/stories260K/golden.json");
  const Tokenizer tokenizer = Tokenizer::from_file(test::shared_path("models/stories260K/tok512.bin"));
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  const Json golden = read_json(test::shared_path("models/stories260K/golden.json"));
  const auto prompt = golden["prompt_ids"].get<Ids>();
  const std::string text = tokenizer.decode(prompt, {.skip_special_tokens = true});
  EXPECT_EQ(text, "Once upon a time");
  EXPECT_EQ(tokenizer.encode(text), prompt);
}

std::string error_of(const std::string& bytes) {
  try {
    Tokenizer::from_bytes(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TokenizerFile, WhatIsNoTokenizerIsSaidSo) {
  EXPECT_NE(error_of("").find("not a tokenizer"), std::string::npos);
  EXPECT_NE(error_of("hello").find("not a tokenizer"), std::string::npos);
  EXPECT_NE(error_of(std::string("\n\xFF\xFF\xFF\xFF\x0Fxx")).find("not a valid SentencePiece model"),
            std::string::npos);
  EXPECT_NE(error_of("quern-tokenizer 1 none\n{\"add_bos\":false,\"add_eos\":false}\nx").find("unknown form"),
            std::string::npos);
  EXPECT_NE(error_of("quern-tokenizer 1 none").find("ends within"), std::string::npos);
  EXPECT_NE(error_of("YQ== 0\nYQ== 1\n").find("repeats a token"), std::string::npos);
}

TEST(TokenizerFile, TruncatedModelsAreErrorsOrSmallerModels) {
  const std::string bytes = test::read_text(other("bpe.model"));
  int errors = 0;
  for (size_t size = 1; size < bytes.size(); size += 97) {
    try {
      Tokenizer::from_bytes(bytes.substr(0, size)).encode("Hello, world!");
    } catch (const Error&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 10);
}

}  // namespace
}  // namespace quern::tokenizer
