#include "cli/loaded_model.h"

#include <chrono>

#include "cli/files.h"
#include "ir/error.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/compile.h"
#include "passes/quantize/kv_cache.h"
#include "runtime/speculate/medusa_heads.h"

namespace quern::cli {

LoadedModel load_model(const std::filesystem::path& path, const std::optional<std::string>& tokenizer_path,
                       Console& console) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel model;
  // All of it will be read anyway, and a damaged weight is nothing that can be heard from the text.
  model.file = open_model_file(path, console, true);
  read_folder(model.file, tokenizer_path);
  if (!model.file.is_artifact()) {
    check_supported(model.file);
    with_context("compiling '" + model.file.path.string() + "'",
                 [&] { passes::prepare_for_execution(*model.file.graph); });
    for (const std::string& warning : apply_folder(model.file)) console.warn(one_line(warning));
  }
  if (passes::is_decoder(*model.file.graph)) {
    const Graph& graph = *model.file.graph;
    model.program = runtime::Program::compile(graph, runtime::count_medusa_heads(graph) > 0
                                                         ? runtime::medusa_program(graph)
                                                         : runtime::ProgramOptions());
  }
  if (const auto& found = model.file.folder.tokenizer) model.tokenizer = found->tokenizer;
  model.end_ids = model.file.folder.generation.eos_ids;
  if (model.end_ids.empty() && model.tokenizer) model.end_ids = model.tokenizer->eos_hints();
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
  passes::check_tokenizer(model.file.folder, *model.file.graph);
  return model;
}

void declare_session_options(OptionSet& options) {
  options.integer("threads,t", "N", {1, 1024}, "processor threads; default: one for each physical core")
      .integer("context", "N", {1, 1e9}, "the longest sequence, in tokens; default: what the model stands")
      .choice("kv", passes::KvCachePass::choices(),
              "how keys and values are kept; default: as converted, else fp32");
}

std::optional<DType> cache_dtype(const Arguments& arguments) {
  const std::optional<std::string> name = arguments.text("kv");
  if (!name) return {};
  return passes::KvCachePass::dtype_of(*name);
}

runtime::SessionOptions session_options(const Arguments& arguments) {
  return {.threads = static_cast<int>(arguments.integer("threads").value_or(0)),
          .cache_dtype = cache_dtype(arguments),
          .context = arguments.integer("context").value_or(0)};
}

}  // namespace quern::cli
