#include "cli/self_speculation.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/files.h"
#include "cli/format.h"
#include "runtime/speculate/speculative_decoding.h"

namespace quern::cli {
namespace {

constexpr int64_t kMostLayers = 1 << 16;

runtime::SelfDraft first_layers(int64_t count, bool exit_head, const std::string& text) {
  if (count < 1 || count > kMostLayers) throw UsageError(concat("'", one_line(text), "' names no layers"));
  runtime::SelfDraft draft{.exit_head = exit_head};
  draft.layers.resize(static_cast<size_t>(count));
  std::iota(draft.layers.begin(), draft.layers.end(), 0);
  return draft;
}

runtime::SelfDraft read_draft(const std::string& path) {
  const nlohmann::json object = nlohmann::json::parse(read_input(path), nullptr, false);
  if (!object.is_object() || !object.contains("layers") || !object["layers"].is_array()) {
    throw_error(ErrorCode::BadData, "'", one_line(path),
                "': an object with \"layers\" was expected, as `quern tune-draft -o` writes it");
  }
  runtime::SelfDraft draft;
  for (const auto& layer : object["layers"]) {
    if (!layer.is_number_integer())
      throw_error(ErrorCode::BadData, "'", one_line(path), "': layers are whole numbers");
    draft.layers.push_back(layer.get<int64_t>());
  }
  if (const auto head = object.find("exit_head"); head != object.end()) {
    if (!head->is_boolean())
      throw_error(ErrorCode::BadData, "'", one_line(path), "': \"exit_head\" is true or false");
    draft.exit_head = head->get<bool>();
  }
  return draft;
}

// Nothing where the text is no list of numbers and ranges.
std::optional<std::vector<int64_t>> parse_list(const std::string& text) {
  std::vector<int64_t> layers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t dash = part.find('-');
    const auto first = parse_integer(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : parse_integer(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMostLayers) return {};
    for (int64_t layer = *first; layer <= *last; ++layer) layers.push_back(layer);
    begin = end + 1;
  }
  return layers;
}

}  // namespace

void declare_self_speculation_options(OptionSet& options) {
  options.text(
      "draft-layers", "LAYERS",
      "for self: the layers that guess, such as 0-3,6 counted from 0; first:4; exit:4, with the exit "
      "head behind them; or a file by `quern tune-draft`; default: the first exit head, else the "
      "first third of the layers");
}

runtime::SelfDraft parse_draft_layers(const std::string& text) {
  for (const auto& [prefix, exit_head] : {std::pair{"first:", false}, std::pair{"exit:", true}}) {
    if (!text.starts_with(prefix)) continue;
    return first_layers(parse_integer(text.substr(std::string(prefix).size())).value_or(0), exit_head, text);
  }
  if (auto layers = parse_list(text)) return {.layers = std::move(*layers)};
  if (text.find_first_not_of("0123456789,- ") == std::string::npos) {
    throw UsageError("--draft-layers '" + text +
                     "': layers ascend from 0, such as 0-3,6, which leaves layers 4 and 5 out");
  }
  return read_draft(text);
}

std::string to_text(const runtime::SelfDraft& draft) {
  if (draft.exit_head) return concat("exit:", draft.layers.size());
  std::string text;
  for (size_t i = 0; i < draft.layers.size();) {
    size_t end = i;
    while (end + 1 < draft.layers.size() && draft.layers[end + 1] == draft.layers[end] + 1) ++end;
    text += concat(text.empty() ? "" : ",", draft.layers[i]);
    if (end > i) text += concat("-", draft.layers[end]);
    i = end + 1;
  }
  return text;
}

void prepare_self_speculation(const Arguments& arguments, LoadedModel& model) {
  if (arguments.text("speculate") != "self") return;
  const Graph& graph = *model.file.graph;
  const std::optional<std::string> given = arguments.text("draft-layers");
  const runtime::SelfDraft draft = given ? parse_draft_layers(*given) : runtime::default_self_draft(graph);
  model.program = runtime::compile_self_draft(graph, draft);
}

StrategyFactory with_self(const Arguments& arguments, const runtime::PacingOptions& pacing) {
  const runtime::DraftRule rule = arguments.text_of("draft-rule") == "shared" ? runtime::DraftRule::Shared
                                                                              : runtime::DraftRule::Rejection;
  return [rule, pacing](runtime::Session& session, runtime::Sampler& sampler) {
    return std::make_unique<runtime::SpeculativeDecoding>(
        session, sampler, std::make_unique<runtime::SelfDrafter>(session, sampler.options(), rule), pacing);
  };
}

}  // namespace quern::cli
