#include "calibrate/exit_calibration.h"

#include <algorithm>
#include <cmath>

#include "ir/error.h"
#include "runtime/generate/sampler.h"

namespace quern::calibrate {
namespace {

using runtime::Sequence;
using runtime::SequenceStep;

double nll_of(std::span<const float> logits, int64_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return std::log(sum) - (static_cast<double>(logits[static_cast<size_t>(token)]) - top);
}

// a log(a / b) + (1 - a) log((1 - a) / (1 - b))
double divergence(double a, double b) {
  const auto part = [](double x, double y) { return x > 0 ? x * std::log(x / y) : 0; };
  return part(a, b) + part(1 - a, 1 - b);
}

// P(Binomial(n, p) <= k)
double binomial_at_most(int64_t k, int64_t n, double p) {
  double sum = 0;
  const double nd = static_cast<double>(n);
  for (int64_t i = 0; i <= std::min(k, n); ++i) {
    const auto id = static_cast<double>(i);
    sum += std::exp(std::lgamma(nd + 1) - std::lgamma(id + 1) - std::lgamma(nd - id + 1) + id * std::log(p) +
                    (nd - id) * std::log1p(-p));
  }
  return std::min(1.0, sum);
}

std::vector<double> usual_thresholds() {
  std::vector<double> thresholds;
  for (int i = 20; i >= 1; --i) thresholds.push_back(0.05 * i);
  return thresholds;
}

}  // namespace

double hoeffding_bentkus_p(double mean, int64_t n, double alpha) {
  if (!(alpha > 0 && alpha < 1) || n < 1) return mean <= alpha && alpha >= 1 ? 0 : 1;
  const auto nd = static_cast<double>(n);
  const double hoeffding = std::exp(-nd * divergence(std::min(mean, alpha), alpha));
  // A little less than the product, so that 0.29999999 n of 100 is not the 31st.
  const auto most = static_cast<int64_t>(std::ceil(nd * mean - 1e-9));
  const double bentkus = std::exp(1.0) * binomial_at_most(most, n, alpha);
  return std::min({1.0, hoeffding, bentkus});
}

ExitEvaluator::ExitEvaluator(runtime::Session& session, const Graph& graph, const runtime::ExitRule& rule,
                             TokenWindows windows, const ExitEvaluation& options)
    : session_(session), graph_(graph), rule_(rule), windows_(std::move(windows)), options_(options) {
  const auto least = static_cast<size_t>(std::max<int64_t>(0, options.prompt)) + 2;
  std::erase_if(windows_, [&](const std::vector<int64_t>& window) { return window.size() < least; });
  if (windows_.empty()) {
    throw_error(ErrorCode::BadData, "no piece of the text has the ", least,
                " tokens that are the least to measure exits on");
  }
  whole_model();
}

void ExitEvaluator::whole_model() {
  for (const std::vector<int64_t>& window : windows_) {
    Sequence sequence = session_.new_sequence();
    const SequenceStep all{.sequence = &sequence,
                           .tokens = std::span(window).first(window.size() - 1),
                           .logits = runtime::LogitsFor::All};
    session_.run({&all, 1});
    std::vector<int64_t>& likeliest = likeliest_.emplace_back();
    std::vector<double>& nll = nll_.emplace_back();
    for (size_t p = 0; p + 1 < window.size(); ++p) {
      const std::span<const float> logits = session_.logits(0, static_cast<int64_t>(p));
      likeliest.push_back(runtime::argmax(logits));
      nll.push_back(nll_of(logits, window[p + 1]));
    }
  }
}

void ExitEvaluator::evaluate_batch(runtime::EarlyExitDecoder& decoder, const runtime::ExitRule& rule,
                                   size_t first, size_t count, ExitQuality& quality) {
  const auto prompt = static_cast<size_t>(options_.prompt);
  std::vector<Sequence> sequences;
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < count; ++i) sequences.push_back(session_.new_sequence());
  if (prompt > 0) {
    for (size_t i = 0; i < count; ++i) {
      steps.push_back({.sequence = &sequences[i],
                       .tokens = std::span(windows_[first + i]).first(prompt),
                       .logits = runtime::LogitsFor::None});
    }
    session_.run(steps);
  }
  struct Sums {
    double nll = 0, full = 0;
    int64_t differ = 0, tokens = 0;
  };
  std::vector<Sums> sums(count);
  std::vector<size_t> windows;
  std::vector<double> thresholds;
  for (size_t p = prompt;; ++p) {
    steps.clear();
    windows.clear();
    thresholds.clear();
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int64_t>& window = windows_[first + i];
      if (p + 1 >= window.size()) continue;
      windows.push_back(i);
      steps.push_back({.sequence = &sequences[i], .tokens = std::span(window).subspan(p, 1)});
      thresholds.push_back(rule.threshold_at(static_cast<int64_t>(p - prompt),
                                             static_cast<int64_t>(window.size() - 1 - prompt)));
    }
    if (steps.empty()) break;
    decoder.run(steps, thresholds);
    for (size_t s = 0; s < steps.size(); ++s) {
      Sums& sum = sums[windows[s]];
      const size_t window = first + windows[s];
      sum.nll += nll_of(decoder.logits(s), windows_[window][p + 1]);
      sum.full += nll_[window][p];
      sum.differ += runtime::argmax(decoder.logits(s)) != likeliest_[window][p] ? 1 : 0;
      ++sum.tokens;
    }
  }
  for (const Sums& sum : sums) {
    const auto tokens = static_cast<double>(sum.tokens);
    const double loss = options_.risk == ExitRisk::Disagreement ? static_cast<double>(sum.differ) / tokens
                                                                : std::expm1((sum.nll - sum.full) / tokens);
    quality.losses.push_back(std::clamp(loss, 0.0, 1.0));
    quality.tokens += sum.tokens;
    quality.perplexity += sum.nll;
    quality.full_perplexity += sum.full;
    quality.agreement += tokens - static_cast<double>(sum.differ);
  }
}

ExitQuality ExitEvaluator::evaluate(double threshold) {
  runtime::ExitRule rule = rule_;
  rule.threshold = threshold;
  runtime::EarlyExitDecoder decoder(session_, graph_, rule);
  ExitQuality quality;
  const auto batch = static_cast<size_t>(std::max<int64_t>(1, options_.parallel));
  for (size_t first = 0; first < windows_.size(); first += batch) {
    evaluate_batch(decoder, rule, first, std::min(batch, windows_.size() - first), quality);
  }
  const auto tokens = static_cast<double>(quality.tokens);
  quality.windows = windows();
  quality.perplexity = std::exp(quality.perplexity / tokens);
  quality.full_perplexity = std::exp(quality.full_perplexity / tokens);
  quality.agreement /= tokens;
  quality.exits = decoder.statistics();
  return quality;
}

ThresholdResult find_exit_threshold(ExitEvaluator& evaluator, const ThresholdSearch& search) {
  return find_exit_threshold([&](double threshold) { return evaluator.evaluate(threshold); }, search);
}

ThresholdResult find_exit_threshold(const std::function<ExitQuality(double threshold)>& evaluate,
                                    const ThresholdSearch& search) {
  if (!(search.tolerance > 0 && search.tolerance < 1) || !(search.delta > 0 && search.delta < 1)) {
    throw_error(ErrorCode::InvalidArgument, "tolerance ", search.tolerance, " and 1 - confidence level ",
                search.delta, " must lie between 0 and 1");
  }
  const std::vector<double> thresholds = search.thresholds.empty() ? usual_thresholds() : search.thresholds;
  if (!std::is_sorted(thresholds.rbegin(), thresholds.rend()))
    throw_error(ErrorCode::InvalidArgument, "thresholds must descend: the most careful is tested first");
  ThresholdResult result;
  for (const double threshold : thresholds) {
    const ExitQuality quality = evaluate(threshold);
    ThresholdStep step{.threshold = threshold,
                       .average_layers = quality.exits.average_layers(),
                       .perplexity_increase = quality.perplexity_increase(),
                       .accuracy = quality.accuracy};
    for (const double loss : quality.losses) step.risk += loss / static_cast<double>(quality.losses.size());
    step.p_value = hoeffding_bentkus_p(step.risk, quality.windows, search.tolerance);
    step.accepted = step.p_value <= search.delta;
    result.steps.push_back(step);
    if (search.tried) search.tried(step);
    if (!step.accepted) break;
    result.threshold = threshold;
  }
  return result;
}

}  // namespace quern::calibrate
