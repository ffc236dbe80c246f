#include <algorithm>

#include "formats/tokenizer/parts_json.h"

namespace quern::tokenizer {
namespace {

// A few templates that each repeat the text would make any number of ids of it.
constexpr size_t kMaxRepeats = 16;

std::vector<int64_t> read_ids(const Json& json) {
  std::vector<int64_t> ids;
  for (const Json& id : json) ids.push_back(static_cast<int64_t>(id.get<uint32_t>()));
  return ids;
}

std::vector<PostProcessor::Part> read_template(const Json& json) {
  const Json& special_tokens = member(json, "special_tokens", "TemplateProcessing");
  std::vector<PostProcessor::Part> parts;
  for (const Json& entry : member(json, "single", "TemplateProcessing")) {
    PostProcessor::Part part;
    if (entry.contains("Sequence")) {
      const auto id = member(entry["Sequence"], "id", "a template").get<std::string>();
      if (id != "A")
        throw_error(ErrorCode::InvalidModel, "tokenizer.json: the template for one text has a sequence '", id,
                    "'");
      part.is_text = true;
    } else {
      const auto id =
          member(member(entry, "SpecialToken", "a template"), "id", "a template").get<std::string>();
      const Json& token = optional_member(special_tokens, id.c_str());
      if (token.is_null()) {
        throw_error(ErrorCode::InvalidModel, "tokenizer.json: the template's token '", id,
                    "' is not among its special_tokens");
      }
      part.ids = read_ids(member(token, "ids", "a special token of the template"));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

PostProcessor::Part special_pair(const Json& json, const char* key) {
  const Json& pair = member(json, key, "the post_processor");
  if (!pair.is_array() || pair.size() != 2) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: '", key, "' of the post-processor is ", pair.dump(),
                "; expected a token and its id");
  }
  return {.is_text = false, .ids = {static_cast<int64_t>(pair[1].get<uint32_t>())}};
}

void add_templates(const Json& json, PostProcessor& post_processor) {
  const auto type = member(json, "type", "the post_processor").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : member(json, "processors", "the post-processor Sequence")) {
      add_templates(part, post_processor);
    }
  } else if (type == "TemplateProcessing") {
    post_processor.add(read_template(json));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    post_processor.add({special_pair(json, "cls"), {.is_text = true, .ids = {}}, special_pair(json, "sep")});
  } else if (type != "ByteLevel") {  // which is about offsets alone
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the post-processor '", type, "' is not supported");
  }
}

}  // namespace

PostProcessor read_post_processor(const Json& json) {
  PostProcessor post_processor;
  if (json.is_null()) return post_processor;
  add_templates(json, post_processor);
  size_t repeats = 1;
  for (const auto& parts : post_processor.templates()) {
    repeats *= static_cast<size_t>(
        std::count_if(parts.begin(), parts.end(), [](const auto& part) { return part.is_text; }));
    if (repeats > kMaxRepeats) {
      throw_error(ErrorCode::Unsupported, "tokenizer.json: the post-processor repeats the text more than ",
                  kMaxRepeats, " times");
    }
  }
  return post_processor;
}

}  // namespace quern::tokenizer
