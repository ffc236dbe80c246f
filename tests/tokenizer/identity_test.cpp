// Equality with Hugging Face `tokenizers`: what make_fixtures.py recorded, and the vectors under shared/.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/tokenizer/tokenizer.h"
#include "formats/tokenizer/utf8.h"
#include "tests/support/paths.h"

namespace quern::tokenizer {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int64_t>;

Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

std::filesystem::path fixture(const std::string& name) {
  return test::source_path("tests/tokenizer/fixtures/" + name + ".json");
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

// As sweep_text() of make_fixtures.py.
std::string sweep_text() {
  std::string text;
  int i = 0;
  for (char32_t code = 0; code < 0x110000; code += 13, ++i) {
    if (code >= 0xD800 && code < 0xE000) continue;
    append_utf8(text, code);
    if (i % 5 == 0) {
      text += "a";
    } else if (i % 7 == 0) {
      text += " ";
    }
  }
  return text;
}

// FNV-1a over the ids as little-endian u32.
std::string checksum(const Ids& ids) {
  uint64_t value = 0xCBF29CE484222325U;
  for (const int64_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ (static_cast<uint64_t>(id) >> shift & 0xFF)) * 0x100000001B3U;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

class Identity : public testing::TestWithParam<const char*> {};

TEST_P(Identity, IdsAndTextsAreThoseOfTokenizers) {
  const Tokenizer tokenizer = Tokenizer::from_file(fixture(GetParam()));
  const Json recorded = read_json(fixture(std::string(GetParam()) + ".cases"));
  const Json texts = read_json(fixture("texts"));
  ASSERT_EQ(recorded["cases"].size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    SCOPED_TRACE(texts[i].dump());
    const Json& expected = recorded["cases"][i];
    const Ids ids = tokenizer.encode(text);
    ASSERT_EQ(ids, expected["ids"].get<Ids>());
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false}), expected.value("plain", ids));
    const std::string decoded = expected.value("decoded", text);
    EXPECT_EQ(tokenizer.decode(ids), decoded);
    EXPECT_EQ(tokenizer.decode(ids, {.skip_special_tokens = true}), expected.value("skipped", decoded));
    EXPECT_EQ(stream_decode(tokenizer, ids), decoded);
  }
}

TEST_P(Identity, AllOfUnicodeHasTheRecordedChecksum) {
  const Tokenizer tokenizer = Tokenizer::from_file(fixture(GetParam()));
  const Json recorded = read_json(fixture(std::string(GetParam()) + ".cases"));
  EXPECT_EQ(checksum(tokenizer.encode(sweep_text(), {.add_special_tokens = false})), recorded["sweep"]);
}

// The text of an entry of fuzz.texts.json.
std::string fuzz_text(const Json& entry) {
  if (entry.is_string()) return entry.get<std::string>();
  const auto hex = entry["hex"].get<std::string>();
  std::string text;
  for (size_t i = 0; i < hex.size(); i += 2)
    text.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return text;
}

// As digest() of make_fuzz_fixtures.py.
std::string digest(const Tokenizer& tokenizer, const std::string& text) {
  uint32_t value = 0x811C9DC5U;
  const auto add = [&value](const std::string& bytes) {
    for (const char byte : bytes + "\xFF\xFF\xFF\xFF")
      value = (value ^ static_cast<unsigned char>(byte)) * 0x01000193U;
  };
  const Ids ids = tokenizer.encode(text);
  std::string packed;
  for (const int64_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) packed.push_back(static_cast<char>(id >> shift & 0xFF));
  }
  add(packed);
  add(tokenizer.decode(ids));
  add(tokenizer.decode(ids, {.skip_special_tokens = true}));
  char result[9];
  std::snprintf(result, sizeof result, "%08x", value);
  return result;
}

void expect_fuzz_digests(const Tokenizer& tokenizer, const std::string& name) {
  const Json expected = read_json(fixture("fuzz.digests"))[name];
  const Json corpus = read_json(fixture("fuzz.texts"));
  size_t next = 0;
  for (const auto& [kind, texts] : corpus.items()) {
    for (const Json& entry : texts) {
      ASSERT_LT(next, expected.size());
      EXPECT_EQ(digest(tokenizer, fuzz_text(entry)), expected[next++]) << kind << ": " << entry.dump();
    }
  }
  EXPECT_EQ(next, expected.size());
}

TEST_P(Identity, RandomTextsOfEveryKindHaveTheRecordedDigests) {
  expect_fuzz_digests(Tokenizer::from_file(fixture(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Identity,
                         testing::Values("gpt2", "llama3", "qwen2", "o200k", "deepseek", "falcon", "roberta",
                                         "llama2", "gemma", "bert", "bert_cased", "t5", "xlnet", "clip",
                                         "subword_bpe", "words", "characters", "fixed_length"),
                         [](const auto& info) { return std::string(info.param); });

class SharedVectors : public testing::TestWithParam<const char*> {};

TEST_P(SharedVectors, AreReproduced) {
  QUERN_NEEDS_SHARED("tokenizers/vectors.json");
  const Json vectors = read_json(test::shared_path("tokenizers/vectors.json"))[GetParam()];
  ASSERT_FALSE(vectors.empty());
  const Tokenizer tokenizer =
      Tokenizer::from_file(test::shared_path(std::string("tokenizers/") + GetParam() + "/tokenizer.json"));
  for (const auto& [name, vector] : vectors.items()) {
    if (vector.contains("text_pair")) continue;
    SCOPED_TRACE(name);
    const auto ids = vector["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.encode(vector["text"].get<std::string>()), ids);
    EXPECT_EQ(tokenizer.decode(ids, {.clean_up_spaces = true}), vector["decoded"].get<std::string>());
  }
}

class SharedTokenizers : public testing::TestWithParam<const char*> {};

TEST_P(SharedTokenizers, GiveRandomTextsTheRecordedDigests) {
  const std::string name = GetParam();
  QUERN_NEEDS_SHARED("tokenizers/" + name + "/tokenizer.json");
  expect_fuzz_digests(Tokenizer::from_file(test::shared_path("tokenizers/" + name + "/tokenizer.json")),
                      "shared/" + name);
}

INSTANTIATE_TEST_SUITE_P(Models, SharedTokenizers, testing::Values("gpt2", "bert-minilm", "falcon", "phi-3"),
                         [](const auto& info) { return std::string(info.param).substr(0, 3); });

INSTANTIATE_TEST_SUITE_P(Models, SharedVectors, testing::Values("gpt2", "bert-minilm", "falcon"),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

}  // namespace
}  // namespace quern::tokenizer
