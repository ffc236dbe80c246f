// Builds a tokenizer from a tokenizer.json.
#include <nlohmann/json.hpp>
#include <set>

#include "formats/tokenizer/pipeline.h"
#include "formats/tokenizer/pre_tokenizer.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

Json parse(std::string_view text) {
  const auto check_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw_error(ErrorCode::Corrupt, "tokenizer.json is nested more than ", kMaxDepth, " levels deep");
    }
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    throw_error(ErrorCode::Corrupt, "not a valid tokenizer.json: ", error.what());
  }
}

const Json& member(const Json& object, const char* key, const char* where) {
  const auto found = object.find(key);
  if (found == object.end())
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: ", where, " lacks '", key, "'");
  return *found;
}

bool flag(const Json& object, const char* key, bool otherwise) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? otherwise : found->get<bool>();
}

std::string text_or(const Json& object, const char* key, std::string otherwise) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? otherwise : found->get<std::string>();
}

std::string type_of(const Json& part, const char* where) {
  return member(part, "type", where).get<std::string>();
}

std::vector<AddedToken> read_added_tokens(const Json& list) {
  std::vector<AddedToken> tokens;
  for (const Json& entry : list) {
    AddedToken token;
    token.content = member(entry, "content", "an added token").get<std::string>();
    token.single_word = flag(entry, "single_word", false);
    token.lstrip = flag(entry, "lstrip", false);
    token.rstrip = flag(entry, "rstrip", false);
    token.normalized = flag(entry, "normalized", true);
    token.special = flag(entry, "special", false);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Vocabulary read_vocabulary(const Json& object) {
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

std::vector<std::pair<std::string, std::string>> read_merges(const Json& list) {
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(list.size());
  for (const Json& entry : list) {
    if (entry.is_array() && entry.size() == 2) {
      merges.emplace_back(entry[0].get<std::string>(), entry[1].get<std::string>());
      continue;
    }
    const auto text = entry.get<std::string>();
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

std::unique_ptr<Bpe> read_bpe(const Json& model) {
  BpeOptions options;
  const auto unk = model.find("unk_token");
  if (unk != model.end() && !unk->is_null()) options.unk_token = unk->get<std::string>();
  options.continuing_subword_prefix = text_or(model, "continuing_subword_prefix", "");
  options.end_of_word_suffix = text_or(model, "end_of_word_suffix", "");
  options.fuse_unk = flag(model, "fuse_unk", false);
  options.byte_fallback = flag(model, "byte_fallback", false);
  options.ignore_merges = flag(model, "ignore_merges", false);
  return std::make_unique<Bpe>(read_vocabulary(member(model, "vocab", "the model")),
                               read_merges(member(model, "merges", "the model")), options);
}

void read_model(const Json& model, Pipeline& pipeline) {
  const std::string type = text_or(model, "type", "BPE");
  if (type != "BPE")
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the model '", type, "' is not supported");
  pipeline.model = read_bpe(model);
}

void read_pre_tokenizer(const Json& part, Pipeline& pipeline) {
  if (part.is_null()) return;
  const std::string type = type_of(part, "the pre_tokenizer");
  if (type != "ByteLevel") {
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the pre-tokenizer '", type, "' is not supported");
  }
  ByteLevelOptions options;
  options.add_prefix_space = flag(part, "add_prefix_space", true);
  options.use_regex = flag(part, "use_regex", true);
  options.keep_bytes = true;
  pipeline.pre_tokenizer = std::make_unique<ByteLevelPreTokenizer>(options);
  pipeline.byte_model = static_cast<const Bpe*>(pipeline.model.get());
}

void read_decoder(const Json& part, Pipeline& pipeline) {
  if (part.is_null()) {
    pipeline.decoder.emplace_back([](bool) { return make_join_stage(); });
    return;
  }
  const std::string type = type_of(part, "the decoder");
  if (type != "ByteLevel") {
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the decoder '", type, "' is not supported");
  }
  pipeline.decoder.emplace_back([](bool) { return make_byte_level_stage(); });
}

void read_post_processor(const Json& part) {
  if (part.is_null()) return;
  const std::string type = type_of(part, "the post_processor");
  if (type != "ByteLevel") {
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the post-processor '", type, "' is not supported");
  }
}

// Tokens that are known to begin or end texts, for files that don't say.
void guess_hints(Pipeline& pipeline) {
  static const std::set<std::string> kEnds = {"<|endoftext|>", "</s>",       "<eos>",   "<|end_of_text|>",
                                              "<|eot_id|>",    "<|im_end|>", "<|end|>", "<end_of_turn>",
                                              "<|eom_id|>",    "<|return|>", "[SEP]",   "<|endofturn|>"};
  for (const AddedToken& token : pipeline.added.tokens()) {
    if (token.special && kEnds.contains(token.content)) pipeline.eos_hints.push_back(token.id);
  }
  for (const auto& parts : pipeline.post_processor.templates()) {
    if (!parts.empty() && !parts.front().is_text && !parts.front().ids.empty()) {
      pipeline.bos_hint = parts.front().ids.front();
    }
  }
  for (const char* name : {"<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>"}) {
    if (pipeline.bos_hint) break;
    const AddedToken* token = pipeline.added.find(std::string_view(name));
    if (token != nullptr && token->special) pipeline.bos_hint = token->id;
  }
}

void build(const Json& json, Pipeline& pipeline) {
  const Json nothing;
  const auto part = [&](const char* key) -> const Json& {
    const auto found = json.find(key);
    return found == json.end() ? nothing : *found;
  };
  read_model(member(json, "model", "the file"), pipeline);
  read_pre_tokenizer(part("pre_tokenizer"), pipeline);
  read_post_processor(part("post_processor"));
  read_decoder(part("decoder"), pipeline);
  pipeline.added.add(read_added_tokens(part("added_tokens")), pipeline.model->vocabulary(),
                     pipeline.normalizer.get());
  guess_hints(pipeline);
}

}  // namespace

std::shared_ptr<const Pipeline> load_tokenizer_json(std::string_view text) {
  const Json json = parse(text);
  if (!json.is_object()) throw_error(ErrorCode::InvalidModel, "tokenizer.json is not an object");
  auto pipeline = std::make_shared<Pipeline>();
  pipeline->source = text;
  try {
    build(json, *pipeline);
  } catch (const Json::exception& error) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: ", error.what());
  }
  return pipeline;
}

}  // namespace quern::tokenizer
