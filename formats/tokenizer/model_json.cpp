#include "formats/tokenizer/bpe.h"
#include "formats/tokenizer/parts_json.h"
#include "formats/tokenizer/unigram.h"
#include "formats/tokenizer/word_models.h"

namespace quern::tokenizer {
namespace {

// They are put to every character; longer ones than any real one would only waste time.
constexpr size_t kMaxAffix = 256;

Vocabulary read_vocabulary(const Json& object) {
  if (!object.is_object())
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: the vocabulary is not an object");
  Vocabulary vocabulary;
  vocabulary.reserve(object.size());
  for (const auto& [token, id] : object.items()) {
    if (!id.is_number_unsigned()) {
      throw_error(ErrorCode::InvalidModel, "tokenizer.json: the id of token '", token, "' is ", id.dump());
    }
    vocabulary.add(token, id.get<uint64_t>());
  }
  return vocabulary;
}

using Merges = std::vector<std::pair<std::string, std::string>>;

Merges read_merges(const Json& list) {
  Merges merges;
  merges.reserve(list.size());
  for (const Json& entry : list) {
    if (entry.is_array() && entry.size() == 2) {
      merges.emplace_back(entry[0].get<std::string>(), entry[1].get<std::string>());
      continue;
    }
    const auto& text = entry.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      throw_error(ErrorCode::InvalidModel, "tokenizer.json: merge ", merges.size(), " is '", text,
                  "'; expected two tokens with a space between them");
    }
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

std::string read_affix(const Json& json, const char* key) {
  std::string affix = text_or(json, key, "");
  if (affix.size() > kMaxAffix) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: '", key, "' has ", affix.size(), " bytes; at most ",
                kMaxAffix);
  }
  return affix;
}

std::unique_ptr<Model> read_bpe(const Json& json) {
  BpeOptions options;
  const Json& unk_token = optional_member(json, "unk_token");
  if (!unk_token.is_null()) options.unk_token = unk_token.get<std::string>();
  options.continuing_subword_prefix = read_affix(json, "continuing_subword_prefix");
  options.end_of_word_suffix = read_affix(json, "end_of_word_suffix");
  options.fuse_unk = flag_or(json, "fuse_unk", false);
  options.byte_fallback = flag_or(json, "byte_fallback", false);
  options.ignore_merges = flag_or(json, "ignore_merges", false);
  return std::make_unique<Bpe>(read_vocabulary(member(json, "vocab", "the model")),
                               read_merges(member(json, "merges", "the model")), options);
}

std::unique_ptr<Model> read_unigram(const Json& json) {
  UnigramOptions options;
  const Json& unk_id = optional_member(json, "unk_id");
  if (!unk_id.is_null()) options.unk_id = count_or(json, "unk_id", 0);
  options.byte_fallback = flag_or(json, "byte_fallback", false);
  std::vector<std::pair<std::string, double>> pieces;
  for (const Json& entry : member(json, "vocab", "the model")) {
    if (!entry.is_array() || entry.size() != 2) {
      throw_error(ErrorCode::InvalidModel, "tokenizer.json: token ", pieces.size(),
                  " of the Unigram model is not a token and its score");
    }
    pieces.emplace_back(entry[0].get<std::string>(), entry[1].get<double>());
  }
  return std::make_unique<Unigram>(pieces, options);
}

std::unique_ptr<Model> read_word_piece(const Json& json) {
  WordPieceOptions options;
  options.unk_token = text_or(json, "unk_token", options.unk_token);
  options.continuing_subword_prefix =
      text_or(json, "continuing_subword_prefix", options.continuing_subword_prefix);
  if (options.continuing_subword_prefix.size() > kMaxAffix) read_affix(json, "continuing_subword_prefix");
  options.max_input_chars_per_word =
      count_or(json, "max_input_chars_per_word", options.max_input_chars_per_word);
  return std::make_unique<WordPiece>(read_vocabulary(member(json, "vocab", "the model")), options);
}

std::unique_ptr<Model> read_word_level(const Json& json) {
  return std::make_unique<WordLevel>(read_vocabulary(member(json, "vocab", "the model")),
                                     text_or(json, "unk_token", "<unk>"));
}

// Files from before `type` are told by what they have.
std::string type_of(const Json& json) {
  const Json& type = optional_member(json, "type");
  if (!type.is_null()) return type.get<std::string>();
  if (json.contains("merges")) return "BPE";
  if (optional_member(json, "vocab").is_array()) return "Unigram";
  return json.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

std::unique_ptr<Model> read_model(const Json& json) {
  const std::string type = type_of(json);
  if (type == "BPE") return read_bpe(json);
  if (type == "Unigram") return read_unigram(json);
  if (type == "WordPiece") return read_word_piece(json);
  if (type == "WordLevel") return read_word_level(json);
  throw_error(ErrorCode::Unsupported, "tokenizer.json: the model '", type, "' is not supported");
}

}  // namespace quern::tokenizer
