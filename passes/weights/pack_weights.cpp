#include "passes/weights/pack_weights.h"

#include <algorithm>
#include <map>
#include <memory>

#include "ir/products.h"
#include "ir/rewriter.h"
#include "ir/weight_ops.h"
#include "passes/model_failure.h"
#include "passes/weights/weight_sites.h"

namespace quern::passes {
namespace {

// Throws where there is no layout.
PackedSpec spec_of(const WeightSite& site) {
  const Shape shape = {site.rows, site.cols};
  if (const QuantizedTensor* quantized = site.value->quantized()) {
    return PackedSpec::for_quantized(shape, quantized->scheme, quantized->scales.dtype());
  }
  const Node* producer = site.value->producer();
  if (producer != nullptr && producer->is("QuantizeWeight", kQuernDomain)) {
    const QuantizeOptions options = quantize_options(*producer);
    return PackedSpec::for_quantized(shape, options.scheme, options.scale_dtype);
  }
  return PackedSpec::for_float(shape, site.value->dtype());
}

// Convolutions of floats are oneDNN's; and of the few inputs of a group tiles would be padding, for the most
// part.
bool is_read_as_floats(const WeightSite& site) {
  return std::any_of(site.uses.begin(), site.uses.end(), [&](const Use& use) {
    return is_convolution(*use.node) && (!site.is_quantized() || use.node->int_attribute("group", 1) != 1);
  });
}

}  // namespace

PackWeights::PackWeights() : Pass("pack-weights", "lay weights out in the order in which kernels read them") {
  option("floats", &floats_, "Pack weights that are not quantized too.");
}

PassReport PackWeights::run(Graph& graph, PassContext& context) {
  PassReport report;
  std::vector<std::pair<const Node*, std::string>> rejected;
  const std::vector<WeightSite> sites = find_weight_sites(graph, &rejected);
  for (const auto& [node, reason] : rejected) context.explain_failure(report, *node, reason);
  std::map<Graph*, std::unique_ptr<Rewriter>> rewriters;
  for (const WeightSite& site : sites) {
    if (site.is_packed() || (!floats_ && !site.is_quantized())) continue;
    if (is_read_as_floats(site)) {
      context.explain_failure(report, *site.uses.front().node, "'", site.name,
                              "': convolutions of floats, or in groups, read it as it is");
      continue;
    }
    try {
      spec_of(site);
    } catch (const Error& error) {
      rethrow_unless_of_model(error);
      context.explain_failure(report, *site.uses.front().node, "'", site.name, "': ", error.message());
      continue;
    }
    auto& rewriter = rewriters[site.value->graph()];
    if (!rewriter) rewriter = std::make_unique<Rewriter>(*site.value->graph());
    const Node* packed =
        rewriter->add_node({.op = "PackWeight", .domain = std::string(kQuernDomain), .inputs = {site.value}});
    for (const Use& use : site.uses)
      rewriter->set_input(use.node, static_cast<size_t>(use.input), packed->output());
    ++report.changes;
  }
  for (auto& [each, rewriter] : rewriters) rewriter->commit();
  return report;
}

}  // namespace quern::passes
