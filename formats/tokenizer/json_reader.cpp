#include "formats/tokenizer/json_reader.h"

#include "formats/tokenizer/utf8.h"

namespace quern::tokenizer {
const Json& optional_member(const Json& object, const char* key) {
  static const Json kNothing;
  const auto found = object.find(key);
  return found == object.end() ? kNothing : *found;
}

const Json& member(const Json& object, const char* key, std::string_view where) {
  const auto found = object.find(key);
  if (found == object.end())
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: ", where, " lacks '", key, "'");
  return *found;
}

bool flag_or(const Json& object, const char* key, bool otherwise) {
  const Json& value = optional_member(object, key);
  return value.is_null() ? otherwise : value.get<bool>();
}

std::string text_or(const Json& object, const char* key, std::string otherwise) {
  const Json& value = optional_member(object, key);
  return value.is_null() ? otherwise : value.get<std::string>();
}

size_t count_or(const Json& object, const char* key, size_t otherwise) {
  const Json& value = optional_member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_number_unsigned()) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: '", key, "' is ", value.dump(),
                "; expected a count");
  }
  return value.get<size_t>();
}

char32_t character_of(const Json& object, const char* key, std::string_view where) {
  const auto text = member(object, key, where).get<std::string>();
  if (text.empty() || utf8_length(text[0]) != text.size()) {
    throw_error(ErrorCode::InvalidModel, "tokenizer.json: '", key, "' of ", where, " is '", text,
                "'; expected one character");
  }
  return code_point_at(text.data());
}

}  // namespace quern::tokenizer
