#include "passes/synth.h"

#include <gtest/gtest.h>

#include <cmath>

#include "formats/artifact/artifact.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/weights/weight_sites.h"
#include "runtime/decoder/session.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using namespace quern::passes;

DecoderShape small_shape() {
  return {.layers = 3,
          .width = 64,
          .mlp_width = 96,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 16,
          .vocabulary = 60};
}

TEST(Synth, ShapesHaveTheRightNumberOfParameters) {
  EXPECT_EQ(named_shape("llama-1.1b").parameters(), 1'100'048'384);  // TinyLlama's own figure
  EXPECT_EQ(named_shape("llama-135m").parameters(), 134'515'008);    // SmolLM-135M's
  EXPECT_QUERN_ERROR(named_shape("llama-1.1"), ErrorCode::InvalidArgument, "did you mean 'llama-1.1b'",
                     "llama-135m");
}

TEST(Synth, RefusesShapesThatMakeNoSense) {
  TempDir folder;
  const auto make = [&](DecoderShape shape) { synthesize_artifact({.shape = shape}, folder / "m.quern"); };
  DecoderShape shape = small_shape();
  shape.kv_heads = 3;
  EXPECT_QUERN_ERROR(make(shape), ErrorCode::InvalidArgument, "4 heads", "3 KV heads");
  shape = small_shape();
  shape.head_size = 15;
  EXPECT_QUERN_ERROR(make(shape), ErrorCode::InvalidArgument, "even head size");
  shape.head_size = 0;
  EXPECT_QUERN_ERROR(make(shape), ErrorCode::InvalidArgument, "head size");
  EXPECT_TRUE(folder.names().empty());
}

TEST(Synth, MakesDecodersOfEveryFormatThatDecode) {
  TempDir folder;
  for (const bool tied : {false, true}) {
    for (const char* format : {"fp32", "fp16", "bf16", "int8", "int4"}) {
      for (const bool symmetric : {true, false}) {
        SCOPED_TRACE(concat(format, tied ? " tied" : "", symmetric ? "" : " asymmetric"));
        SynthOptions options{.shape = small_shape()};
        options.shape.tied = tied;
        options.weights.weights = format;
        options.weights.symmetric = symmetric;
        synthesize_artifact(options, folder / "m.quern");
        const artifact::Artifact artifact = artifact::Artifact::open(folder / "m.quern", {.verify = true});
        ASSERT_TRUE(is_decoder(artifact.graph()));
        runtime::Session session(runtime::Program::compile(artifact.graph()));
        runtime::Sequence sequence = session.new_sequence();
        double squares = 0;
        for (const float logit : session.run(sequence, std::vector<int64_t>{1, 2, 59, 4})) {
          squares += static_cast<double>(logit) * static_cast<double>(logit);
        }
        // A normed state times weights of variance 1/K.
        EXPECT_GT(squares / 60, 0.2);
        EXPECT_LT(squares / 60, 5.0);
      }
    }
  }
}

TEST(Synth, TheSameSeedGivesTheSameBytes) {
  TempDir folder;
  SynthOptions options{.shape = small_shape()};
  synthesize_artifact(options, folder / "a.quern");
  synthesize_artifact(options, folder / "b.quern");
  options.seed = 1;
  synthesize_artifact(options, folder / "c.quern");
  EXPECT_EQ(read_text(folder / "a.quern"), read_text(folder / "b.quern"));
  EXPECT_NE(read_text(folder / "a.quern"), read_text(folder / "c.quern"));
}

}  // namespace
}  // namespace quern::test
