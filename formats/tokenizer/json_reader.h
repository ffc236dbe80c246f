// Reading a tokenizer.json: the big tables of its model apart, and the members of its other objects with
// messages that say where something is wrong.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/error.h"

namespace quern::tokenizer {

using Json = nlohmann::json;

// The members `vocab` and `merges` of the model, which are too large to become Json values first.
struct ModelTables {
  std::optional<std::vector<std::pair<std::string, uint64_t>>> ids;   // vocab, an object
  std::optional<std::vector<std::pair<std::string, double>>> scores;  // vocab, an array
  std::optional<std::vector<std::pair<std::string, std::string>>> merges;
};

struct TokenizerJson {
  Json root;  // less what is in `tables`
  ModelTables tables;
};

// Throws Error{Corrupt} for what isn't JSON, or is nested absurdly deep, Error{InvalidModel} for a table
// entry of the wrong form.
TokenizerJson parse_tokenizer_json(std::string_view text);

// The member `key` of `object`, which `where` names in messages ("the decoder"). Throws Error{InvalidModel}.
const Json& member(const Json& object, const char* key, std::string_view where);
// The member, or null if it is missing.
const Json& optional_member(const Json& object, const char* key);
// A member with a value where it is missing or null. Throws nlohmann's exceptions for another type.
bool flag_or(const Json& object, const char* key, bool otherwise);
std::string text_or(const Json& object, const char* key, std::string otherwise);
size_t count_or(const Json& object, const char* key, size_t otherwise);
// The one code point of a text.
char32_t character_of(const Json& object, const char* key, std::string_view where);

}  // namespace quern::tokenizer
