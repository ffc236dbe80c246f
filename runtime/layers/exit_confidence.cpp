#include "runtime/layers/exit_confidence.h"

#include <algorithm>
#include <cmath>

#include "ir/error.h"
#include "runtime/layers/blocks.h"

namespace quern::runtime {
namespace {

struct Likeliest {
  double first = 0, second = 0, entropy = 0;  // probabilities; nats
};

Likeliest likeliest(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0, weighted = 0, second = 0;
  bool seen_top = false;
  for (const float logit : logits) {
    const double d = static_cast<double>(logit) - top, e = std::exp(d);
    sum += e;
    weighted += e > 0 ? e * d : 0;
    if (logit == top && !seen_top) {
      seen_top = true;
    } else {
      second = std::max(second, e);
    }
  }
  return {1 / sum, second / sum, std::log(sum) - weighted / sum};
}

}  // namespace

double confidence_of(ExitConfidence confidence, std::span<const float> logits) {
  if (confidence == ExitConfidence::Always) return 1;
  const Likeliest found = likeliest(logits);
  switch (confidence) {
    case ExitConfidence::MaxProbability:
      return found.first;
    case ExitConfidence::Margin:
      return found.first - found.second;
    case ExitConfidence::Entropy:
      return 1 - found.entropy / std::log(static_cast<double>(std::max<size_t>(2, logits.size())));
    default:
      throw_error(ErrorCode::Internal, "logits alone do not tell ", to_string(confidence));
  }
}

std::vector<int64_t> exits_in_use(const Graph& graph, const ExitRule& rule, int64_t layers) {
  std::vector<int64_t> there = exits_of(graph);
  std::erase_if(there, [&](int64_t layer) { return layer >= layers; });
  if (there.empty()) {
    throw_error(ErrorCode::InvalidArgument,
                "the model has no exit heads; `quern convert --exit-heads` inserts them");
  }
  if (rule.layers.empty()) return there;
  for (const int64_t layer : rule.layers) {
    if (std::find(there.begin(), there.end(), layer) == there.end())
      throw_error(ErrorCode::InvalidArgument, "the model has no exit head behind layer ", layer);
  }
  if (!std::is_sorted(rule.layers.begin(), rule.layers.end()))
    throw_error(ErrorCode::InvalidArgument, "exits must be given in the order of their layers");
  return rule.layers;
}

}  // namespace quern::runtime
