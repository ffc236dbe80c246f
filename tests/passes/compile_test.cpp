// Converting whole models: from an ONNX file to an artifact.
#include "passes/compile.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "formats/artifact/artifact.h"
#include "formats/onnx/import.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/synth.h"
#include "passes/weights/materialize.h"
#include "runtime/decoder/session.h"
#include "runtime/interpreter.h"
#include "tests/passes/random_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using namespace quern::passes;
using nlohmann::json;

DecoderShape small_shape(bool tied = true) {
  return {.layers = 2,
          .width = 48,
          .mlp_width = 80,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 12,
          .vocabulary = 100,
          .tied = tied,
          .context = 64};
}

std::vector<WeightResult> convert(const std::filesystem::path& source, const std::filesystem::path& target,
                                  const json& weights) {
  const onnx_format::ImportedModel model = onnx_format::import_model(source);
  const Recipe recipe = conversion_recipe(weights);
  PassContext context;
  run_recipe(recipe, *model.graph, context);
  return write_artifact(*model.graph, recipe, {.sources = model.files}, target);
}

std::vector<float> logits_of(const Graph& graph, const std::vector<int64_t>& tokens) {
  runtime::Session session(runtime::Program::compile(graph));
  runtime::Sequence sequence = session.new_sequence();
  const std::span<const float> logits = session.run(sequence, tokens);
  return {logits.begin(), logits.end()};
}

class CompileTest : public testing::Test {
 protected:
  std::filesystem::path make_onnx(const DecoderShape& shape, const std::string& name = "model.onnx") {
    synthesize_onnx({.shape = shape}, folder_ / name);
    return folder_ / name;
  }
  TempDir folder_;
};

TEST_F(CompileTest, AConvertedModelComputesWhatTheOnnxFileDid) {
  const auto source = make_onnx(small_shape());
  convert(source, folder_ / "model.quern", {{"weights", "fp32"}});
  const artifact::Artifact artifact = artifact::Artifact::open(folder_ / "model.quern");
  ASSERT_TRUE(is_decoder(artifact.graph()));
  const std::vector<int64_t> tokens = {5, 17, 99, 0, 3};
  const std::vector<float> given = logits_of(artifact.graph(), tokens);

  const onnx_format::ImportedModel model = onnx_format::import_model(source);
  const runtime::NamedValues wanted =
      runtime::Interpreter(*model.graph)
          .run({{"input_ids", Tensor::from<int64_t>({1, 5}, std::span<const int64_t>(tokens))}});
  const Tensor all = wanted.at("logits").dense();
  ASSERT_EQ(all.shape(), (Shape{1, 5, 100}));
  double largest = 0;
  for (size_t i = 0; i < given.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(given[i])));
  EXPECT_GT(largest, 0.1);
  for (size_t i = 0; i < given.size(); ++i) {
    EXPECT_NEAR(given[i], all.at(400 + static_cast<int64_t>(i)), 1e-4 * largest) << i;
  }
}

TEST_F(CompileTest, ATiedHeadIsStoredOnceWhereTheExporterStoredItTwice) {
  const auto source = make_onnx(small_shape());
  const std::vector<WeightResult> weights = convert(source, folder_ / "model.quern", {{"weights", "int8"}});
  EXPECT_EQ(weights.size(), 1u + 2 * 7);
  const artifact::Artifact artifact = artifact::Artifact::open(folder_ / "model.quern");
  const Value* table = artifact.graph().find_value("model.embed_tokens.weight");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->uses().size(), 2u);
  EXPECT_EQ(artifact.graph().find_value("lm_head.weight"), nullptr);
}

TEST_F(CompileTest, TheSameInputGivesTheSameBytes) {
  const auto source = make_onnx(small_shape());
  for (const json& weights : {json{{"weights", "int8"}}, json{{"weights", "int4"}, {"symmetric", false}}}) {
    convert(source, folder_ / "a.quern", weights);
    convert(source, folder_ / "b.quern", weights);
    EXPECT_EQ(read_text(folder_ / "a.quern"), read_text(folder_ / "b.quern"));
  }
}

TEST_F(CompileTest, TheArtifactSaysWhatItWasMadeOf) {
  const auto source = make_onnx(small_shape());
  const std::vector<WeightResult> weights = convert(source, folder_ / "model.quern", {{"weights", "int4"}});
  const artifact::Artifact artifact = artifact::Artifact::open(folder_ / "model.quern", {.verify = true});
  ASSERT_EQ(artifact.sources().size(), 2u);
  EXPECT_EQ(artifact.sources()[0], artifact::describe_source(source));
  EXPECT_EQ(artifact.sources()[1].name, "model.onnx.data");
  const Recipe recipe = parse_recipe(std::string(artifact.attachment(artifact::kRecipe).value()));
  EXPECT_EQ(recipe, with_all_options(conversion_recipe({{"weights", "int4"}})));
  for (const WeightResult& weight : weights) {
    const Value* value = artifact.graph().find_value(weight.name);
    ASSERT_NE(value, nullptr) << weight.name;
    EXPECT_EQ(byte_size(*value->constant()), weight.bytes);
    EXPECT_EQ(weight.format, "int4 symmetric per group of 32");
    EXPECT_GT(weight.error.sqnr_db(), 18);
  }
}

TEST_F(CompileTest, WritingOneByOneGivesWhatComputingAllAtOnceDoes) {
  const auto source = make_onnx(small_shape(false));
  convert(source, folder_ / "model.quern", {{"weights", "int8"}});
  const artifact::Artifact artifact = artifact::Artifact::open(folder_ / "model.quern");
  const onnx_format::ImportedModel model = onnx_format::import_model(source);
  PassContext context;
  run_recipe(conversion_recipe({{"weights", "int8"}}), *model.graph, context);
  PassRegistry::instance().create("materialize-weights")->run(*model.graph, context);
  PassRegistry::instance().create("dead-code")->run(*model.graph, context);
  const std::vector<int64_t> tokens = {1, 2, 3};
  EXPECT_EQ(logits_of(*model.graph, tokens), logits_of(artifact.graph(), tokens));
}

TEST_F(CompileTest, AFailureLeavesNoFile) {
  const auto source = make_onnx(small_shape());
  const onnx_format::ImportedModel model = onnx_format::import_model(source);
  const Recipe recipe = conversion_recipe({{"weights", "int8"}});
  PassContext context;
  run_recipe(recipe, *model.graph, context);
  const auto cancel = [](const std::string&, size_t done, size_t) {
    if (done == 3) throw_error(ErrorCode::InvalidArgument, "cancelled");
  };
  EXPECT_QUERN_ERROR(
      write_artifact(*model.graph, recipe, {.sources = model.files}, folder_ / "model.quern", cancel),
      ErrorCode::InvalidArgument, "cancelled");
  EXPECT_EQ(folder_.names().size(), 2u);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Each thread has a stack, so that the memory needed depends on their number.
void use_two_processors() {
  cpu_set_t all;
  cpu_set_t two;
  CPU_ZERO(&two);
  ::sched_getaffinity(0, sizeof(all), &all);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++i) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &two);
  }
  ::sched_setaffinity(0, sizeof(two), &two);
}

// Runs body in a process that may have `bytes` of heap, stacks and other memory of its own; files that are
// mapped for reading don't count. Its exit status: 0, or 1 if it threw, 2 for a lack of memory, 4 for a
// foreign exception.
template <class Body>
int run_with_memory(rlim_t bytes, const Body& body) {
  ::malloc_trim(0);  // what earlier tests have freed would count as the child's
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit = {bytes, bytes};
    int status = ::setrlimit(RLIMIT_DATA, &limit) == 0 ? 0 : 3;
    use_two_processors();
    try {
      if (status == 0) body();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      status = error.code() == ErrorCode::OutOfMemory ? 2 : 1;
    } catch (const std::bad_alloc&) {
      status = 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "not translated: %s\n", error.what());
      status = 4;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(CompileTest, ConvertsAModelSeveralTimesLargerThanTheMemory) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer needs memory of its own";
  // As the program does, and here already, lest the child inherit a heap of what making the model has freed.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  constexpr rlim_t kMemory = rlim_t{96} << 20;
  // 302 MB, in two files. The largest weights, 8 MB each, are those of the MLPs, the table and the transposed
  // copy of it; three threads and the program itself take most of the rest.
  const DecoderShape shape = {.layers = 8,
                              .width = 1024,
                              .mlp_width = 2048,
                              .heads = 16,
                              .kv_heads = 4,
                              .head_size = 64,
                              .vocabulary = 2048,
                              .tied = true};
  const auto source = make_onnx(shape);
  ASSERT_GT(std::filesystem::file_size(folder_ / "model.onnx.data"), 3 * kMemory);
  // The limit is one: the model doesn't fit.
  EXPECT_EQ(run_with_memory(kMemory, [&] { std::vector<char>(kMemory + kMemory / 4); }), 2);
  for (const char* weights : {"int4", "bf16"}) {
    EXPECT_EQ(run_with_memory(kMemory,
                              [&] {
                                convert(source, folder_ / "model.quern", {{"weights", weights}});
                              }),
              0);
    const artifact::Artifact artifact = artifact::Artifact::open(folder_ / "model.quern", {.verify = true});
    EXPECT_TRUE(is_decoder(artifact.graph()));
    EXPECT_EQ(artifact.graph().find_value("lm_head.weight"), nullptr);
  }
}

}  // namespace
}  // namespace quern::test
