// Keys and values that went to disk and back.
#include "runtime/prefix/sequence_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "tests/runtime/decoder/random_decoder.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::runtime {
namespace {

using test::random_tokens;

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class SequenceFileTest : public testing::TestWithParam<test::NamedDecoder> {
 protected:
  SequenceFileTest()
      : program_(Program::compile(*test::random_decoder(GetParam().shape))),
        session_(program_, {.threads = 1, .cache_dtype = GetParam().cache}) {}
  std::shared_ptr<const Program> program_;
  Session session_;
  test::TempDir dir_;
};

TEST_P(SequenceFileTest, GoesOnAsIfNothingHadHappened) {
  for (const int64_t size : {0, 1, 63, 64, 65, 200}) {
    const std::vector<int64_t> text = random_tokens(size, 97, 4), more = random_tokens(80, 97, 5);
    Sequence sequence = session_.new_sequence();
    if (size > 0) session_.run(sequence, text);
    save_sequence(sequence, dir_ / "a.qkv", "model");
    save_sequence(sequence, dir_ / "b.qkv", "model");
    EXPECT_EQ(read_all(dir_ / "a.qkv"), read_all(dir_ / "b.qkv"));
    const auto row = session_.run(sequence, more);
    const std::vector<float> wanted(row.begin(), row.end());
    Session other(program_, {.threads = 1, .cache_dtype = GetParam().cache});
    Sequence loaded = load_sequence(other, dir_ / "a.qkv", "model");
    EXPECT_TRUE(std::equal(loaded.tokens().begin(), loaded.tokens().end(), text.begin(), text.end()));
    // What is written to is copied: a fork goes on from the file's blocks too.
    Sequence fork = loaded.fork();
    for (Sequence* s : {&loaded, &fork}) {
      const auto got = other.run(*s, more);
      EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size_bytes()), 0) << size;
    }
    EXPECT_EQ(read_all(dir_ / "a.qkv"), read_all(dir_ / "b.qkv"));
  }
}

std::vector<test::NamedDecoder> variations() {
  std::vector<test::NamedDecoder> some;
  for (const auto& decoder : test::decoder_variations()) {
    for (const char* name : {"llama", "window_softcap", "long_frequencies", "weights_i8"}) {
      if (decoder.name == name) some.push_back(decoder);
    }
  }
  some.push_back({.name = "cache_i8", .shape = {}, .cache = DType::I8});
  some.push_back({.name = "cache_i4", .shape = {}, .cache = DType::I4});
  return some;
}

INSTANTIATE_TEST_SUITE_P(All, SequenceFileTest, testing::ValuesIn(variations()),
                         [](const auto& info) { return info.param.name; });

TEST(SequenceFile, EveryDamageIsNoticed) {
  const test::TempDir dir;
  const auto program = Program::compile(*test::random_decoder({}));
  Session session(program, {.threads = 1});
  Sequence sequence = session.new_sequence();
  session.run(sequence, random_tokens(70, 97, 1));
  save_sequence(sequence, dir / "good.qkv", "model");
  const std::string good = read_all(dir / "good.qkv");
  const auto refused = [&](const std::string& bytes) {
    std::ofstream(dir / "bad.qkv", std::ios::binary) << bytes;
    const int64_t before = session.cache_bytes();
    EXPECT_QUERN_ERROR(load_sequence(session, dir / "bad.qkv", "model"), ErrorCode::Corrupt, "bad.qkv");
    EXPECT_EQ(session.cache_bytes(), before);
  };
  for (const size_t at :
       {0UL, 9UL, 13UL, 20UL, 30UL, 41UL, 45UL, 70UL, 120UL, 200UL, 4096UL, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    refused(bad);
  }
  for (const size_t size : {0UL, 10UL, 64UL, 300UL, 4096UL, good.size() - 1}) refused(good.substr(0, size));
}

TEST(SequenceFile, RefusesWhatOthersMade) {
  const test::TempDir dir;
  const auto program = Program::compile(*test::random_decoder({}));
  Session session(program, {.threads = 1});
  Sequence sequence = session.new_sequence();
  session.run(sequence, random_tokens(70, 97, 1));
  save_sequence(sequence, dir / "a.qkv", "model");
  EXPECT_QUERN_ERROR(load_sequence(session, dir / "a.qkv", "another"), ErrorCode::BadData, "another model");
  Session half(program, {.threads = 1, .cache_dtype = DType::F16});
  EXPECT_QUERN_ERROR(load_sequence(half, dir / "a.qkv", "model"), ErrorCode::BadData, "another type");
  Session shorter(program, {.threads = 1, .context = 50});
  EXPECT_QUERN_ERROR(load_sequence(shorter, dir / "a.qkv", "model"), ErrorCode::BadData, "context of 50");
  EXPECT_QUERN_ERROR(load_sequence(session, dir / "none.qkv", "model"), ErrorCode::Io, "none.qkv");
  EXPECT_QUERN_ERROR(save_sequence(sequence, dir / "no" / "a.qkv", "model"), ErrorCode::Io, "a.qkv");
}

}  // namespace
}  // namespace quern::runtime
