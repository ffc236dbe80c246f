#include "formats/artifact/contradictions.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ir/error.h"

namespace quern::artifact {
namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;

// A fact, and the file that states it. Of several, the first wins.
template <class T>
struct Stated {
  std::string file;
  T value;
};

struct Statements {
  std::vector<Stated<Ids>> eos;
  std::vector<Stated<int64_t>> bos;
  std::vector<Stated<int64_t>> context;
  std::vector<Stated<int64_t>> vocabulary;
};

json read_object(const std::filesystem::path& path) {
  std::ifstream in(path);
  json root = in ? json::parse(in, nullptr, false) : json();
  return root.is_object() ? root : json::object();
}

const json& part(const json& object, const char* key) {
  static const json kEmpty = json::object();
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : kEmpty;
}

void take(const json& object, const char* key, const std::string& file,
          std::vector<Stated<int64_t>>& statements) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_number_integer())
    statements.push_back({file, found->get<int64_t>()});
}

void take_ids(const json& object, const std::string& file, Statements& statements) {
  take(object, "bos_token_id", file, statements.bos);
  const auto found = object.find("eos_token_id");
  if (found == object.end()) return;
  Ids ids;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  }
  if (!ids.empty()) statements.eos.push_back({file, ids});
}

void take_model(const json& config, const std::string& file, Statements& statements) {
  take_ids(config, file, statements);
  // Multi-modal models keep the decoder's figures in a part of their own.
  for (const json* object : {&config, &part(config, "text_config")}) {
    for (const char* key : {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"})
      take(*object, key, file, statements.context);
    take(*object, "vocab_size", file, statements.vocabulary);
  }
}

// tokenizer_config.json names tokens; their ids stand in the same file.
std::optional<int64_t> id_of(const json& config, const char* key) {
  const auto token = config.find(key);
  if (token == config.end()) return std::nullopt;
  const json content = token->is_object() ? token->value("content", json()) : *token;
  if (!content.is_string()) return std::nullopt;
  for (const auto& [id, added] : part(config, "added_tokens_decoder").items()) {
    const bool digits = !id.empty() && id.size() < 16 && id.find_first_not_of("0123456789") == id.npos;
    if (digits && added.is_object() && added.value("content", json()) == content) return std::stoll(id);
  }
  return std::nullopt;
}

void take_tokenizer(const json& config, const std::string& file, Statements& statements) {
  if (const auto id = id_of(config, "bos_token")) statements.bos.push_back({file, *id});
  if (const auto id = id_of(config, "eos_token")) statements.eos.push_back({file, Ids{*id}});
  // Tokenizers that set no bound write 1e30.
  std::vector<Stated<int64_t>> bounds;
  take(config, "model_max_length", file, bounds);
  for (const auto& bound : bounds) {
    if (bound.value > 0 && bound.value < 1'000'000'000) statements.context.push_back(bound);
  }
}

std::string list(const Ids& ids) {
  std::string text;
  for (const int64_t id : ids) text += (text.empty() ? "" : ", ") + std::to_string(id);
  return text;
}

void compare(const char* what, const std::vector<Stated<int64_t>>& statements,
             std::vector<std::string>& contradictions) {
  for (size_t i = 1; i < statements.size(); ++i) {
    const Stated<int64_t>& first = statements[0];
    const Stated<int64_t>& other = statements[i];
    if (other.value == first.value || other.file == first.file) continue;
    contradictions.push_back(concat(first.file, " says that ", what, " is ", first.value, ", ", other.file,
                                    " that it is ", other.value, "; ", first.value, " is taken"));
  }
}

void compare_eos(const std::vector<Stated<Ids>>& statements, std::vector<std::string>& contradictions) {
  for (size_t i = 1; i < statements.size(); ++i) {
    const Ids& taken = statements[0].value;
    const Ids& other = statements[i].value;
    const bool all = std::all_of(other.begin(), other.end(), [&](int64_t id) {
      return std::find(taken.begin(), taken.end(), id) != taken.end();
    });
    if (all) continue;
    contradictions.push_back(concat(statements[0].file, " says that texts end with token ", list(taken), ", ",
                                    statements[i].file, " that they end with ", list(other), "; ",
                                    list(taken), " is taken"));
  }
}

void compare_with_graph(const Statements& statements, const GraphFacts& graph,
                        std::vector<std::string>& contradictions) {
  const bool has_context = graph.context_length && !statements.context.empty();
  if (has_context && statements.context[0].value > *graph.context_length) {
    const auto& context = statements.context[0];
    contradictions.push_back(concat(context.file, " says that the context length is ", context.value,
                                    ", the graph's tables reach to ", *graph.context_length, "; ",
                                    *graph.context_length, " is taken"));
  }
  const bool has_vocabulary = graph.vocabulary && !statements.vocabulary.empty();
  if (has_vocabulary && statements.vocabulary[0].value != *graph.vocabulary) {
    const auto& vocabulary = statements.vocabulary[0];
    contradictions.push_back(concat(vocabulary.file, " says that there are ", vocabulary.value,
                                    " tokens, the graph embeds ", *graph.vocabulary,
                                    "; the graph's are taken"));
  }
}

}  // namespace

std::vector<std::string> find_contradictions(const std::filesystem::path& folder, const GraphFacts& graph) {
  Statements statements;
  const json genai = read_object(folder / "genai_config.json");
  take_ids(part(genai, "model"), "genai_config.json", statements);
  take(part(genai, "model"), "context_length", "genai_config.json", statements.context);
  take(part(genai, "model"), "vocab_size", "genai_config.json", statements.vocabulary);
  take_ids(read_object(folder / "generation_config.json"), "generation_config.json", statements);
  take_model(read_object(folder / "config.json"), "config.json", statements);
  take_tokenizer(read_object(folder / "tokenizer_config.json"), "tokenizer_config.json", statements);

  std::vector<std::string> contradictions;
  compare_eos(statements.eos, contradictions);
  compare("the token that begins texts", statements.bos, contradictions);
  compare("the context length", statements.context, contradictions);
  compare_with_graph(statements, graph, contradictions);
  return contradictions;
}

}  // namespace quern::artifact
