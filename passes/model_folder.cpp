#include "passes/model_folder.h"

#include <algorithm>
#include <charconv>

#include "formats/artifact/contradictions.h"
#include "formats/artifact/writer.h"
#include "ir/error.h"
#include "ir/rewriter.h"
#include "ir/schema.h"
#include "passes/canonicalize/to_decoder.h"

namespace quern::passes {
namespace {

using std::filesystem::path;

bool is_file(const path& file) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(file, ignored);
}

std::vector<path> folders_of(const path& model) {
  const path folder = model.has_parent_path() ? model.parent_path() : path(".");
  std::vector<path> folders = {folder};
  if (folder.filename() == "onnx") folders.push_back(folder / "..");
  return folders;
}

std::optional<path> find_in(const std::vector<path>& folders, const std::vector<std::string>& names) {
  for (const path& folder : folders) {
    for (const std::string& name : names) {
      if (is_file(folder / name)) return folder / name;
    }
  }
  return std::nullopt;
}

// By the names that models come with; else the one tiktoken file.
std::optional<path> tokenizer_file_in(const std::vector<path>& folders) {
  if (auto usual = find_in(folders, {"tokenizer.json", "tokenizer.model", "spiece.model",
                                     "sentencepiece.bpe.model", "tokenizer.bin"})) {
    return usual;
  }
  std::vector<path> found;
  for (const path& folder : folders) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".tiktoken") found.push_back(entry.path());
    }
  }
  return found.size() == 1 ? std::optional(found.front()) : std::nullopt;
}

FoundTokenizer read_tokenizer(const path& file) {
  return {tokenizer::Tokenizer::from_file(file), file.string()};
}

std::optional<FoundTokenizer> tokenizer_in(const artifact::Artifact& artifact) {
  for (const char* name : {artifact::kTokenizerJson, artifact::kTokenizerModel}) {
    if (const auto bytes = artifact.attachment(name)) {
      return FoundTokenizer{tokenizer::Tokenizer::from_bytes(*bytes), std::string(name) + " in the artifact"};
    }
  }
  return std::nullopt;
}

// What the first folder says wins.
chat_template::ChatFiles find_chat(const std::vector<path>& folders) {
  chat_template::ChatFiles chat;
  for (const path& folder : folders) {
    const chat_template::ChatFiles more = chat_template::read_chat_files(folder);
    chat.templates.insert(more.templates.begin(), more.templates.end());
    chat.special_tokens.insert(more.special_tokens.begin(), more.special_tokens.end());
  }
  return chat;
}

// "chat_template.jinja" is the one called "default", "chat_template.NAME.jinja" another.
const std::string kTemplatePrefix = "chat_template.";
const std::string kTemplateSuffix = ".jinja";

std::string template_attachment(const std::string& name) {
  return name == "default" ? artifact::kChatTemplate : kTemplatePrefix + name + kTemplateSuffix;
}

std::optional<std::string> template_name(const std::string& attachment) {
  if (attachment == artifact::kChatTemplate) return "default";
  const size_t around = kTemplatePrefix.size() + kTemplateSuffix.size();
  if (attachment.size() <= around || !attachment.starts_with(kTemplatePrefix) ||
      !attachment.ends_with(kTemplateSuffix)) {
    return std::nullopt;
  }
  return attachment.substr(kTemplatePrefix.size(), attachment.size() - around);
}

chat_template::ChatFiles chat_in(const artifact::Artifact& artifact) {
  chat_template::ChatFiles chat;
  for (const std::string& attachment : artifact.attachment_names()) {
    if (const auto name = template_name(attachment)) chat.templates[*name] = *artifact.attachment(attachment);
  }
  if (const auto tokens = artifact.attachment(chat_template::kSpecialTokensAttachment)) {
    chat.special_tokens = chat_template::parse_special_tokens(*tokens);
  }
  return chat;
}

artifact::GenerationConfig find_config(const std::vector<path>& folders) {
  artifact::GenerationConfig config;
  for (const path& each : folders) {
    config = artifact::read_generation_config(each);
    if (!config.empty()) break;
  }
  return config;
}

// The rows of the largest table that token ids are looked up in; 0 where there is none.
int64_t vocabulary_of(const Graph& graph) {
  int64_t rows = 0;
  for (const Node* node : graph.nodes()) {
    if (!node->is("Embedding", kQuernDomain) || node->input(1) == nullptr) continue;
    const bool looks_up_ids =
        node->input(1)->producer() == nullptr && node->input(1)->name().find("ids") != std::string::npos;
    if (!looks_up_ids || !node->input(0)->has_shape()) continue;
    rows = std::max(rows, node->input(0)->shape()[0].as_constant().value_or(0));
  }
  return rows;
}

// Nothing where it is absent or no number.
std::optional<int64_t> stated_context(const Graph& graph) {
  const auto found = graph.metadata().find("context_length");
  if (found == graph.metadata().end()) return std::nullopt;
  int64_t context = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), context);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(context) : std::nullopt;
}

}  // namespace

std::map<std::string, std::string> ModelFolder::attachments() const {
  std::map<std::string, std::string> result;
  if (tokenizer) {
    const std::string& bytes = tokenizer->tokenizer.to_bytes();
    result[bytes.starts_with('{') ? artifact::kTokenizerJson : artifact::kTokenizerModel] = bytes;
  }
  for (const auto& [name, source] : chat.templates) result[template_attachment(name)] = source;
  if (!chat.templates.empty() && !chat.special_tokens.empty()) {
    result[chat_template::kSpecialTokensAttachment] =
        chat_template::special_tokens_to_json(chat.special_tokens);
  }
  if (!generation.empty()) result[artifact::kGeneration] = generation.to_json();
  return result;
}

ModelFolder read_model_folder(const path& model, const std::optional<path>& tokenizer) {
  const std::vector<path> folders = folders_of(model);
  ModelFolder result;
  if (tokenizer) {
    result.tokenizer = find_tokenizer(*tokenizer);
  } else if (const auto file = tokenizer_file_in(folders)) {
    result.tokenizer = read_tokenizer(*file);
  }
  result.chat = find_chat(folders);
  result.generation = find_config(folders);
  if (result.tokenizer) {
    if (result.generation.eos_ids.empty())
      result.generation.eos_ids = result.tokenizer->tokenizer.eos_hints();
    if (!result.generation.bos_id) result.generation.bos_id = result.tokenizer->tokenizer.bos_hint();
  }
  return result;
}

ModelFolder read_model_folder(const artifact::Artifact& artifact) {
  ModelFolder result;
  result.tokenizer = tokenizer_in(artifact);
  result.chat = chat_in(artifact);
  if (const auto config = artifact.attachment(artifact::kGeneration)) {
    result.generation = artifact::GenerationConfig::parse(*config);
  }
  return result;
}

FoundTokenizer find_tokenizer(const path& where) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(where, ignored);
  if (!is_folder && artifact::is_artifact(where)) {
    if (auto found = tokenizer_in(artifact::Artifact::open(where))) return *std::move(found);
    throw_error(ErrorCode::BadData, "the artifact '", where.string(), "' has no tokenizer inside");
  }
  if (!is_folder && where.extension() != ".onnx") return read_tokenizer(where);
  const auto file = tokenizer_file_in(is_folder ? std::vector{where} : folders_of(where));
  if (!file) {
    throw_error(ErrorCode::Io, "no tokenizer in '", (is_folder ? where : folders_of(where)[0]).string(),
                "': neither tokenizer.json, tokenizer.model, spiece.model, sentencepiece.bpe.model, "
                "tokenizer.bin nor one .tiktoken file");
  }
  return read_tokenizer(*file);
}

void check_tokenizer(const ModelFolder& folder, const Graph& graph) {
  const int64_t rows = vocabulary_of(graph);
  if (!folder.tokenizer || rows == 0 || folder.tokenizer->tokenizer.vocab_size() <= rows) return;
  throw_error(ErrorCode::BadData, "the tokenizer '", folder.tokenizer->origin, "' has ",
              folder.tokenizer->tokenizer.vocab_size(), " tokens, the model embeds ", rows,
              ": they do not belong together; give the model's own");
}

std::vector<std::string> find_contradictions(const path& model, const Graph& graph) {
  std::vector<std::string> found;
  if (!is_decoder(graph)) return found;
  artifact::GraphFacts facts{.context_length = stated_context(graph)};
  if (const int64_t rows = vocabulary_of(graph); rows > 0) facts.vocabulary = rows;
  for (const path& folder : folders_of(model)) {
    for (std::string& sentence : artifact::find_contradictions(folder, facts))
      found.push_back(std::move(sentence));
  }
  return found;
}

void apply_context_length(const ModelFolder& folder, Graph& graph) {
  const std::optional<int64_t> context = folder.generation.context_length;
  if (!is_decoder(graph) || !context || *context <= 0 ||
      stated_context(graph).value_or(*context + 1) <= *context)
    return;
  Rewriter rewriter(graph);
  rewriter.set_metadata("context_length", std::to_string(*context));
  rewriter.commit();
}

}  // namespace quern::passes
