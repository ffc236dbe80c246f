#include "cli/calibration_options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/files.h"
#include "cli/target_size.h"
#include "ir/decoder_mark.h"
#include "passes/quantize/needs_data.h"

namespace quern::cli {

void declare_calibration_options(OptionSet& options) {
  options.section("Calibration")
      .text("calibration", "TABLE.json",
            "what quern calibrate observed of the model, for lsq, smooth and awq")
      .text(
          "calibration-data", "FILE",
          "data to see activations of, unlike the data to validate with: text, or .jsonl with {\"text\": "
          "...} "
          "or {\"ids\": [...]} a line; for graphs that take no token ids .npz or .npy arrays, or a folder of "
          "test_data_set_0/input_0.pb ...")
      .integer("calibration-samples", "N", {1, 1e9}, "windows (or rows of arrays) drawn from it", 128)
      .integer("calibration-context", "N", {1, 1e9}, "tokens of a window", 256)
      .integer("calibration-seed", "N", {0, 1e18}, "of the draw", 0)
      .number("damping", "SHARE", {0, 1e6},
              "gptq: added to the diagonal of the second moments, as a share of its mean", "0.01")
      .number("propagate", "SHARE", {0, 1},
              "gptq: how far a weight makes up for the quantization of what is before it", "0.5");
}

namespace {

bool has_method(const Arguments& arguments, std::initializer_list<std::string_view> methods) {
  std::vector<std::string> places = arguments.list("override");
  places.push_back(arguments.text_of("method"));
  return std::any_of(places.begin(), places.end(), [&](const std::string& place) {
    return std::any_of(methods.begin(), methods.end(),
                       [&](std::string_view method) { return place.find(method) != std::string::npos; });
  });
}

bool clips_by_error(const Arguments& arguments) {
  const std::vector<std::string> overrides = arguments.list("override");
  return arguments.text_of("clip") == "error" ||
         std::any_of(overrides.begin(), overrides.end(),
                     [](const std::string& text) { return text.find("clip:error") != std::string::npos; });
}

}  // namespace

void refuse_idle_calibration(const Arguments& arguments) {
  for (const char* option : {"calibration-samples", "calibration-context", "calibration-seed"}) {
    if (arguments.given(option) && !arguments.given("calibration-data"))
      throw UsageError(concat("--", option, " is for --calibration-data FILE"));
  }
  for (const char* option : {"damping", "propagate"}) {
    if (arguments.given(option) && !has_method(arguments, {"gptq"}))
      throw UsageError(concat("--", option, " is for --method gptq"));
  }
  if (has_target(arguments) || has_method(arguments, {"lsq", "smooth", "awq", "gptq"}) ||
      clips_by_error(arguments) || arguments.text_of("activations") == "static") {
    return;
  }
  for (const char* option : {"calibration", "calibration-data"}) {
    if (!arguments.given(option)) continue;
    throw UsageError(
        concat("--", option, " changes nothing with --method ", arguments.text_of("method"),
               ": it is for lsq, smooth, awq and gptq, for --clip error and for --activations static"));
  }
}

calibrate::Samples load_samples(const std::string& path, const calibrate::SampleOptions& options,
                                const Graph& graph, const tokenizer::Tokenizer* tokenizer) {
  if (!calibrate::is_tensor_file(path))
    return calibrate::draw_samples(calibrate::TokenData::load(path, {.tokenizer = tokenizer}), options);
  if (has_decoder_mark(graph))
    throw_error(ErrorCode::BadData, "a decoder is shown token ids: '", path,
                "' holds arrays; give text, or .jsonl rows");
  return calibrate::draw_samples(
      std::make_shared<const calibrate::TensorData>(calibrate::TensorData::load(path, graph.inputs(), {})),
      options);
}

void require_calibration(const Arguments& arguments) {
  const bool has_data = arguments.given("calibration-data");
  if (has_method(arguments, {"gptq"}) && !has_data) {
    throw UsageError(passes::kGptqNeedsData);
  }
  if (clips_by_error(arguments) && !has_data) throw UsageError(passes::kClipErrorNeedsData);
  if (has_data || arguments.given("calibration")) return;
  if (has_method(arguments, {"smooth", "awq"})) {
    throw UsageError(passes::kBalanceNeedsData);
  }
  if (arguments.text_of("activations") == "static") {
    throw UsageError(passes::kStaticNeedsData);
  }
}

std::optional<calibrate::Samples> calibration_samples(const Arguments& arguments, const Graph& graph,
                                                      const tokenizer::Tokenizer* tokenizer) {
  const std::optional<std::string> path = arguments.text("calibration-data");
  if (!path) return {};
  return load_samples(*path,
                      {.samples = arguments.integer_of("calibration-samples"),
                       .context = arguments.integer_of("calibration-context"),
                       .seed = arguments.integer_of("calibration-seed")},
                      graph, tokenizer);
}

std::optional<calibrate::CalibrationTable> calibration_table(const Arguments& arguments,
                                                             const ModelFile& model) {
  const std::optional<std::string> path = arguments.text("calibration");
  if (!path) return {};
  calibrate::CalibrationTable table = calibrate::CalibrationTable::parse(read_input(*path), *path);
  with_context(concat("'", *path, "'"),
               [&] { table.check_model(digest_of(model), "'" + model.path.string() + "'"); });
  if (!table.is_complete()) {
    throw_error(ErrorCode::InvalidArgument, "'", *path,
                "' has not seen all windows: join the shards with quern "
                "calibrate merge, or let the interrupted run end");
  }
  return table;
}

nlohmann::json calibration_record(const Arguments& arguments) {
  nlohmann::json record = nlohmann::json::object();
  if (const auto path = arguments.text("calibration")) {
    record["data"] = calibrate::CalibrationTable::parse(read_input(*path), *path).data_digest;
  }
  if (const auto path = arguments.text("calibration-data")) {
    record["data"] = calibrate::digest_of_data(*path);
    record["samples"] = arguments.integer_of("calibration-samples");
    record["context"] = arguments.integer_of("calibration-context");
    record["seed"] = arguments.integer_of("calibration-seed");
    record["damping"] = arguments.number_of("damping");
    record["propagate"] = arguments.number_of("propagate");
  }
  return record;
}

}  // namespace quern::cli
