#include "calibrate/dataset.h"

#include <gtest/gtest.h>

#include "formats/npy/npy.h"
#include "formats/npy/npz.h"
#include "ir/rewriter.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::calibrate {
namespace {

using test::TempDir;
using test::write_text;

const tokenizer::Tokenizer& example_tokenizer() {
  static const tokenizer::Tokenizer kTokenizer =
      tokenizer::Tokenizer::from_file(test::source_path("examples/storyteller/tokenizer.json"));
  return kTokenizer;
}

DatasetOptions with_tokenizer() {
  return {.tokenizer = &example_tokenizer()};
}

TEST(TokenData, ATextIsOneDocument) {
  const TokenData data = TokenData::parse_text("Once upon a time\n", "x.txt", with_tokenizer());
  ASSERT_EQ(data.documents.size(), 1u);
  EXPECT_EQ(data.documents[0].ids, example_tokenizer().encode("Once upon a time\n"));
  EXPECT_TRUE(data.is_text);
  EXPECT_FALSE(data.labelled());
  EXPECT_EQ(data.where(data.documents[0]), "'x.txt'");
}

TEST(TokenData, ALineIsADocument) {
  const std::string lines =
      "{\"text\": \"Once upon\", \"label\": 2}\n\n{\"ids\": [3, 1, 4], \"label\": 0}\r\n{\"input_ids\": [], "
      "\"label\": 1}";
  const TokenData data = TokenData::parse_lines(lines, "x.jsonl", with_tokenizer());
  ASSERT_EQ(data.documents.size(), 3u);
  EXPECT_EQ(data.documents[0].ids, example_tokenizer().encode("Once upon"));
  EXPECT_EQ(data.documents[1].ids, (std::vector<int64_t>{3, 1, 4}));
  EXPECT_EQ(data.documents[1].line, 3);
  EXPECT_EQ(data.documents[0].label, 2);
  EXPECT_TRUE(data.labelled());
  EXPECT_EQ(data.tokens(), static_cast<int64_t>(data.documents[0].ids.size()) + 3);
  EXPECT_EQ(data.where(data.documents[1]), "line 3 of 'x.jsonl'");
}

TEST(TokenData, SamplesLimitTheDocuments) {
  const TokenData data =
      TokenData::parse_lines("{\"ids\":[1]}\n{\"ids\":[2]}\nnot json", "x", {.samples = 2});
  EXPECT_EQ(data.documents.size(), 2u);
}

TEST(TokenData, ChoosesByTheFilesName) {
  const TempDir folder;
  write_text(folder / "a.jsonl", "{\"ids\": [1, 2]}\n");
  write_text(folder / "a.txt", "{\"ids\": [1, 2]}\n");
  EXPECT_FALSE(TokenData::load(folder / "a.jsonl", with_tokenizer()).is_text);
  EXPECT_TRUE(TokenData::load(folder / "a.txt", with_tokenizer()).is_text);
  EXPECT_EQ(TokenData::load(folder / "a.txt", with_tokenizer()).digest.size(), 64u);
}

void expect_bad_lines(const std::string& lines, const std::vector<std::string>& parts) {
  EXPECT_TRUE(
      test::throws_error([&] { TokenData::parse_lines(lines, "x.jsonl", {}); }, ErrorCode::BadData, parts))
      << lines;
}

TEST(TokenData, RefusesBadLinesByNumber) {
  expect_bad_lines("", {"'x.jsonl' is empty"});
  expect_bad_lines(" \n\t\n", {"'x.jsonl' is empty"});
  expect_bad_lines("{\"ids\": [1]}\nnot json\n", {"line 2 of 'x.jsonl'", "JSON object"});
  expect_bad_lines("[1, 2]\n", {"line 1", "JSON object"});
  expect_bad_lines("{\"id\": [1]}\n", {"line 1", "\"text\"", "\"ids\""});
  expect_bad_lines("{\"text\": 7}\n", {"line 1", "\"text\""});
  expect_bad_lines("{\"ids\": [1, -2]}\n", {"line 1", "whole numbers"});
  expect_bad_lines("{\"ids\": [1.5]}\n", {"line 1", "whole numbers"});
  expect_bad_lines("{\"ids\": 3}\n", {"line 1", "whole numbers"});
  expect_bad_lines("{\"ids\": [1], \"label\": \"cat\"}\n", {"line 1", "label"});
  expect_bad_lines("{\"ids\": [1], \"label\": -1}\n", {"line 1", "label"});
  expect_bad_lines("{\"ids\": [1], \"label\": 1}\n{\"ids\": [1]}\n", {"line 2", "has no \"label\""});
  expect_bad_lines("{\"text\": \"hello\"}\n", {"line 1", "no tokenizer", "--tokenizer"});
  expect_bad_lines(std::string(100000, '['), {"line 1", "JSON object"});
}

TEST(TokenData, RefusesTextThatIsNotUtf8) {
  const auto refused = [](const std::string& text, const std::string& part) {
    EXPECT_QUERN_ERROR(TokenData::parse_text(text, "x.txt", with_tokenizer()), ErrorCode::BadData, "'x.txt'",
                       part);
  };
  refused("caf\xE9 au lait", "byte 3 is 233");
  refused("\xFF\xFEh\0i\0", "byte 0 is 255");
  refused("ab\xC3", "byte 2 is 195");
  refused("\xED\xA0\x80", "byte 0 is 237");      // a surrogate
  refused("\xC0\xAF", "byte 0 is 192");          // overlong
  refused("\xF4\x90\x80\x80", "byte 0 is 244");  // beyond U+10FFFF
  refused("", "is empty");
  refused(" \n ", "is empty");
  EXPECT_NO_THROW(TokenData::parse_text("naïve – 𝄞", "x.txt", with_tokenizer()));
}

TEST(TokenData, AMissingFileIsAnIoError) {
  EXPECT_QUERN_ERROR(TokenData::load("/nowhere/x.txt", {}), ErrorCode::Io, "/nowhere/x.txt");
}

TEST(TensorData, ReadsOneArray) {
  const TempDir folder;
  npy::write(folder / "x.npy", Tensor::from<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  Graph graph;
  Rewriter rewriter(graph);
  rewriter.add_input("pixels", {.dtype = DType::F32, .shape = {}});
  rewriter.commit();
  const TensorData data = TensorData::load(folder / "x.npy", graph.inputs(), {});
  EXPECT_EQ(data.samples(), 3);
  const auto middle = data.slice(1, 1);
  EXPECT_TRUE(identical(middle.at("pixels"), Tensor::from<float>({1, 2}, {3, 4})));
  EXPECT_TRUE(is_tensor_file("a/b.npz"));
  EXPECT_FALSE(is_tensor_file("a/b.txt"));
  Rewriter another(graph);
  another.add_input("more", {.dtype = DType::F32, .shape = {}});
  another.commit();
  EXPECT_QUERN_ERROR(TensorData::load(folder / "x.npy", graph.inputs(), {}), ErrorCode::BadData, "x.npy",
                     "2 inputs");
}

TEST(TensorData, ReadsAnArchiveWithLabels) {
  const TempDir folder;
  npy::write_archive(folder / "x.npz", {{"a", Tensor::from<float>({2, 1}, {1, 2})},
                                        {"b", Tensor::from<int64_t>({2}, {5, 6})},
                                        {"labels", Tensor::from<int64_t>({2}, {0, 1})}});
  const TensorData data = TensorData::load(folder / "x.npz", {}, {.samples = 1});
  EXPECT_EQ(data.samples(), 1);
  EXPECT_TRUE(data.labelled());
  EXPECT_EQ(data.label(0), 0);
  EXPECT_EQ(data.arrays().size(), 2u);
}

TEST(TensorData, RefusesArraysThatDisagree) {
  const TempDir folder;
  const auto refused = [&](std::map<std::string, Tensor> arrays, const std::string& part) {
    npy::write_archive(folder / "x.npz", arrays);
    EXPECT_QUERN_ERROR(TensorData::load(folder / "x.npz", {}, {}), ErrorCode::BadData, "x.npz", part);
  };
  const Tensor two = Tensor::from<float>({2}, {1, 2});
  refused({{"a", two}, {"b", Tensor::from<float>({3}, {1, 2, 3})}}, "3 samples");
  refused({{"a", Tensor::scalar<float>(1)}}, "single number");
  refused({{"label", Tensor::from<int64_t>({1}, {1})}}, "no arrays");
  refused({{"a", two}, {"label", two}}, "labels");
  refused({{"a", Tensor::zeros(DType::F32, {0, 4})}}, "no samples");
}

}  // namespace
}  // namespace quern::calibrate
