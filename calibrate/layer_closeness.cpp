#include "calibrate/layer_closeness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "calibrate/activation_runner.h"
#include "calibrate/second_moments.h"
#include "calibrate/table.h"
#include "ir/error.h"
#include "ir/products.h"

namespace quern::calibrate {
namespace {

struct Sums {
  double reference = 0;
  double candidate = 0;
  double product = 0;
  double error = 0;
};

std::string reader_of(const Graph& graph, const std::string& value) {
  for (const Use& use : graph.find_value(value)->uses()) {
    if (use.input == 0 && is_product(*use.node)) return use.node->name();
  }
  return {};
}

LayerCloseness closeness(const std::string& name, const Graph& graph, const Sums& sums) {
  LayerCloseness layer{.name = name, .reader = reader_of(graph, name)};
  layer.sqnr_db = sums.error == 0 ? std::numeric_limits<double>::infinity()
                                  : 10 * std::log10(sums.reference / sums.error);
  const double norms = std::sqrt(sums.reference) * std::sqrt(sums.candidate);
  layer.cosine = norms > 0 ? sums.product / norms : (sums.reference == sums.candidate ? 1 : 0);
  return layer;
}

}  // namespace

std::vector<LayerCloseness> compare_layers(const Graph& reference, const Graph& candidate,
                                           const Samples& samples, const LayerClosenessOptions& options) {
  const std::vector<std::string> others = product_inputs(candidate);
  const std::set<std::string> known(others.begin(), others.end());
  std::vector<std::string> taps;
  for (const std::string& name : product_inputs(reference)) {
    if (known.contains(name)) taps.push_back(name);
  }
  if (taps.empty()) {
    throw_error(
        ErrorCode::InvalidArgument,
        "the models have no activation of the same name; layers are compared of a model and what quern made "
        "of it");
  }
  const RunnerOptions runner = runner_options(samples, options.threads);
  ActivationRunner before(reference, taps, runner);
  ActivationRunner after(candidate, taps, runner);
  std::vector<Sums> sums(taps.size());
  for (int64_t sample = 0; sample < samples.count(); ++sample) {
    std::vector<std::vector<float>> expected(taps.size());
    before.run(samples, sample, [&](const ActivationRows& rows) { expected[rows.tap] = copy_rows(rows); });
    after.run(samples, sample, [&](const ActivationRows& rows) {
      const std::vector<float> found = copy_rows(rows);
      const std::vector<float>& wanted = expected[rows.tap];
      if (found.size() != wanted.size()) {
        throw_error(ErrorCode::InvalidArgument, "'", taps[rows.tap], "' has another width in the candidate");
      }
      Sums& sum = sums[rows.tap];
      for (size_t i = 0; i < found.size(); ++i) {
        const auto a = static_cast<double>(wanted[i]);
        const auto b = static_cast<double>(found[i]);
        sum.reference += a * a;
        sum.candidate += b * b;
        sum.product += a * b;
        sum.error += (a - b) * (a - b);
      }
    });
    if (options.progress) options.progress(sample + 1, samples.count());
  }
  std::vector<LayerCloseness> layers;
  for (size_t i = 0; i < taps.size(); ++i) layers.push_back(closeness(taps[i], reference, sums[i]));
  return layers;
}

}  // namespace quern::calibrate
