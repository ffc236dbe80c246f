#include <functional>
#include <map>

#include "formats/tokenizer/parts_json.h"

namespace quern::tokenizer {
namespace {

using Maker = std::function<StageFactory(const Json&)>;

StageFactory read_replace(const Json& json) {
  const Json& pattern = member(json, "pattern", "the decoder Replace");
  auto content = member(json, "content", "the decoder Replace").get<std::string>();
  if (pattern.is_object() && pattern.contains("String")) {
    return replace_string_stage(pattern["String"].get<std::string>(), std::move(content));
  }
  return replace_pattern_stage(read_pattern(pattern, "the decoder Replace"), std::move(content));
}

StageFactory read_metaspace_stage(const Json& json) {
  const MetaspaceOptions options = read_metaspace(json);
  return metaspace_stage(options.replacement, options.prepend_scheme != PrependScheme::Never);
}

StageFactory read_ctc(const Json& json) {
  CtcOptions options;
  options.pad_token = text_or(json, "pad_token", options.pad_token);
  options.word_delimiter_token = text_or(json, "word_delimiter_token", options.word_delimiter_token);
  options.cleanup = flag_or(json, "cleanup", true);
  return ctc_stage(options);
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> table = {
      {"ByteLevel", [](const Json&) { return byte_level_stage(); }},
      {"ByteFallback", [](const Json&) { return byte_fallback_stage(); }},
      {"Fuse", [](const Json&) { return fuse_stage(); }},
      {"Replace", read_replace},
      {"Metaspace", read_metaspace_stage},
      {"CTC", read_ctc},
      {"Strip",
       [](const Json& json) {
         return strip_stage(character_of(json, "content", "the decoder Strip"), count_or(json, "start", 0),
                            count_or(json, "stop", 0));
       }},
      {"WordPiece",
       [](const Json& json) {
         return word_piece_stage(text_or(json, "prefix", "##"), flag_or(json, "cleanup", true));
       }},
      {"BPEDecoder", [](const Json& json) { return bpe_stage(text_or(json, "suffix", "</w>")); }},
  };
  return table;
}

void add_stages(const Json& json, std::vector<StageFactory>& stages) {
  const auto type = member(json, "type", "the decoder").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : member(json, "decoders", "the decoder Sequence")) add_stages(part, stages);
    return;
  }
  const auto maker = makers().find(type);
  if (maker == makers().end()) {
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the decoder '", type, "' is not supported");
  }
  stages.push_back(maker->second(json));
}

}  // namespace

std::vector<StageFactory> read_decoder(const Json& json) {
  if (json.is_null()) return {join_stage()};
  std::vector<StageFactory> stages;
  add_stages(json, stages);
  return stages;
}

}  // namespace quern::tokenizer
