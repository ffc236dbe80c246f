// Builds a tokenizer from a tokenizer.json.
#include "formats/tokenizer/hints.h"
#include "formats/tokenizer/parts_json.h"
#include "formats/tokenizer/pipeline.h"

namespace quern::tokenizer {
namespace {

std::vector<AddedToken> read_added_tokens(const Json& list) {
  std::vector<AddedToken> tokens;
  for (const Json& entry : list) {
    AddedToken token;
    token.content = member(entry, "content", "an added token").get<std::string>();
    token.single_word = flag_or(entry, "single_word", false);
    token.lstrip = flag_or(entry, "lstrip", false);
    token.rstrip = flag_or(entry, "rstrip", false);
    token.normalized = flag_or(entry, "normalized", true);
    token.special = flag_or(entry, "special", false);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void build(TokenizerJson& file, Pipeline& pipeline) {
  const Json& json = file.root;
  pipeline.model = read_model(member(json, "model", "the file"), file.tables);
  const Json& normalizer = optional_member(json, "normalizer");
  if (!normalizer.is_null()) pipeline.normalizer = read_normalizer(normalizer);
  const Json& pre_tokenizer = optional_member(json, "pre_tokenizer");
  if (!pre_tokenizer.is_null()) pipeline.pre_tokenizer = read_pre_tokenizer(pre_tokenizer);
  pipeline.post_processor = read_post_processor(optional_member(json, "post_processor"));
  pipeline.decoder = read_decoder(optional_member(json, "decoder"));
  pipeline.added.add(read_added_tokens(optional_member(json, "added_tokens")), pipeline.model->vocabulary(),
                     pipeline.normalizer.get());
  pipeline.use_byte_model();
  guess_hints(pipeline);
}

}  // namespace

std::shared_ptr<Pipeline> load_tokenizer_json(std::string_view text) {
  TokenizerJson file = parse_tokenizer_json(text);
  if (!file.root.is_object()) throw_error(ErrorCode::InvalidModel, "tokenizer.json is not an object");
  auto pipeline = std::make_shared<Pipeline>();
  try {
    build(file, *pipeline);
  } catch (const Json::exception& error) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: ", error.what());
  }
  return pipeline;
}

}  // namespace quern::tokenizer
