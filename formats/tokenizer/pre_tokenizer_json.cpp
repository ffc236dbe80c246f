#include <functional>
#include <map>

#include "formats/tokenizer/parts_json.h"
#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
namespace {

using Maker = std::function<std::unique_ptr<PreTokenizer>(const Json&)>;

SplitBehavior read_behavior(const Json& json, const char* otherwise) {
  static const std::map<std::string, SplitBehavior> names = {
      {"Removed", SplitBehavior::Removed},
      {"Isolated", SplitBehavior::Isolated},
      {"MergedWithPrevious", SplitBehavior::MergedWithPrevious},
      {"MergedWithNext", SplitBehavior::MergedWithNext},
      {"Contiguous", SplitBehavior::Contiguous},
  };
  const std::string name = text_or(json, "behavior", otherwise);
  const auto found = names.find(name);
  if (found == names.end()) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: a pre-tokenizer's behavior is '", name, "'");
  }
  return found->second;
}

std::unique_ptr<PreTokenizer> read_sequence(const Json& json) {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const Json& part : member(json, "pretokenizers", "the pre-tokenizer Sequence")) {
    parts.push_back(read_pre_tokenizer(part));
  }
  return make_pre_tokenizer_sequence(std::move(parts));
}

std::unique_ptr<PreTokenizer> read_byte_level(const Json& json) {
  return make_byte_level_pre_tokenizer({.add_prefix_space = flag_or(json, "add_prefix_space", true),
                                        .use_regex = flag_or(json, "use_regex", true)});
}

std::unique_ptr<PreTokenizer> read_split(const Json& json) {
  return make_split(
      read_pattern(member(json, "pattern", "the pre-tokenizer Split"), "the pre-tokenizer Split"),
      read_behavior(json, ""), flag_or(json, "invert", false));
}

std::unique_ptr<PreTokenizer> read_fixed_length(const Json& json) {
  const size_t length = count_or(json, "length", 5);
  if (length == 0) throw_error(ErrorCode::InvalidModel, "tokenizer.json: FixedLength has the length 0");
  return make_fixed_length(length);
}

std::unique_ptr<PreTokenizer> read_char_delimiter(const Json& json) {
  return make_char_delimiter(character_of(json, "delimiter", "the pre-tokenizer CharDelimiterSplit"));
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> table = {
      {"Sequence", read_sequence},
      {"ByteLevel", read_byte_level},
      {"Split", read_split},
      {"FixedLength", read_fixed_length},
      {"CharDelimiterSplit", read_char_delimiter},
      {"Delimiter", read_char_delimiter},
      {"Metaspace", [](const Json& json) { return make_metaspace(read_metaspace(json)); }},
      {"Whitespace", [](const Json&) { return make_whitespace(); }},
      {"WhitespaceSplit", [](const Json&) { return make_whitespace_split(); }},
      {"BertPreTokenizer", [](const Json&) { return make_bert_pre_tokenizer(); }},
      {"Punctuation", [](const Json& json) { return make_punctuation(read_behavior(json, "Isolated")); }},
      {"Digits", [](const Json& json) { return make_digits(flag_or(json, "individual_digits", false)); }},
      {"UnicodeScripts", [](const Json&) { return make_unicode_scripts(); }},
  };
  return table;
}

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json) {
  const auto type = member(json, "type", "the pre_tokenizer").get<std::string>();
  const auto maker = makers().find(type);
  if (maker == makers().end()) {
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the pre-tokenizer '", type, "' is not supported");
  }
  return maker->second(json);
}

std::unique_ptr<Pattern> read_pattern(const Json& json, std::string_view where) {
  if (json.is_object() && json.contains("String"))
    return make_string_pattern(json["String"].get<std::string>());
  if (json.is_object() && json.contains("Regex")) return make_regex_pattern(json["Regex"].get<std::string>());
  throw_error(ErrorCode::InvalidModel, "tokenizer.json: the pattern of ", where,
              " is neither String nor Regex");
}

MetaspaceOptions read_metaspace(const Json& json) {
  MetaspaceOptions options;
  options.replacement.clear();
  append_utf8(options.replacement, character_of(json, "replacement", "Metaspace"));
  options.split = flag_or(json, "split", true);
  static const std::map<std::string, PrependScheme> schemes = {
      {"first", PrependScheme::First}, {"never", PrependScheme::Never}, {"always", PrependScheme::Always}};
  const std::string name = text_or(json, "prepend_scheme", "always");
  const auto scheme = schemes.find(name);
  if (scheme == schemes.end()) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: the prepend_scheme of Metaspace is '", name, "'");
  }
  // Older files have only the flag.
  options.prepend_scheme = flag_or(json, "add_prefix_space", true) ? scheme->second : PrependScheme::Never;
  return options;
}

}  // namespace quern::tokenizer
