#include "calibrate/logit_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quern::calibrate {
namespace {

float greatest(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  for (const float value : logits) {
    if (std::isnan(value)) return value;
    top = std::max(top, value);
  }
  return top;
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const double top = greatest(logits);
  if (!std::isfinite(top)) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value) - top);
  return top + std::log(sum);
}

double negative_log_likelihood(std::span<const float> logits, int64_t target) {
  return log_sum_exp(logits) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

int64_t rank_of(std::span<const float> logits, int64_t index) {
  const float value = logits[static_cast<size_t>(index)];
  int64_t rank = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    rank += logits[i] > value || (logits[i] == value && static_cast<int64_t>(i) < index) ? 1 : 0;
  }
  return rank;
}

RowComparison compare_rows(std::span<const float> reference, std::span<const float> candidate) {
  RowComparison result;
  const double p_top = greatest(reference);
  const double q_top = greatest(candidate);
  if (!std::isfinite(p_top) || !std::isfinite(q_top)) {
    result.finite = false;
    return result;
  }
  double p_sum = 0;
  double q_sum = 0;
  double cross = 0;  // sum of p * (reference logit - candidate logit), before p is normalised
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p_logit = reference[i];
    const double q_logit = candidate[i];
    const double p = std::exp(p_logit - p_top);
    p_sum += p;
    q_sum += std::exp(q_logit - q_top);
    // Where p is 0 its term is 0, also where the difference of the logits is none.
    if (p > 0) cross += p * (p_logit - q_logit);
  }
  result.reference_lse = p_top + std::log(p_sum);
  result.candidate_lse = q_top + std::log(q_sum);
  // Rounding can take equal distributions a little below 0.
  result.kl = std::max(0.0, cross / p_sum - result.reference_lse + result.candidate_lse);
  result.reference_top = std::max_element(reference.begin(), reference.end()) - reference.begin();
  const int64_t rank = rank_of(candidate, result.reference_top);
  result.top1 = rank == 0;
  result.top5 = rank < 5;
  return result;
}

}  // namespace quern::calibrate
