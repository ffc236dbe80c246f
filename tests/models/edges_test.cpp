// What the users of a decoder may do that its exporter's example did not: batches of any size, prompts of one
// token, layers whose numbers have holes, an input that no operator reads.
#include "formats/file/mapped_file.h"
#include "tests/models/family_records.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

std::filesystem::path family(const std::string& name) {
  return source_path("tests/models/families") / name;
}

std::vector<float> all_logits(Session& session, Sequence& sequence, const std::vector<int64_t>& tokens) {
  const SequenceStep step{.sequence = &sequence, .tokens = tokens, .logits = LogitsFor::All};
  session.run({&step, 1});
  std::vector<float> all;
  for (int64_t i = 0; i < session.logit_rows(0); ++i)
    all.insert(all.end(), session.logits(0, i).begin(), session.logits(0, i).end());
  return all;
}

// The graph as it came, on `batch` rows of the recorded prompt, padded on the left by as many tokens as the
// row's number says, without a past.
void expect_batch(const Graph& graph, const json& record, int64_t batch) {
  const std::vector<int64_t> prompt = ints(record["prompt"]);
  const auto count = static_cast<int64_t>(prompt.size());
  const int64_t length = count + batch - 1;
  Tensor ids = Tensor::zeros(DType::I64, {batch, length});
  Tensor mask = Tensor::zeros(DType::I64, {batch, length});
  Tensor positions = Tensor::zeros(DType::I64, {batch, length});
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = b * length + b + i;
      ids.set_int(at, prompt[static_cast<size_t>(i)]);
      mask.set_int(at, 1);
      positions.set_int(at, i);
    }
    for (int64_t i = b + count; i < length; ++i) positions.set_int(b * length + i, count - 1);
  }
  runtime::NamedValues inputs;
  for (const Value* input : graph.inputs()) {
    const std::string& name = input->name();
    if (name == "input_ids") {
      inputs[name] = ids;
    } else if (name == "attention_mask") {
      inputs[name] = mask;
    } else if (name == "position_ids") {
      inputs[name] = positions;
    } else {
      inputs[name] = Tensor::zeros(input->dtype(),
                                   {batch, input->shape()[1].constant(), 0, input->shape()[3].constant()});
    }
  }
  const std::vector<float> got = runtime::Interpreter(graph).run(inputs).at("logits").dense().to_floats();
  const std::vector<float> wanted = floats(record["prefill"]);
  const size_t width = wanted.size() / prompt.size();
  for (int64_t b = 0; b < batch; ++b) {
    const auto first = static_cast<size_t>(b * length + b) * width;
    expect_near(std::span(got).subspan(first, wanted.size()), wanted, concat("row ", b, " of ", batch));
  }
}

TEST(Edges, PlainGraphsTakeBatchesOfOneToEight) {
  for (const char* name : {"llama", "gpt2", "gemma2", "bloom"}) {
    SCOPED_TRACE(name);
    const json record = record_of(family(name));
    const auto imported = onnx_format::import_model(family(name).string() + ".onnx");
    for (const int64_t batch : {1, 2, 3, 8}) expect_batch(*imported.graph, record, batch);
  }
}

// Eight sequences at once: the recorded prompt's first 1, 2, ... 8 tokens, of which the recorded logits are
// known.
TEST(Edges, EightPromptsOfOneTokenToEight) {
  for (const char* name : {"llama", "gpt2", "gemma2", "bloom", "mixtral"}) {
    SCOPED_TRACE(name);
    const json record = record_of(family(name));
    const auto [graph, notes] = prepare(family(name));
    ASSERT_TRUE(passes::is_decoder(*graph)) << notes;
    Session session(Program::compile(*graph), {.threads = 1});
    const std::vector<int64_t> prompt = ints(record["prompt"]);
    const std::vector<float> wanted = floats(record["prefill"]);
    const size_t width = wanted.size() / prompt.size();
    std::vector<Sequence> sequences;
    for (size_t i = 0; i < 8; ++i) sequences.push_back(session.new_sequence());
    std::vector<SequenceStep> steps;
    for (size_t i = 0; i < 8; ++i)
      steps.push_back({.sequence = &sequences[i], .tokens = std::span(prompt).first(i + 1)});
    session.run(steps);
    for (size_t i = 0; i < 8; ++i)
      expect_near(session.logits(i), std::span(wanted).subspan(i * width, width), concat(i + 1, " tokens"));
  }
}

// A model whose layers share keys leaves numbers out: names of the same length need no other bytes to change.
TEST(Edges, LayersMayHaveHoles) {
  const TempDir folder;
  const auto file = MappedFile::open(family("llama").string() + ".onnx");
  std::string bytes(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  for (const std::string before : {"past_key_values.1.", "present.1."}) {
    std::string after = before;
    after[after.size() - 2] = '7';
    int found = 0;
    for (size_t at = bytes.find(before); at != std::string::npos; at = bytes.find(before, at + 1), ++found)
      bytes.replace(at, before.size(), after);
    ASSERT_GT(found, 0) << before;
  }
  write_text(folder / "holes.onnx", bytes);
  const auto [graph, notes] = prepare(folder.path() / "holes");
  ASSERT_TRUE(passes::is_decoder(*graph)) << notes;
  Session session(Program::compile(*graph), {.threads = 1});
  expect_decoding(session, record_of(family("llama")));
}

// Also where the graph itself finds the positions, from the mask or from the length of the past.
TEST(Edges, APromptOfOneTokenIsTheBeginningOfALongerOne) {
  for (const char* name : {"gemma3", "falcon", "opt", "phi3_long"}) {
    SCOPED_TRACE(name);
    const json record = record_of(family(name));
    const auto [graph, notes] = prepare(family(name));
    ASSERT_TRUE(passes::is_decoder(*graph)) << notes;
    Session session(Program::compile(*graph), {.threads = 1});
    Sequence sequence = session.new_sequence();
    const std::vector<float> got = all_logits(session, sequence, {record["prompt"][0].get<int64_t>()});
    const std::vector<float> wanted = floats(record["prefill"]);
    expect_near(got, std::span(wanted).first(got.size()), "one token");
  }
}

}  // namespace
}  // namespace quern::test
