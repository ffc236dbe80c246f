#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/parts_json.h"
#include "formats/tokenizer/unigram.h"
#include "formats/tokenizer/word_models.h"

namespace quern::tokenizer {
namespace {

// They are put to every character; longer ones than any real one would only waste time.
constexpr size_t kMaxAffix = 256;

Vocabulary read_vocabulary(ModelTables& tables) {
  if (!tables.ids)
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: the model has no object 'vocab' of tokens and ids");
  Vocabulary vocabulary;
  vocabulary.reserve(tables.ids->size());
  for (const auto& [token, id] : *tables.ids) {
    if (vocabulary.find(token) != kNoId) {
      throw_error(ErrorCode::InvalidModel, "tokenizer.json: the vocabulary has the token '", token,
                  "' twice");
    }
    vocabulary.add(token, id);
  }
  tables.ids.reset();
  return vocabulary;
}

std::string read_affix(const Json& json, const char* key) {
  std::string affix = text_or(json, key, "");
  if (affix.size() > kMaxAffix) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: '", key, "' has ", affix.size(), " bytes; at most ",
                kMaxAffix);
  }
  return affix;
}

std::unique_ptr<Model> read_bpe(const Json& json, ModelTables& tables) {
  if (!tables.merges) throw_error(ErrorCode::InvalidModel, "tokenizer.json: the model has no array 'merges'");
  BpeOptions options;
  const Json& unk_token = optional_member(json, "unk_token");
  if (!unk_token.is_null()) options.unk_token = unk_token.get<std::string>();
  options.continuing_subword_prefix = read_affix(json, "continuing_subword_prefix");
  options.end_of_word_suffix = read_affix(json, "end_of_word_suffix");
  options.fuse_unk = flag_or(json, "fuse_unk", false);
  options.byte_fallback = flag_or(json, "byte_fallback", false);
  options.ignore_merges = flag_or(json, "ignore_merges", false);
  return std::make_unique<Bpe>(read_vocabulary(tables), *tables.merges, options);
}

std::unique_ptr<Model> read_unigram(const Json& json, ModelTables& tables) {
  if (!tables.scores) {
    throw_error(ErrorCode::InvalidModel,
                "tokenizer.json: the model has no array 'vocab' of tokens and scores");
  }
  UnigramOptions options;
  const Json& unk_id = optional_member(json, "unk_id");
  if (!unk_id.is_null()) options.unk_id = count_or(json, "unk_id", 0);
  options.byte_fallback = flag_or(json, "byte_fallback", false);
  return std::make_unique<Unigram>(*tables.scores, options);
}

std::unique_ptr<Model> read_word_piece(const Json& json, ModelTables& tables) {
  WordPieceOptions options;
  options.unk_token = text_or(json, "unk_token", options.unk_token);
  options.continuing_subword_prefix =
      text_or(json, "continuing_subword_prefix", options.continuing_subword_prefix);
  if (options.continuing_subword_prefix.size() > kMaxAffix) read_affix(json, "continuing_subword_prefix");
  options.max_input_chars_per_word =
      count_or(json, "max_input_chars_per_word", options.max_input_chars_per_word);
  return std::make_unique<WordPiece>(read_vocabulary(tables), options);
}

std::unique_ptr<Model> read_word_level(const Json& json, ModelTables& tables) {
  return std::make_unique<WordLevel>(read_vocabulary(tables), text_or(json, "unk_token", "<unk>"));
}

// Files from before `type` are told by what they have.
std::string type_of(const Json& json, const ModelTables& tables) {
  const Json& type = optional_member(json, "type");
  if (!type.is_null()) return type.get<std::string>();
  if (tables.merges) return "BPE";
  if (tables.scores) return "Unigram";
  return json.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> read_model(const Json& json, ModelTables& tables) {
  const std::string type = type_of(json, tables);
  if (type == "BPE") return read_bpe(json, tables);
  if (type == "Unigram") return read_unigram(json, tables);
  if (type == "WordPiece") return read_word_piece(json, tables);
  if (type == "WordLevel") return read_word_level(json, tables);
  throw_error(ErrorCode::Unsupported, "tokenizer.json: the model '", type, "' is not supported");
}

}  // namespace quern::tokenizer
