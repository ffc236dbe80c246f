#include "passes/quantize/static_activations.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "calibrate/activation_runner.h"
#include "calibrate/observer.h"
#include "calibrate/samples.h"
#include "calibrate/table.h"
#include "ir/activation_scheme.h"
#include "ir/products.h"
#include "ir/quantize.h"
#include "ir/rewriter.h"
#include "passes/canonicalize/to_decoder.h"
#include "passes/quantize/balance_channels.h"
#include "passes/quantize/needs_data.h"
#include "passes/weights/materialize.h"

namespace quern::passes {
namespace {

using calibrate::Observer;

struct Wanted {
  std::string codes;
  ClipRule clip;
};

Wanted wanted_of(const Node& linear) {
  const std::string text = linear.string_attribute(kStaticActivations, "");
  const size_t space = text.find(' ');
  return {text.substr(0, space), parse_clip_rule(text.substr(std::min(text.size(), space + 1)))};
}

// The extremes that codes are to reach; both include 0.
ValueRange limits_of(const Observer& seen, const ClipRule& clip, bool symmetric) {
  const calibrate::MagnitudeHistogram& histogram = seen.histogram();
  ValueRange range{std::min(0.0F, seen.min()), std::max(0.0F, seen.max())};
  double limit = 0;
  switch (clip.kind) {
    case ClipKind::None:
      return range;
    case ClipKind::Percentile: {
      if (!symmetric) {
        const double tail = (1 - clip.percentile / 100) / 2;
        return {std::clamp(static_cast<float>(histogram.value_at(tail)), range.min, 0.0F),
                std::clamp(static_cast<float>(histogram.value_at(1 - tail)), 0.0F, range.max)};
      }
      limit = histogram.magnitude_at(clip.percentile / 100);
      break;
    }
    case ClipKind::MeanSquare:
      limit = histogram.least_error_limit(8);
      break;
    case ClipKind::Divergence:
      limit = histogram.entropy_limit(8);
      break;
  }
  const auto most = static_cast<float>(limit);
  return {std::max(range.min, -most), std::min(range.max, most)};
}

ActivationScheme scheme_of(const Observer& seen, const Wanted& wanted) {
  // What is never negative, as behind a Relu, leaves half of symmetric codes unused.
  const bool symmetric = wanted.codes == "auto" ? seen.min() < 0 : !wanted.codes.ends_with("asymmetric");
  const ValueRange range = limits_of(seen, wanted.clip, symmetric);
  ActivationScheme scheme{.kind = ActivationScheme::Kind::Static};
  if (symmetric) {
    scheme.scale = std::max(range.max, -range.min) / 127.0F;
    scheme.lowest = -127;
    scheme.highest = 127;
  } else {
    scheme.scale = (range.max - range.min) / 255.0F;
    const float zero = scheme.scale > 0 ? std::nearbyint(-range.min / scheme.scale) : 0.0F;
    scheme.lowest = -static_cast<int64_t>(zero);
    scheme.highest = 255 + scheme.lowest;
  }
  // An activation that was 0 in all samples: any scale stands for it.
  if (!(scheme.scale > 0)) scheme.scale = 1.0F;
  return scheme;
}

bool is_to_see(const Node* node) {
  return is_product(*node) && node->has_attribute(kStaticActivations);
}

// What the model's activations are like now, by name.
std::map<std::string, Observer> observe(const Graph& graph, const std::vector<std::string>& taps,
                                        PassContext& context) {
  const std::unique_ptr<Graph> model = graph.clone();
  Rewriter rewriter(*model);
  for (Node* node : model->nodes()) {
    if (node->is("QuantizeWeight", kQuernDomain)) rewriter.replace(node->output(), node->input(0));
    if (is_to_see(node)) rewriter.remove_attribute(node, kStaticActivations);
  }
  rewriter.commit();
  MaterializeWeights().run(*model, context);
  const calibrate::Samples& samples = *context.samples;
  calibrate::ActivationRunner runner(*model, taps, calibrate::runner_options(samples, context.threads));
  std::map<std::string, Observer> seen;
  for (int64_t i = 0; i < samples.count(); ++i) {
    context.report_progress("ranges of activations",
                            static_cast<double>(i) / static_cast<double>(samples.count()));
    runner.run(samples, i, [&](const calibrate::ActivationRows& rows) { seen[taps[rows.tap]].add(rows); });
  }
  return seen;
}

}  // namespace

StaticActivations::StaticActivations()
    : Pass("static-activations", "find one scale for all tokens of each activation") {}

PassReport StaticActivations::run(Graph& graph, PassContext& context) {
  PassReport report;
  std::vector<Node*> linears;
  for (Node* node : graph.nodes()) {
    if (is_to_see(node)) linears.push_back(node);
  }
  if (linears.empty()) return report;
  if (context.samples == nullptr && context.table == nullptr) {
    throw_error(ErrorCode::InvalidArgument, kStaticNeedsData);
  }
  std::map<std::string, Observer> seen;
  if (context.samples != nullptr) {
    std::vector<std::string> taps;
    for (const Node* linear : linears) {
      const std::string& name = linear->input(0)->name();
      if (std::find(taps.begin(), taps.end(), name) == taps.end()) taps.push_back(name);
    }
    seen = observe(graph, taps, context);
  } else {
    for (const Node* linear : linears) {
      if (!linear->has_attribute(kScaledAttribute)) continue;
      throw_error(ErrorCode::InvalidArgument,
                  "static activations after smooth or awq need --calibration-data FILE: the table knows "
                  "ranges as they "
                  "were before channels were scaled");
    }
    seen = context.table->tensors;
  }
  Rewriter rewriter(graph);
  for (Node* linear : linears) {
    const std::string& name = linear->input(0)->name();
    const auto found = seen.find(name);
    if (found == seen.end() && context.samples == nullptr) {
      throw_error(ErrorCode::InvalidArgument, "the calibration table has nothing about '", name,
                  "'; it was made of another model or by another version");
    }
    ActivationScheme scheme{.kind = ActivationScheme::Kind::Token};
    if (found == seen.end() || found->second.rows() == 0) {
      report.notes.push_back(concat("no sample reached '", name, "': it is rounded per token"));
    } else {
      scheme = scheme_of(found->second, wanted_of(*linear));
    }
    rewriter.remove_attribute(linear, kStaticActivations);
    if (linear->has_attribute(kScaledAttribute)) rewriter.remove_attribute(linear, kScaledAttribute);
    for (const auto& [key, value] : to_attributes(scheme)) rewriter.set_attribute(linear, key, value);
    ++report.changes;
  }
  rewriter.commit();
  return report;
}

}  // namespace quern::passes
