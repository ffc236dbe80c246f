// Telling the forms of tokenizer files apart.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "formats/tokenizer/pipeline.h"

namespace quern::tokenizer {

enum class FileForm { Json, SentencePiece, Tiktoken, Llama2c };

// What from_bytes() needs to know: the file's content, and options for the forms that want any.
struct TokenizerFile {
  FileForm form = FileForm::Json;
  std::string_view content;
  TiktokenOptions options;  // of the others, `special` alone
};

// Reads both raw content and what pack_tokenizer() made of it. Throws Error{Corrupt} for neither.
TokenizerFile unpack_tokenizer(std::string_view bytes);
// The content alone for a tokenizer.json; for others behind a line that names the form, and one with the
// options.
std::string pack_tokenizer(const TokenizerFile& file);

// Takes what a tokenizer_config.json beside the file says.
void read_config_beside(const std::filesystem::path& path, TokenizerFile& file);

std::shared_ptr<const Pipeline> load_tokenizer(const TokenizerFile& file);

}  // namespace quern::tokenizer
