#include <functional>
#include <map>

#include "formats/tokenizer/base64.h"
#include "formats/tokenizer/charsmap.h"
#include "formats/tokenizer/parts_json.h"

namespace quern::tokenizer {
namespace {

using Maker = std::function<std::unique_ptr<Normalizer>(const Json&)>;

std::unique_ptr<Normalizer> read_sequence(const Json& json) {
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const Json& part : member(json, "normalizers", "the normalizer Sequence"))
    parts.push_back(read_normalizer(part));
  return make_normalizer_sequence(std::move(parts));
}

std::unique_ptr<Normalizer> read_bert(const Json& json) {
  BertNormalizerOptions options;
  options.clean_text = flag_or(json, "clean_text", true);
  options.handle_chinese_chars = flag_or(json, "handle_chinese_chars", true);
  options.lowercase = flag_or(json, "lowercase", true);
  const Json& strip_accents = optional_member(json, "strip_accents");
  if (!strip_accents.is_null()) options.strip_accents = strip_accents.get<bool>();
  return make_bert_normalizer(options);
}

std::unique_ptr<Normalizer> read_precompiled(const Json& json) {
  const Json& charsmap = member(json, "precompiled_charsmap", "the normalizer Precompiled");
  return make_precompiled(Charsmap(charsmap.is_null() ? "" : decode_base64(charsmap.get<std::string>())));
}

std::unique_ptr<Normalizer> read_replace(const Json& json) {
  return make_replace(
      read_pattern(member(json, "pattern", "the normalizer Replace"), "the normalizer Replace"),
      member(json, "content", "the normalizer Replace").get<std::string>());
}

Maker unicode_form(NormalizationForm form) {
  return [form](const Json&) { return make_unicode_normalizer(form); };
}

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> table = {
      {"Sequence", read_sequence},
      {"BertNormalizer", read_bert},
      {"Precompiled", read_precompiled},
      {"Replace", read_replace},
      {"NFC", unicode_form(NormalizationForm::Nfc)},
      {"NFD", unicode_form(NormalizationForm::Nfd)},
      {"NFKC", unicode_form(NormalizationForm::Nfkc)},
      {"NFKD", unicode_form(NormalizationForm::Nfkd)},
      {"Lowercase", [](const Json&) { return make_lowercase(); }},
      {"StripAccents", [](const Json&) { return make_strip_accents(); }},
      {"Nmt", [](const Json&) { return make_nmt(); }},
      {"ByteLevel", [](const Json&) { return make_byte_level_normalizer(); }},
      {"Strip",
       [](const Json& json) {
         return make_strip(flag_or(json, "strip_left", true), flag_or(json, "strip_right", true));
       }},
      {"Prepend",
       [](const Json& json) {
         return make_prepend(member(json, "prepend", "the normalizer Prepend").get<std::string>());
       }},
  };
  return table;
}

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const Json& json) {
  const auto type = member(json, "type", "the normalizer").get<std::string>();
  const auto maker = makers().find(type);
  if (maker == makers().end()) {
    throw_error(ErrorCode::Unsupported, "tokenizer.json: the normalizer '", type, "' is not supported");
  }
  return maker->second(json);
}

}  // namespace quern::tokenizer
