#include <gtest/gtest.h>

#include <fstream>

#include "cli/context_bound.h"
#include "formats/onnx/export.h"
#include "formats/onnx/import.h"
#include "ir/rewriter.h"
#include "tests/cli/quern_binary.h"

namespace quern::test {
namespace {

const std::string kPrompt = "It was a dark night, and the old man";

// One conversion serves all tests.
const std::string& artifact() {
  static const TempDir folder;
  static const std::string path = [] {
    std::string target = (folder / "m.quern").string();
    EXPECT_EQ(quern({"convert", example("model.onnx"), "-o", target, "--quiet"}).status, 0);
    return target;
  }();
  return path;
}

nlohmann::json generate(std::vector<std::string> more) {
  more.insert(more.begin(), {"generate", artifact(), "-p", kPrompt, "-n", "24"});
  return quern_json(more);
}

TEST(GenerateCommand, JsonHasTheDocumentedKeys) {
  const auto object = generate({});
  EXPECT_EQ(object.at("ids").size(), 24u);
  EXPECT_EQ(object.at("finish_reason"), "length");
  EXPECT_EQ(object.at("stop"), nullptr);
  const auto& timing = object.at("timing");
  EXPECT_EQ(timing.at("prompt_tokens"), object.at("prompt_ids").size());
  EXPECT_EQ(timing.at("generated_tokens"), 24);
  EXPECT_GT(timing.at("decode_tokens_per_second"), 0);
  EXPECT_GT(timing.at("prefill_tokens_per_second"), 0);
  const auto decoded = quern_json({"tokenize", artifact(), "--decode", [&] {
                                     std::string ids;
                                     for (const auto& id : object.at("ids")) ids += id.dump() + ",";
                                     return ids;
                                   }()});
  EXPECT_EQ(object.at("text"), decoded.at("text"));
}

TEST(GenerateCommand, StreamsThePromptAndItsContinuation) {
  const auto object = generate({});
  const std::string text = object.at("text");
  const ProgramResult result = quern({"generate", artifact(), "-p", kPrompt, "-n", "24"});
  EXPECT_EQ(result.out, kPrompt + text + "\n");
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result.err;
  const ProgramResult bare =
      quern({"generate", artifact(), "-n", "24", "--no-echo", "-q"}, {.standard_input = kPrompt});
  EXPECT_EQ(bare.out, text + "\n");
  EXPECT_EQ(bare.err, "");
}

// Decoders of this kind take the space of a text's first word away; the first word generated isn't that.
TEST(GenerateCommand, KeepsTheSpaceBetweenAPromptAndItsContinuation) {
  const TempDir folder;
  nlohmann::ordered_json vocab;
  for (int i = 0; i < 4096; ++i) vocab["\u2581w" + std::to_string(i)] = i;
  const nlohmann::ordered_json metaspace = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}, {"split", true}};
  const nlohmann::ordered_json tokenizer = {
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"pre_tokenizer", metaspace},
      {"decoder", metaspace},
      {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "\u2581w0"}}}};
  std::ofstream(folder / "tokenizer.json") << tokenizer.dump();
  const std::string file = (folder / "tokenizer.json").string();
  const auto object =
      quern_json({"generate", artifact(), "--tokenizer", file, "-p", "w5 w6", "-n", "3", "--ignore-eos"});
  ASSERT_EQ(object.at("prompt_ids"), nlohmann::json::parse("[5, 6]"));
  std::string expected;
  for (const auto& id : object.at("ids")) expected += " w" + id.dump();
  EXPECT_EQ(object.at("text"), expected);
  EXPECT_EQ(
      quern({"generate", artifact(), "--tokenizer", file, "-p", "w5 w6", "-n", "3", "--ignore-eos", "-q"})
          .out,
      "w5 w6" + expected + "\n");
}

TEST(GenerateCommand, TheSameSeedGivesTheSameText) {
  const std::vector<std::string> warm = {"--temperature", "1.2",  "--top-k", "50",
                                         "--top-p",       "0.95", "--seed",  "5"};
  EXPECT_EQ(generate(warm).at("ids"), generate(warm).at("ids"));
  std::vector<std::string> other = warm;
  other.back() = "6";
  EXPECT_NE(generate(other).at("ids"), generate(warm).at("ids"));
  EXPECT_EQ(generate({"--temperature", "0"}).at("ids"), generate({}).at("ids"));
  EXPECT_EQ(generate({"--temperature", "1", "--top-k", "1"}).at("ids"), generate({}).at("ids"));
  EXPECT_NE(generate({"--repetition-penalty", "1.5"}).at("ids"), generate({}).at("ids"));
}

// The example model with a generation_config.json beside it.
struct ModelWithSuggestions {
  TempDir folder;
  explicit ModelWithSuggestions(const std::string& config) {
    for (const char* name : {"model.onnx", "tokenizer.json", "config.json"})
      std::filesystem::copy_file(example(name), folder / name);
    write_text(folder / "generation_config.json", config);
  }
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"generate", folder.path().string(), "-p", kPrompt, "-n", "24"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST(GenerateCommand, SamplesAsTheMakersSuggestWhenAskedTo) {
  const ModelWithSuggestions model(R"({"do_sample": true, "temperature": 0.7, "top_k": 40, "top_p": 0.9})");
  const auto object = quern_json(model.command({"--sample", "--seed", "3"}));
  const auto& sampling = object.at("sampling");
  EXPECT_EQ(sampling.at("sample"), true);
  EXPECT_EQ(sampling.at("temperature"), 0.7);
  EXPECT_EQ(sampling.at("top_k"), 40);
  EXPECT_EQ(sampling.at("top_p"), 0.9);
  EXPECT_EQ(sampling.at("min_p"), 0);
  EXPECT_EQ(sampling.at("seed"), 3);
  const std::vector<std::string> spelled = {"--temperature", "0.7", "--top-k", "40",
                                            "--top-p",       "0.9", "--seed",  "3"};
  EXPECT_EQ(object.at("ids"), quern_json(model.command(spelled)).at("ids"));
  // What is given wins, one by one.
  const auto mixed = quern_json(model.command({"--sample", "--temperature", "1.5"})).at("sampling");
  EXPECT_EQ(mixed.at("temperature"), 1.5);
  EXPECT_EQ(mixed.at("top_k"), 40);
}

TEST(GenerateCommand, IsGreedyWhateverTheMakersSuggest) {
  const ModelWithSuggestions model(R"({"do_sample": true, "temperature": 0.7, "repetition_penalty": 1.3})");
  const auto plain = quern_json({"generate", example("model.onnx"), "-p", kPrompt, "-n", "24"});
  EXPECT_EQ(quern_json(model.command({})).at("ids"), plain.at("ids"));
  EXPECT_NE(quern(model.command({})).err.find("greedy (its makers suggest sampling: --sample)"),
            std::string::npos);
  EXPECT_NE(quern(model.command({"--sample", "--seed", "2"}))
                .err.find("sampled with temperature 0.7, repetition penalty 1.3, seed 2"),
            std::string::npos);
  expect_refused(quern(model.command({"--sample", "--temperature", "0"})), 2,
                 {"--sample", "--temperature 0"});
}

TEST(GenerateCommand, RefusesSuggestionsThatCannotBe) {
  const ModelWithSuggestions model(R"({"do_sample": true, "top_p": 5})");
  EXPECT_EQ(quern(model.command({"-q"})).status, 0);
  expect_refused(quern(model.command({"--sample", "-q"})), 3, {"top_p", "suggests"});
}

TEST(GenerateCommand, TheNumberOfThreadsChangesNothing) {
  EXPECT_EQ(generate({"-t", "1"}).at("ids"), generate({"-t", "2"}).at("ids"));
}

TEST(GenerateCommand, EndsAtAStopString) {
  const std::string text = generate({}).at("text");
  const std::string stop = text.substr(text.size() / 2, 4);
  const auto object = generate({"--stop", "never in any text", "--stop", stop});
  EXPECT_EQ(object.at("finish_reason"), "stop_string");
  EXPECT_EQ(object.at("stop"), stop);
  EXPECT_EQ(object.at("text"), text.substr(0, text.find(stop)));
}

TEST(GenerateCommand, WorksOnIdsWithoutATokenizer) {
  const TempDir folder;
  std::filesystem::copy_file(example("model.onnx"), folder / "model.onnx");
  const std::string model = (folder / "model.onnx").string();
  const ProgramResult result = quern({"generate", model, "--ids", "288, 338,752", "-n", "5", "-q"});
  EXPECT_EQ(result.status, 0) << result.err;
  const auto object = quern_json({"generate", model, "--ids", "288,338,752", "-n", "5"});
  std::string ids;
  for (const auto& id : object.at("ids")) ids += (ids.empty() ? "" : ",") + id.dump();
  EXPECT_EQ(result.out, ids + "\n");
  EXPECT_EQ(object.at("text"), nullptr);
  expect_refused(quern({"generate", model, "-p", "hello"}), 3, {"no tokenizer", "--tokenizer", "--ids"});
  expect_refused(quern({"generate", model, "--ids", "1", "--stop", "x"}), 2, {"--stop needs a tokenizer"});
  EXPECT_EQ(
      quern({"generate", model, "--tokenizer", example("tokenizer.json"), "-p", "hello", "-n", "1"}).status,
      0);
}

// The example with eight rows more, which are the most likely of all: to a tokenizer they mean nothing.
void write_padded_example(const std::filesystem::path& folder) {
  constexpr int64_t kMore = 8;
  const auto imported = onnx_format::import_model(example("model.onnx"));
  Graph& graph = *imported.graph;
  const int64_t rows = 4096;
  Rewriter rewriter(graph);
  const auto constants = graph.constants();
  for (Value* value : constants) {
    const Tensor* old = value->tensor();
    if (!old || old->rank() != 2 || (old->dim(0) != rows && old->dim(1) != rows)) continue;
    const bool is_head = old->dim(1) == rows;
    const Shape shape = {old->dim(0) + (is_head ? 0 : kMore), old->dim(1) + (is_head ? kMore : 0)};
    Tensor padded = Tensor::zeros(DType::F32, shape);
    for (int64_t r = 0; r < shape[0]; ++r) {
      for (int64_t c = 0; c < shape[1]; ++c) {
        const bool is_new = r >= old->dim(0) || c >= old->dim(1);
        const double number = old->at(r % old->dim(0) * old->dim(1) + c % old->dim(1));
        padded.set(r * shape[1] + c, is_new ? 5 * number : number);
      }
    }
    rewriter.replace(value, rewriter.add_constant(std::move(padded), is_head ? "head" : "table"));
  }
  rewriter.commit();
  onnx_format::export_model(graph, folder / "model.onnx");
  std::filesystem::copy_file(example("tokenizer.json"), folder / "tokenizer.json");
}

TEST(GenerateCommand, NeverChoosesRowsThatPadTheVocabulary) {
  const TempDir folder;
  write_padded_example(folder.path());
  const auto ids = [](const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"generate", model, "-p", kPrompt, "-n", "24"};
    words.insert(words.end(), more.begin(), more.end());
    return quern_json(words).at("ids");
  };
  const nlohmann::json expected = ids(example("model.onnx"), {});
  EXPECT_EQ(ids(folder / "model.onnx", {}), expected);
  EXPECT_EQ(ids(folder / "model.onnx", {"--speculate", "ngram"}), expected);
  for (const auto& id : ids(folder / "model.onnx", {"--temperature", "3"})) EXPECT_LT(id, 4096);
}

TEST(GenerateCommand, RefusesBadPrompts) {
  const auto refused = [](std::vector<std::string> more, int status, const std::vector<std::string>& parts) {
    more.insert(more.begin(), {"generate", artifact()});
    expect_refused(quern(more), status, parts);
  };
  refused({"-p", ""}, 3, {"prompt is empty"});
  refused({"--ids", ""}, 3, {"empty"});
  refused({"--ids", "1,4096"}, 3, {"4096"});
  refused({"--ids", "1,x"}, 2, {"'x'"});
  refused({"--ids", "1", "-p", "a"}, 2, {"--ids"});
  refused({"-p", "a", "--prompt-file", "b"}, 2, {"--prompt-file"});
  refused({"--prompt-file", "/nowhere/prompt.txt"}, 5, {"/nowhere/prompt.txt"});
  refused({"--prompt-file", example("heldout.txt"), "--context", "64"}, 3, {"64"});
  refused({"-p", "a", "--temperature", "-1"}, 2, {"--temperature"});
  refused({"-p", "a", "-n", "0"}, 2, {"--max-tokens"});
}

TEST(GenerateCommand, EndsWhereTheContextIsFull) {
  const auto object =
      quern_json({"generate", artifact(), "--ids", "1,2,3,4", "-n", "100", "--context", "16"});
  EXPECT_EQ(object.at("finish_reason"), "context");
  EXPECT_LE(object.at("ids").size(), 13u);
  EXPECT_GE(object.at("ids").size(), 12u);
}

TEST(ContextBound, IsWhatTheCacheOfOneSequenceMayTake) {
  const runtime::DecoderTraits traits{.layers = {{2, 16, 16}, {1, 32, 8}}};  // 104 elements a token
  EXPECT_EQ(cli::tokens_within(104 * 4 * 1000 + 3, traits, DType::F32), 1000);
  EXPECT_EQ(cli::tokens_within(104 * 2 * 1000, traits, DType::F16), 1000);
  EXPECT_EQ(cli::tokens_within(1, traits, DType::F32), 1);
  EXPECT_EQ(cli::tokens_within(1, {}, DType::F32), 0);
  EXPECT_GT(cli::available_memory(), 0);
  EXPECT_GT(cli::with_context_bound({}, traits).context, 0);
  EXPECT_EQ(cli::with_context_bound({.context = 7}, traits).context, 7);
  runtime::DecoderTraits stated = traits;
  stated.context = 2048;
  EXPECT_EQ(cli::with_context_bound({}, stated).context, 0);
}

// Neither the example model nor its configuration states a length.
TEST(GenerateCommand, WithoutAContextLengthMemoryIsTheLimit) {
  const int64_t bound = generate({}).at("context");
  EXPECT_GT(bound, 100);
  EXPECT_LT(bound, int64_t{1} << 40);
  EXPECT_EQ(generate({"--context", "512"}).at("context"), 512);
}

TEST(GenerateCommand, AnInterruptEndsItWithWhatThereIs) {
  const ProgramResult result = quern({"generate", artifact(), "-p", kPrompt, "-n", "100000", "--ignore-eos"},
                                     {.interrupt_after = std::chrono::milliseconds(1500)});
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_TRUE(result.out.starts_with(kPrompt)) << result.out;
  EXPECT_NE(result.err.find("ended by cancelled"), std::string::npos) << result.err;
}

TEST(BenchCommand, MeasuresAModel) {
  const auto object =
      quern_json({"bench", artifact(), "-p", "32", "-n", "8", "-r", "2", "-t", "1", "--profile"});
  EXPECT_EQ(object.at("threads"), 1);
  EXPECT_EQ(object.at("prefill").at("tokens"), 32);
  EXPECT_EQ(object.at("prefill").at("runs_seconds").size(), 2u);
  EXPECT_GT(object.at("decode").at("tokens_per_second"), 0);
  EXPECT_GT(object.at("decode").at("gbps"), 0);
  EXPECT_FALSE(object.at("profile").at("decode").empty());
  const ProgramResult text = quern({"bench", artifact(), "-p", "32", "-n", "8", "-r", "1"});
  EXPECT_NE(text.out.find("prefill"), std::string::npos) << text.out;
  expect_refused(quern({"bench"}), 2, {"missing MODEL", "--machine"});
  expect_refused(quern({"bench", artifact(), "-p", "0", "-n", "0"}), 2, {"nothing to measure"});
}

}  // namespace
}  // namespace quern::test
