// A model that is ready to be run by the commands.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/model_file.h"
#include "cli/options.h"
#include "formats/tokenizer/tokenizer.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"

namespace quern::cli {

struct LoadedModel {
  ModelFile file;                                   // its graph in canonical form, where it is a decoder
  std::shared_ptr<const runtime::Program> program;  // null: a plain graph
  std::optional<tokenizer::Tokenizer> tokenizer;    // null: ids alone
  std::vector<int64_t> end_ids;                     // tokens that end a text
  double seconds = 0;                               // it took to load

  bool is_decoder() const { return program != nullptr; }
};

// Opens, recognises and compiles. The tokenizer is the one given by --tokenizer, else the artifact's own,
// else the one beside the model. Throws Error.
LoadedModel load_model(const std::filesystem::path& path, const std::optional<std::string>& tokenizer_path,
                       Console& console);
// The same; Error{Unsupported} where it is no decoder, saying what `command` needs one for; Error{BadData}
// for a tokenizer with more tokens than the model.
LoadedModel load_decoder(const std::filesystem::path& path, const std::optional<std::string>& tokenizer_path,
                         Console& console, const char* command);

// --threads, --context, --kv: declared here, so that they are the same everywhere.
void declare_session_options(OptionSet& options);
runtime::SessionOptions session_options(const Arguments& arguments);
// --kv alone; empty where it was not given.
std::optional<DType> cache_dtype(const Arguments& arguments);

}  // namespace quern::cli
