#include "passes/weights/tie_weights.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "ir/rewriter.h"
#include "passes/weights/weight_sites.h"
#include "passes/weights/weight_view.h"

namespace quern::passes {
namespace {

constexpr int64_t kSamples = 64;

// Shape, type and some elements: equal matrices have equal keys.
std::string key_of(const WeightSite& site, const WeightView& view) {
  std::string key = concat(site.rows, "x", site.cols, to_string(site.value->dtype()), ":");
  for (int64_t i = 0; i < kSamples && site.rows * site.cols > 0; ++i) {
    // Strides prime to most sizes, so that the samples do not lie in a few columns.
    const float value = view.at(i * 7919 % site.rows, i * 104729 % site.cols);
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return key;
}

bool equal(const WeightView& a, const WeightView& b) {
  constexpr int64_t kBlockBytes = int64_t{4} << 20;
  const int64_t cols = a.cols();
  const int64_t step = std::max<int64_t>(1, kBlockBytes / (4 * std::max<int64_t>(1, cols)));
  std::vector<float> left;
  std::vector<float> right;
  for (int64_t row = 0; row < a.rows(); row += step) {
    const int64_t count = std::min(step, a.rows() - row);
    left.resize(static_cast<size_t>(count * cols));
    right.resize(left.size());
    a.read_rows(row, count, left);
    b.read_rows(row, count, right);
    // Bytes, so that NaNs are equal to themselves.
    if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

struct Candidate {
  const WeightSite* site;
  WeightView view;
};

bool tie(const WeightSite& site, const WeightSite& to, Rewriter& rewriter) {
  // A sub-graph's weight is out of sight of the graphs around it.
  if (site.value->graph() != to.value->graph()) return false;
  for (const Use& use : site.uses) rewriter.set_input(use.node, static_cast<size_t>(use.input), to.value);
  return true;
}

}  // namespace

TieWeights::TieWeights()
    : Pass("tie-weights", "keep weights once that are stored twice, transposed or not") {}

PassReport TieWeights::run(Graph& graph, PassContext& context) {
  PassReport report;
  std::vector<WeightSite> sites = find_weight_sites(graph);
  // Embeddings first: what is tied to one is called by its name.
  std::stable_sort(sites.begin(), sites.end(),
                   [](const WeightSite& a, const WeightSite& b) { return a.is_embedding > b.is_embedding; });
  std::map<std::string, std::vector<Candidate>> kept;
  for (size_t i = 0; i < sites.size(); ++i) {
    const WeightSite& site = sites[i];
    context.report_progress("looking for tied weights",
                            static_cast<double>(i) / static_cast<double>(sites.size()));
    const std::optional<WeightView> view = WeightView::of(*site.value);
    if (!view) continue;
    std::vector<Candidate>& candidates = kept[key_of(site, *view)];
    const auto twin = std::find_if(candidates.begin(), candidates.end(),
                                   [&](const Candidate& candidate) { return equal(candidate.view, *view); });
    if (twin == candidates.end()) {
      candidates.push_back({&site, *view});
      continue;
    }
    Rewriter rewriter(*site.value->graph());
    if (!tie(site, *twin->site, rewriter)) continue;
    rewriter.commit();
    report.notes.push_back(concat("'", site.name, "' is '", twin->site->name, "': kept once"));
    ++report.changes;
  }
  return report;
}

}  // namespace quern::passes
