#include "passes/quantize/culprits.h"

#include <algorithm>
#include <map>
#include <memory>

#include "calibrate/compare.h"
#include "calibrate/decoder_model.h"
#include "calibrate/remembered_model.h"
#include "ir/rewriter.h"
#include "passes/weights/weight_sites.h"
#include "runtime/decoder/program.h"
#include "runtime/decoder/session.h"

namespace quern::passes {
namespace {

struct Restorable {
  std::string name;
  std::string node;
  Value* value = nullptr;  // in the trial graph
  Constant quantized;
  Constant original;
  double kl = 0;  // of the model with this one restored
};

class CulpritSearch {
 public:
  CulpritSearch(const Graph& reference, const Graph& candidate, const calibrate::Samples& samples,
                const CulpritOptions& options)
      : options_(options), trial_(candidate.clone()), original_(runtime::Program::compile(reference)) {
    for (const auto& window : samples.windows) data_.documents.push_back({.ids = window});
    data_.source = samples.source;
    compare_.protocol.context = samples.options.context;
    compare_.threads = options.threads;
    session_ =
        std::make_unique<runtime::Session>(original_, runtime::SessionOptions{.threads = options.threads});
    model_ = calibrate::make_decoder_model(*session_);
    remembered_ = std::make_unique<calibrate::RememberedModel>(*model_);
    match_weights(reference);
  }

  Culprits run() {
    Culprits result;
    calibrate::Comparison whole = measure();
    result.met_already = within(whole);
    if (result.met_already) return finish(result, whole);
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (options_.progress) {
        options_.progress("'" + weights_[i].name + "' restored",
                          static_cast<double>(i) / static_cast<double>(weights_.size()));
      }
      set(weights_[i], true);
      weights_[i].kl = measure().agreement.kl_mean;
      set(weights_[i], false);
    }
    std::stable_sort(weights_.begin(), weights_.end(),
                     [](const Restorable& a, const Restorable& b) { return a.kl < b.kl; });
    size_t restored = 0;
    while (restored < weights_.size() && !within(whole)) {
      set(weights_[restored++], true);
      whole = measure();
    }
    result.found = within(whole);
    std::vector<bool> needed(restored, true);
    // The last one is what met the limit; those before it may have become needless.
    for (size_t i = 0; result.found && i + 1 < restored; ++i) {
      set(weights_[i], false);
      const calibrate::Comparison without = measure();
      needed[i] = !within(without);
      if (needed[i]) {
        set(weights_[i], true);
      } else {
        whole = without;
      }
    }
    for (size_t i = 0; i < restored; ++i) {
      if (!needed[i]) continue;
      result.names.push_back(weights_[i].name);
      result.nodes.push_back(weights_[i].node);
    }
    return finish(result, whole);
  }

 private:
  static Culprits finish(Culprits result, const calibrate::Comparison& comparison) {
    result.kl = comparison.agreement.kl_mean;
    result.perplexity_increase = comparison.perplexity_increase.value;
    return result;
  }

  void match_weights(const Graph& reference) {
    std::map<std::string, const Value*> originals;
    // Sites are looked for in graphs that may be changed; this one is not.
    for (const WeightSite& site : find_weight_sites(const_cast<Graph&>(reference)))
      originals[site.name] = site.value;
    for (const WeightSite& site : find_weight_sites(*trial_)) {
      const auto found = originals.find(site.name);
      if (found == originals.end() || site.value->tensor() != nullptr || !site.value->is_constant()) continue;
      if (!found->second->is_constant()) continue;
      weights_.push_back({site.name, site.uses.front().node->name(), site.value, *site.value->constant(),
                          *found->second->constant()});
    }
    if (weights_.empty()) {
      throw_error(
          ErrorCode::InvalidArgument,
          "no quantized weight of the candidate has the name of one of the original's; culprits are looked "
          "for between a model and what quern made of it");
    }
  }

  void set(Restorable& weight, bool restored) {
    Rewriter rewriter(*trial_);
    rewriter.set_constant(weight.value, restored ? weight.original : weight.quantized);
    rewriter.commit();
  }

  calibrate::Comparison measure() {
    runtime::Session session(runtime::Program::compile(*trial_), {.threads = options_.threads});
    const auto candidate = calibrate::make_decoder_model(session);
    return calibrate::compare(*remembered_, *candidate, data_, compare_);
  }

  bool within(const calibrate::Comparison& comparison) const {
    const bool kl = options_.max_kl < 0 || comparison.agreement.kl_mean <= options_.max_kl;
    const bool perplexity = options_.max_perplexity_increase < 0 ||
                            comparison.perplexity_increase.value <= options_.max_perplexity_increase;
    return kl && perplexity;
  }

  const CulpritOptions& options_;
  std::unique_ptr<Graph> trial_;
  std::shared_ptr<const runtime::Program> original_;
  std::unique_ptr<runtime::Session> session_;
  std::unique_ptr<calibrate::ScoredModel> model_;
  std::unique_ptr<calibrate::RememberedModel> remembered_;
  calibrate::TokenData data_;
  calibrate::CompareOptions compare_;
  std::vector<Restorable> weights_;
};

}  // namespace

Culprits find_culprits(const Graph& reference, const Graph& candidate, const calibrate::Samples& samples,
                       const CulpritOptions& options) {
  if (options.max_kl < 0 && options.max_perplexity_increase < 0) {
    throw_error(ErrorCode::InvalidArgument, "culprits of what? Give a limit: --max-kl or --max-ppl-increase");
  }
  return CulpritSearch(reference, candidate, samples, options).run();
}

}  // namespace quern::passes
