#include "cli/encoder_exits.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "calibrate/dataset.h"
#include "calibrate/graph_model.h"
#include "cli/files.h"
#include "cli/format.h"
#include "ir/error.h"

namespace quern::cli {
namespace {

constexpr std::string_view kHash = "hash:";

std::vector<int64_t> read_table(const std::string& path) {
  const nlohmann::json object = nlohmann::json::parse(read_input(path), nullptr, false);
  const auto fail = [&] {
    throw_error(ErrorCode::BadData, "'", one_line(path),
                "' has no \"layers_of_tokens\", a list of whole numbers by token id");
  };
  if (!object.is_object() || !object.contains("layers_of_tokens")) fail();
  const nlohmann::json& list = object["layers_of_tokens"];
  if (!list.is_array()) fail();
  std::vector<int64_t> table;
  for (const nlohmann::json& layer : list) {
    if (!layer.is_number_integer()) fail();
    table.push_back(layer.get<int64_t>());
  }
  return table;
}

// How often the tokens of a corpus occur.
std::vector<int64_t> count_tokens(const std::string& path, const LoadedModel& model) {
  const calibrate::TokenData data = calibrate::TokenData::load(
      path, {.tokenizer = model.tokenizer ? &*model.tokenizer : nullptr, .add_special_tokens = false});
  const int64_t vocabulary = calibrate::table_rows(calibrate::TokenInputs(*model.file.graph).ids());
  data.check_ids(vocabulary);
  std::vector<int64_t> counts(static_cast<size_t>(vocabulary));
  for (const calibrate::Document& document : data.documents) {
    for (const int64_t id : document.ids) {
      if (id >= 0 && id < vocabulary) ++counts[static_cast<size_t>(id)];
    }
  }
  return counts;
}

// Behind which layers tokens may leave.
std::vector<int64_t> exits_of(const Arguments& arguments, int64_t layers) {
  if (const auto given = arguments.text("exit-layers")) {
    std::vector<int64_t> exits = parse_ids(*given, "--exit-layers");
    if (exits.empty() || !std::is_sorted(exits.begin(), exits.end()) || exits.front() < 1 ||
        exits.back() > layers)
      throw UsageError(concat("--exit-layers takes layers of ", layers, " in ascending order, such as 2,4"));
    return exits;
  }
  std::vector<int64_t> all(static_cast<size_t>(layers));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

}  // namespace

std::unique_ptr<runtime::EarlyExitEncoder> make_encoder_exits(const runtime::ExitRule& rule,
                                                              const ModelFile& model) {
  return with_context("early exits of '" + model.path.string() + "'",
                      [&] { return std::make_unique<runtime::EarlyExitEncoder>(model.graph, rule); });
}

bool exits_by_hash(const Arguments& arguments) {
  return arguments.text("exit").value_or("").starts_with(kHash);
}

std::unique_ptr<runtime::HashExitEncoder> make_hash_exits(const Arguments& arguments,
                                                          const LoadedModel& model) {
  for (const char* name : {"exit-decay", "exit-classifiers"}) {
    if (arguments.given(name)) throw UsageError(concat("--", name, " says nothing with --exit hash:FILE"));
  }
  if (model.is_decoder()) throw UsageError("--exit hash:FILE is for encoders that classify");
  const std::string path = arguments.text_of("exit").substr(kHash.size());
  return with_context("early exits of '" + model.file.path.string() + "'", [&] {
    const int64_t layers = runtime::find_encoder_layers(*model.file.graph).layers();
    const bool has_table = path.ends_with(".json");
    if (has_table && arguments.given("exit-layers"))
      throw UsageError("--exit-layers says nothing with a table, which says itself where tokens leave");
    std::vector<int64_t> table =
        has_table
            ? read_table(path)
            : runtime::layers_by_frequency(count_tokens(path, model), exits_of(arguments, layers), layers);
    return std::make_unique<runtime::HashExitEncoder>(model.file.graph, std::move(table));
  });
}

}  // namespace quern::cli
