#include "cli/loaded_model.h"

#include <chrono>

#include "cli/files.h"
#include "formats/artifact/writer.h"
#include "ir/error.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"

namespace quern::cli {
namespace {

std::optional<tokenizer::Tokenizer> tokenizer_beside(const std::filesystem::path& model) {
  const auto path = tokenizer_in(model.parent_path());
  if (!path) return {};
  return tokenizer::Tokenizer::from_file(*path);
}

void check_tokenizer(const LoadedModel& model) {
  const int64_t rows = model.program->traits().vocabulary;
  if (!model.tokenizer || rows == 0 || model.tokenizer->vocab_size() <= rows) return;
  throw_error(ErrorCode::InvalidModel, "the tokenizer has ", model.tokenizer->vocab_size(),
              " tokens, the model '", model.file.path.string(), "' has logits for ", rows,
              "; they do not belong together (--tokenizer FILE names another, --ids works without)");
}

}  // namespace

LoadedModel load_model(const std::filesystem::path& path, const std::optional<std::string>& tokenizer_path,
                       Console& console) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  model.file = open_model_file(path, console);
  if (model.file.format == "ONNX") {
    check_supported(model.file);
    passes::prepare_for_execution(*model.file.graph);
  }
  if (passes::is_decoder(*model.file.graph)) model.program = runtime::Program::compile(*model.file.graph);
  const auto own = model.file.attachments.find(artifact::kTokenizerJson);
  if (!tokenizer_path && own != model.file.attachments.end()) {
    model.tokenizer = tokenizer::Tokenizer::from_bytes(own->second);
  } else {
    model.tokenizer = tokenizer_path ? find_tokenizer(*tokenizer_path) : tokenizer_beside(model.file.path);
  }
  if (model.tokenizer) model.end_ids = model.tokenizer->eos_hints();
  model.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

LoadedModel load_decoder(const std::filesystem::path& path, const std::optional<std::string>& tokenizer_path,
                         Console& console, const char* command) {
  LoadedModel model = load_model(path, tokenizer_path, console);
  if (!model.is_decoder()) {
    throw_error(ErrorCode::Unsupported, "'", model.file.path.string(),
                "' is no decoder that quern recognises, and `", command,
                "` needs one; `quern inspect` says what stayed plain, `quern run` runs any graph");
  }
  check_tokenizer(model);
  return model;
}

void declare_session_options(OptionSet& options) {
  options.integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .integer("context", "N", {1, 1e9}, "the longest sequence, in tokens; default: what the model stands")
      .choice("cache", {"f32", "f16"}, "how keys and values are kept", "f32");
}

runtime::SessionOptions session_options(const Arguments& arguments) {
  return {.threads = static_cast<int>(arguments.integer("threads").value_or(0)),
          .cache_dtype = dtype_from_string(arguments.text_of("cache")),
          .context = arguments.integer("context").value_or(0)};
}

}  // namespace quern::cli
