#include "runtime/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ir/error.h"

namespace quern::runtime {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// e^x for x <= 0, of plain additions and multiplications in a fixed order: the C library's differs in its
// last bits from one platform to another, and with it the token at the edge of a draw. Reduction by ln 2,
// Taylor's series.
double portable_exp(double x) {
  if (!(x > -700)) return 0;
  const double n = std::nearbyint(x * 1.44269504088896340736);
  const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double sum = 1;
  for (int i = 13; i >= 1; --i) sum = 1 + sum * r / i;
  return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace

void SamplingOptions::check() const {
  const auto refuse = [](const char* field, double value, const char* range) {
    throw_error(ErrorCode::InvalidArgument, field, " is ", value, "; it must be ", range);
  };
  // Each condition is written so that NaN fails it.
  if (!(temperature > 0 && std::isfinite(temperature))) refuse("temperature", temperature, "more than 0");
  if (vocabulary < 0) refuse("vocabulary", static_cast<double>(vocabulary), "0 (all) or more");
  if (top_k < 0) refuse("top_k", static_cast<double>(top_k), "0 (all) or more");
  if (!(top_p > 0 && top_p <= 1)) refuse("top_p", top_p, "more than 0 and at most 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("min_p", min_p, "from 0 to 1");
  if (!(repetition_penalty > 0 && std::isfinite(repetition_penalty))) {
    refuse("repetition_penalty", repetition_penalty, "more than 0");
  }
}

int64_t argmax(std::span<const float> logits) {
  int64_t best = 0;
  float greatest = kMinusInfinity;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > greatest) {
      greatest = logits[i];
      best = static_cast<int64_t>(i);
    }
  }
  return best;
}

int64_t draw(std::span<const TokenProbability> distribution, RandomStream& random) {
  double left = random.next_uniform();
  for (const TokenProbability& candidate : distribution) {
    left -= candidate.probability;
    if (left < 0) return candidate.id;
  }
  // Rounding: the probabilities summed to a little less than the draw.
  for (size_t i = distribution.size(); i-- > 0;) {
    if (distribution[i].probability > 0) return distribution[i].id;
  }
  return distribution.back().id;
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  options_.check();
}

std::span<const float> Sampler::penalized(std::span<const float> logits, std::span<const int64_t> history) {
  logits = choosable(logits);
  if (options_.repetition_penalty == 1.0f) return logits;
  scores_.assign(logits.begin(), logits.end());
  seen_.assign(logits.size(), 0);
  for (const int64_t id : history) {
    if (id < 0 || static_cast<size_t>(id) >= scores_.size()) continue;
    const auto i = static_cast<size_t>(id);
    if (seen_[i] != 0) continue;
    seen_[i] = 1;
    scores_[i] =
        scores_[i] < 0 ? scores_[i] * options_.repetition_penalty : scores_[i] / options_.repetition_penalty;
  }
  return scores_;
}

// The k-th greatest score.
float Sampler::lowest_kept(std::span<const float> scores) {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k == 0 || k >= scores.size()) return kMinusInfinity;
  order_.assign(scores.begin(), scores.end());
  // NaN would break the order.
  for (float& score : order_) score = std::isnan(score) ? kMinusInfinity : score;
  std::nth_element(order_.begin(), order_.begin() + static_cast<int64_t>(k) - 1, order_.end(),
                   std::greater<>());
  return order_[k - 1];
}

// Keeps a token if those more likely than it reach less than top_p. Sorts no more than it must.
void Sampler::keep_top_p() {
  const auto before = [](const TokenProbability& a, const TokenProbability& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  };
  sorted_ = candidates_;
  double reached = 0;
  size_t kept = 0, sorted = 0, chunk = 128;
  while (kept < sorted_.size() && reached < options_.top_p) {
    if (kept == sorted) {
      const auto from = sorted_.begin() + static_cast<int64_t>(sorted);
      sorted = std::min(sorted_.size(), sorted + chunk);
      const auto to = sorted_.begin() + static_cast<int64_t>(sorted);
      std::partial_sort(from, to, sorted_.end(), before);
      chunk *= 4;
    }
    reached += sorted_[kept++].probability;
  }
  sorted_.resize(kept);
  std::sort(sorted_.begin(), sorted_.end(),
            [](const TokenProbability& a, const TokenProbability& b) { return a.id < b.id; });
  candidates_.swap(sorted_);
}

std::span<const TokenProbability> Sampler::distribution(std::span<const float> logits,
                                                        std::span<const int64_t> history) {
  const std::span<const float> scores = penalized(logits, history);
  candidates_.clear();
  const int64_t best = argmax(scores);
  if (!options_.sample) {
    candidates_.push_back({best, 1.0});
    return candidates_;
  }
  const double top = scores[static_cast<size_t>(best)];
  const float lowest = lowest_kept(scores);
  double total = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!(scores[i] >= lowest)) continue;
    const double weight = portable_exp((scores[i] - top) / options_.temperature);
    if (weight <= 0) continue;
    candidates_.push_back({static_cast<int64_t>(i), weight});
    total += weight;
  }
  // All logits infinite or not numbers: nothing can be told apart.
  if (candidates_.empty()) candidates_.push_back({best, total = 1.0});
  for (TokenProbability& candidate : candidates_) candidate.probability /= total;
  if (options_.top_p < 1) keep_top_p();
  if (options_.min_p > 0) {
    double most = 0;
    for (const TokenProbability& candidate : candidates_) most = std::max(most, candidate.probability);
    std::erase_if(candidates_,
                  [&](const TokenProbability& c) { return c.probability < options_.min_p * most; });
  }
  total = 0;
  for (const TokenProbability& candidate : candidates_) total += candidate.probability;
  for (TokenProbability& candidate : candidates_) candidate.probability /= total;
  return candidates_;
}

int64_t Sampler::next(std::span<const float> logits, std::span<const int64_t> history, RandomStream& random) {
  if (!options_.sample) return argmax(penalized(logits, history));
  return draw(distribution(logits, history), random);
}

}  // namespace quern::runtime
