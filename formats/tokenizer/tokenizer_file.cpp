#include "formats/tokenizer/tokenizer_file.h"

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ir/error.h"

namespace quern::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMagic = "quern-tokenizer 1 ";

std::string_view name_of(FileForm form) {
  switch (form) {
    case FileForm::Json:
      return "json";
    case FileForm::SentencePiece:
      return "sentencepiece";
    case FileForm::Tiktoken:
      return "tiktoken";
    case FileForm::Llama2c:
      return "llama2c";
  }
  return {};
}

std::string_view take_line(std::string_view& bytes) {
  const size_t end = bytes.find('\n');
  if (end == std::string_view::npos)
    throw_error(ErrorCode::Corrupt, "the stored tokenizer ends within its header");
  const std::string_view line = bytes.substr(0, end);
  bytes.remove_prefix(end + 1);
  return line;
}

Json options_to_json(const TiktokenOptions& options) {
  Json json = {{"add_bos", options.special.add_bos}, {"add_eos", options.special.add_eos}};
  if (!options.pattern.empty()) json["pattern"] = options.pattern;
  for (const AddedToken& token : options.special_tokens) {
    json["special_tokens"].push_back({{"id", token.id}, {"content", token.content}});
  }
  return json;
}

AddedToken special_token(std::string content, int64_t id) {
  AddedToken token;
  token.id = id;
  token.content = std::move(content);
  token.normalized = false;
  token.special = true;
  return token;
}

TiktokenOptions options_from_json(std::string_view line) {
  TiktokenOptions options;
  try {
    const Json json = Json::parse(line);
    options.special.add_bos = json.at("add_bos").get<bool>();
    options.special.add_eos = json.at("add_eos").get<bool>();
    options.pattern = json.value("pattern", "");
    for (const Json& token : json.value("special_tokens", Json::array())) {
      options.special_tokens.push_back(
          special_token(token.at("content").get<std::string>(), token.at("id").get<int64_t>()));
    }
  } catch (const Json::exception& error) {
    throw_error(ErrorCode::Corrupt, "the stored tokenizer's header is damaged: ", error.what());
  }
  return options;
}

TokenizerFile unpack(std::string_view bytes) {
  bytes.remove_prefix(kMagic.size());
  const std::string_view name = take_line(bytes);
  TokenizerFile file;
  file.options = options_from_json(take_line(bytes));
  file.content = bytes;
  for (const FileForm form : {FileForm::SentencePiece, FileForm::Tiktoken, FileForm::Llama2c}) {
    file.form = form;
    if (name == name_of(form)) return file;
  }
  throw_error(ErrorCode::Corrupt, "the stored tokenizer is of the unknown form '", name, "'");
}

bool looks_like_json(std::string_view bytes) {
  const size_t at = bytes.find_first_not_of(" \t\r\n");
  return at != std::string_view::npos && (bytes[at] == '{' || bytes[at] == '[');
}

// Base64, a space, a number.
bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min<size_t>(bytes.find('\n'), 4096));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 &&
         line.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
             space &&
         line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos &&
         space + 1 < line.size();
}

// Whether the lengths of tokens lead to the end of the file exactly.
bool looks_like_llama2c(std::string_view bytes) {
  const auto number_at = [&](size_t at) {
    int32_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  if (bytes.size() < 12 || number_at(0) <= 0 || number_at(0) > 65536) return false;
  size_t at = 4;
  while (at < bytes.size()) {
    if (bytes.size() - at < 8) return false;
    const int32_t length = number_at(at + 4);
    if (length < 0 || length > number_at(0) || static_cast<size_t>(length) > bytes.size() - at - 8)
      return false;
    at += 8 + static_cast<size_t>(length);
  }
  return true;
}

}  // namespace

TokenizerFile unpack_tokenizer(std::string_view bytes) {
  if (bytes.starts_with(kMagic)) return unpack(bytes);
  TokenizerFile file;
  file.content = bytes;
  if (looks_like_json(bytes)) {
    file.form = FileForm::Json;
  } else if (looks_like_tiktoken(bytes)) {
    file.form = FileForm::Tiktoken;
  } else if (looks_like_llama2c(bytes)) {
    file.form = FileForm::Llama2c;
    file.options.special.add_bos = true;
  } else if (bytes.starts_with('\n')) {  // the first piece of the message
    file.form = FileForm::SentencePiece;
  } else {
    throw_error(ErrorCode::Corrupt,
                "not a tokenizer that quern knows: neither a tokenizer.json, nor a SentencePiece model, nor "
                "a tiktoken "
                "file, nor llama2.c's tokenizer.bin");
  }
  return file;
}

std::string pack_tokenizer(const TokenizerFile& file) {
  if (file.form == FileForm::Json) return std::string(file.content);
  std::string packed(kMagic);
  packed.append(name_of(file.form)).append("\n");
  packed.append(options_to_json(file.options).dump()).append("\n");
  return packed.append(file.content);
}

void read_config_beside(const std::filesystem::path& path, TokenizerFile& file) {
  if (file.form == FileForm::Json) return;
  const std::filesystem::path config = path.parent_path() / "tokenizer_config.json";
  std::ifstream in(config);
  if (!in) return;
  try {
    const Json json = Json::parse(in);
    file.options.special.add_bos = json.value("add_bos_token", file.options.special.add_bos);
    file.options.special.add_eos = json.value("add_eos_token", file.options.special.add_eos);
    if (file.form != FileForm::Tiktoken || !json.contains("added_tokens_decoder")) return;
    for (const auto& [id, token] : json["added_tokens_decoder"].items()) {
      file.options.special_tokens.push_back(
          special_token(token.at("content").get<std::string>(), std::stoll(id)));
    }
  } catch (const std::exception& error) {
    throw_error(ErrorCode::InvalidModel, "'", config.string(), "': ", error.what());
  }
}

std::shared_ptr<const Pipeline> load_tokenizer(const TokenizerFile& file) {
  std::shared_ptr<Pipeline> pipeline;
  switch (file.form) {
    case FileForm::Json:
      pipeline = load_tokenizer_json(file.content);
      break;
    case FileForm::SentencePiece:
      pipeline = load_sentencepiece(file.content, file.options.special);
      break;
    case FileForm::Tiktoken:
      pipeline = load_tiktoken(file.content, file.options);
      break;
    case FileForm::Llama2c:
      pipeline = load_llama2c(file.content, file.options.special);
      break;
  }
  pipeline->source = pack_tokenizer(file);
  return pipeline;
}

}  // namespace quern::tokenizer
