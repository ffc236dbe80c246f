// What two models' logits for the same position say about each other.
#pragma once

#include <cstdint>
#include <span>

namespace quern::calibrate {

// ln(sum(exp(logits))), in double. NaN if one is NaN or +infinity, or all are -infinity.
double log_sum_exp(std::span<const float> logits);

// -ln(softmax(logits)[target]).
double negative_log_likelihood(std::span<const float> logits, int64_t target);

// The number of elements that come before `index` by descending value, equal ones by ascending index: 0 for
// the most likely token.
int64_t rank_of(std::span<const float> logits, int64_t index);

struct RowComparison {
  double reference_lse = 0;  // log_sum_exp of either
  double candidate_lse = 0;
  // Kullback-Leibler divergence KL(p || q) = sum p ln(p / q) of the candidate's softmax q from the
  // reference's p, in nats, from all logits, in double; never below 0.
  double kl = 0;
  int64_t reference_top = 0;  // the most likely token, the lowest id of several
  bool top1 = false;          // both name the same one
  bool top5 = false;          // the reference's is among the candidate's five most likely
  bool finite = true;         // false: NaN or +infinity among the logits, or nothing else than -infinity
};

// Both rows must have the same number of elements, at least one.
RowComparison compare_rows(std::span<const float> reference, std::span<const float> candidate);

}  // namespace quern::calibrate
