#include "calibrate/features.h"

#include <algorithm>
#include <memory>

#include "calibrate/graph_model.h"
#include "ir/error.h"

namespace quern::calibrate {

bool gives_features(const Graph& graph) {
  const auto& outputs = graph.outputs();
  const auto is_logits = [](const GraphOutput& output) { return output.name == "logits"; };
  const auto is_float = [](const GraphOutput& output) { return is_floating(output.value->dtype()); };
  if (std::any_of(outputs.begin(), outputs.end(), is_logits)) return false;
  const auto first = std::find_if(outputs.begin(), outputs.end(), is_float);
  if (first == outputs.end() || !first->value->has_shape() || first->value->shape().size() != 3) return false;
  const auto width = first->value->shape().back().as_constant();
  if (!width) return false;
  try {
    return *width < table_rows(TokenInputs(graph).ids());
  } catch (const Error&) {
    return false;  // an input that token ids cannot fill
  }
}

TensorSamples feature_samples(const Graph& graph, const TokenData& data, const WindowProtocol& protocol,
                              int64_t most) {
  protocol.check();
  const auto inputs = std::make_shared<const TokenInputs>(graph);
  data.check_ids(table_rows(inputs->ids()));
  auto windows = std::make_shared<std::vector<std::vector<int64_t>>>();
  const auto is_full = [&] { return most > 0 && static_cast<int64_t>(windows->size()) >= most; };
  for (const Document& document : data.documents) {
    WindowProtocol own = protocol;
    own.opening = document.opening;
    // As if a token followed: nothing is predicted here, and the last one has features, too.
    const std::vector<Window> cut = cut_windows(static_cast<int64_t>(document.ids.size()) + 1, own);
    for (const Window& window : cut) {
      if (is_full()) break;
      const auto begin = document.ids.begin();
      std::vector<int64_t>& ids = windows->emplace_back(begin, begin + window.opening);
      ids.insert(ids.end(), begin + window.begin, begin + window.begin + window.length - window.opening);
    }
  }
  if (windows->empty()) throw_error(ErrorCode::BadData, "'", data.source, "' holds no tokens");
  return {
      .count = static_cast<int64_t>(windows->size()),
      .inputs = [inputs, windows](int64_t first,
                                  int64_t) { return inputs->fill((*windows)[static_cast<size_t>(first)]); },
      .are_texts = true};
}

}  // namespace quern::calibrate
