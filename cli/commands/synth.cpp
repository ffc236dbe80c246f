// quern synth: models with random weights.
#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/format.h"
#include "cli/progress.h"
#include "passes/synth.h"

namespace quern::cli {
namespace {

using passes::DecoderShape;

// The sizes that a user can set one by one.
struct Size {
  const char* option;
  const char* help;
  int64_t DecoderShape::*member;
};
constexpr Size kSizes[] = {
    {"layers", "layers", &DecoderShape::layers},
    {"width", "width of the residual stream", &DecoderShape::width},
    {"mlp-width", "width of the gated MLP", &DecoderShape::mlp_width},
    {"heads", "attention heads", &DecoderShape::heads},
    {"kv-heads", "heads of keys and values", &DecoderShape::kv_heads},
    {"head-size", "features of a head", &DecoderShape::head_size},
    {"vocabulary", "tokens of the vocabulary", &DecoderShape::vocabulary},
    {"context", "the longest sequence", &DecoderShape::context},
};

void declare(OptionSet& options) {
  options
      .text("output,o", "FILE",
            "where to write: FILE.quern an artifact, FILE.onnx an ONNX model in fp32 with external data "
            "(required)")
      .section("Shape")
      .choice("shape", passes::shape_names(), "a known shape; the options below change it", "llama-135m");
  for (const Size& size : kSizes) options.integer(size.option, "N", {1, 1 << 20}, size.help);
  options.flag("tied", "the head is the embedding")
      .flag("untied", "the head has a weight of its own")
      .section("Weights of an artifact")
      .choice("weights", {"fp32", "fp16", "bf16", "int8", "int4"}, "number format", "int8")
      .flag("asymmetric", "with zero points")
      .choice("granularity", {"tensor", "channel", "group"},
              "which weights share a scale; default: channel for int8, group for int4")
      .choice("group-size", {"32", "64", "128"}, "weights of a group", "32")
      .integer("seed", "N", {0, 1e15}, "the same seed gives the same bytes", 0)
      .example("quern synth --shape llama-1.1b -o random.quern", "1.1 billion random 8-bit weights")
      .example(
          "quern synth --layers 4 --width 512 --mlp-width 1024 --heads 8 --kv-heads 2 --head-size 64 -o "
          "small.onnx",
          "a model to convert");
}

DecoderShape shape_of(const Arguments& arguments) {
  DecoderShape shape = passes::named_shape(arguments.text_of("shape"));
  for (const Size& size : kSizes)
    shape.*size.member = arguments.integer(size.option).value_or(shape.*size.member);
  if (arguments.flag("tied") && arguments.flag("untied")) {
    throw UsageError("--tied and --untied contradict one another");
  }
  if (arguments.flag("tied") || arguments.flag("untied")) shape.tied = arguments.flag("tied");
  return shape;
}

passes::WeightSettings settings_of(const Arguments& arguments) {
  passes::WeightSettings settings;
  settings.weights = arguments.text_of("weights");
  settings.symmetric = !arguments.flag("asymmetric");
  settings.granularity = arguments.text("granularity").value_or("auto");
  settings.group_size = parse_integer(arguments.text_of("group-size")).value();
  return settings;
}

ExitStatus run(const Arguments& arguments, Console& console) {
  const std::filesystem::path output = arguments.text("output").value_or("");
  if (output.extension() != ".quern" && output.extension() != ".onnx") {
    throw UsageError("--output FILE.quern or FILE.onnx is needed");
  }
  const auto start = std::chrono::steady_clock::now();
  passes::SynthOptions options{.shape = shape_of(arguments), .weights = settings_of(arguments)};
  options.seed = static_cast<uint64_t>(arguments.integer("seed").value_or(0));
  {
    Progress progress(console, "weights", options.shape.parameters(), "parameters");
    options.progress = [&](const std::string& name, double fraction) {
      progress.describe(name);
      progress.update(static_cast<int64_t>(fraction * static_cast<double>(options.shape.parameters())));
    };
    if (output.extension() == ".onnx") {
      passes::synthesize_onnx(options, output);
    } else {
      passes::synthesize_artifact(options, output);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (console.json()) {
    console.print_json({{"output", output.string()},
                        {"parameters", options.shape.parameters()},
                        {"size_bytes", std::filesystem::file_size(output)},
                        {"seconds", seconds}});
    return ExitStatus::Ok;
  }
  console.summary(concat("wrote ", one_line(output.string()), ": ",
                         format_number(static_cast<double>(options.shape.parameters()) / 1e6, 1),
                         " million random parameters, in ", format_number(seconds, 1), " s\n"));
  return ExitStatus::Ok;
}

}  // namespace

Command synth_command() {
  return {
      .name = "synth",
      .summary = "make a model with random weights, to measure speed and memory",
      .group = "Compile",
      .details =
          "A decoder of Llama's architecture: RMSNorm, rotary positions, grouped heads, gated MLP. It speaks "
          "nonsense, as fast as a trained model of the same shape.",
      .declare = declare,
      .run = run};
}

}  // namespace quern::cli
