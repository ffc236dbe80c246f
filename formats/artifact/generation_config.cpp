#include "formats/artifact/generation_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/file/mapped_file.h"
#include "ir/error.h"

namespace quern::artifact {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

json parse_object(std::string_view text, const std::string& what) {
  json root = json::parse(text, nullptr, false);
  if (!root.is_object()) throw_error(ErrorCode::Corrupt, what, " is no JSON object");
  return root;
}

// body(key, member) for each single value, so that reading and writing have one list of keys.
template <class Config, class Body>
void for_each_member(Config& config, const Body& body) {
  body("context_length", config.context_length);
  body("bos_id", config.bos_id);
  body("pad_id", config.pad_id);
  body("sample", config.sample);
  body("temperature", config.temperature);
  body("top_k", config.top_k);
  body("top_p", config.top_p);
  body("min_p", config.min_p);
  body("repetition_penalty", config.repetition_penalty);
}

// Lengths and ids; some tools write -1 for none.
bool is_count(const json& value) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_number_unsigned() && value.get<uint64_t>() <= kMost;
}

bool has_type(const json& value, const std::optional<int64_t>&) {
  return is_count(value);
}
bool has_type(const json& value, const std::optional<double>&) {
  return value.is_number();
}
bool has_type(const json& value, const std::optional<bool>&) {
  return value.is_boolean();
}

// `key` of `object` where it has the right type and nothing was known before.
template <class T>
void take(const json& object, const char* key, std::optional<T>& member) {
  const auto found = object.find(key);
  if (member || found == object.end() || !has_type(*found, member)) return;
  member = found->get<T>();
}

// One id or a list of them.
void take_ids(const json& object, const char* key, std::vector<int64_t>& ids) {
  const auto found = object.find(key);
  if (!ids.empty() || found == object.end()) return;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (is_count(id)) ids.push_back(id.get<int64_t>());
  }
}

const json& part(const json& object, const char* key) {
  static const json kEmpty = json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kEmpty;
}

void take_tokens(const json& object, GenerationConfig& config) {
  take_ids(object, "eos_token_id", config.eos_ids);
  take(object, "bos_token_id", config.bos_id);
  take(object, "pad_token_id", config.pad_id);
}

void take_sampling(const json& object, GenerationConfig& config) {
  take(object, "do_sample", config.sample);
  take(object, "temperature", config.temperature);
  take(object, "top_k", config.top_k);
  take(object, "top_p", config.top_p);
  take(object, "min_p", config.min_p);
  take(object, "repetition_penalty", config.repetition_penalty);
}

// The file, or nothing where there is none. Some models' configurations are larger than any could need to be.
std::optional<json> read_config(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  return parse_object(text, file->name());
}

}  // namespace

std::string GenerationConfig::to_json() const {
  ordered_json root = ordered_json::object();
  for_each_member(*this, [&](const char* key, const auto& member) {
    if (member) root[key] = *member;
  });
  if (!eos_ids.empty()) root["eos_ids"] = eos_ids;
  return root.dump(2) + "\n";
}

GenerationConfig GenerationConfig::parse(std::string_view text) {
  const json root = parse_object(text, "the generation configuration");
  GenerationConfig config;
  for_each_member(config, [&](const char* key, auto& member) {
    const auto found = root.find(key);
    if (found == root.end()) return;
    take(root, key, member);
    if (!member)
      throw_error(ErrorCode::Corrupt, "the generation configuration's ", key, " has the wrong type");
  });
  const auto ids = root.find("eos_ids");
  if (ids == root.end()) return config;
  if (!ids->is_array() || !std::all_of(ids->begin(), ids->end(), is_count)) {
    throw_error(ErrorCode::Corrupt, "the generation configuration's eos_ids are no list of ids");
  }
  config.eos_ids = ids->get<std::vector<int64_t>>();
  return config;
}

GenerationConfig read_generation_config(const std::filesystem::path& folder) {
  GenerationConfig config;
  if (const auto genai = read_config(folder / "genai_config.json")) {
    take_tokens(part(*genai, "model"), config);
    take(part(*genai, "model"), "context_length", config.context_length);
    take_sampling(part(*genai, "search"), config);
  }
  if (const auto generation = read_config(folder / "generation_config.json")) {
    take_tokens(*generation, config);
    take_sampling(*generation, config);
  }
  if (const auto model = read_config(folder / "config.json")) {
    take_tokens(*model, config);
    // Multi-modal models keep the decoder's figures in a part of their own.
    for (const json* object : {&*model, &part(*model, "text_config")}) {
      for (const char* key :
           {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"}) {
        take(*object, key, config.context_length);
      }
    }
  }
  return config;
}

}  // namespace quern::artifact
