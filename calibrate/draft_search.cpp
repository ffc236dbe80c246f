#include "calibrate/draft_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/error.h"
#include "runtime/generate/sampler.h"
#include "runtime/layers/layerwise.h"

namespace quern::calibrate {
namespace {

using runtime::Sequence;
using runtime::SequenceStep;

constexpr int64_t kMostLength = 16;
constexpr int64_t kMostTexts = 16;

// Pieces of text with the model's own keys and values, and what it would write at each place.
class Texts {
 public:
  Texts(runtime::Session& session, std::span<const int64_t> tokens, const DraftSearchOptions& options)
      : session_(session) {
    const int64_t context = options.context;
    const int64_t count = std::min(kMostTexts, static_cast<int64_t>(tokens.size()) / context);
    if (count < 1) {
      throw_error(ErrorCode::BadData, "the data has ", tokens.size(), " tokens; one piece of ", context,
                  " is the least that drafts can be tried on");
    }
    const auto step = (static_cast<int64_t>(tokens.size()) - context) / std::max<int64_t>(1, count - 1);
    for (int64_t i = 0; i < count; ++i) {
      const std::span<const int64_t> text =
          tokens.subspan(static_cast<size_t>(i * step), static_cast<size_t>(context));
      texts_.push_back(text);
      Sequence& sequence = whole_.emplace_back(session.new_sequence());
      const SequenceStep all{.sequence = &sequence, .tokens = text, .logits = runtime::LogitsFor::All};
      session.run({&all, 1});
      std::vector<int64_t>& next = next_.emplace_back();
      for (int64_t p = 0; p < context; ++p) next.push_back(runtime::argmax(session.logits(0, p)));
    }
    depth_ = std::clamp<int64_t>(options.positions / count, 1, context - 1);
  }

  int64_t positions() const { return depth_ * static_cast<int64_t>(texts_.size()); }

  // From the end backwards, so that each place still has the model's keys and values before it.
  double agreement(runtime::LayerwiseDecoder& decoder, const runtime::SelfDraft& draft) {
    std::vector<Sequence> sequences;
    for (const Sequence& whole : whole_) sequences.push_back(whole.fork());
    int64_t right = 0;
    const auto last = static_cast<int64_t>(texts_.front().size()) - 1;
    for (int64_t p = last; p > last - depth_; --p) {
      std::vector<SequenceStep> steps;
      for (size_t i = 0; i < texts_.size(); ++i) {
        sequences[i].rewind(sequences[i].size() - p);
        steps.push_back({.sequence = &sequences[i], .tokens = texts_[i].subspan(static_cast<size_t>(p), 1)});
      }
      decoder.run(steps, draft.layers, draft.exit_head ? static_cast<int64_t>(draft.layers.size()) : 0);
      for (size_t i = 0; i < texts_.size(); ++i) {
        right += runtime::argmax(session_.logits(i)) == next_[i][static_cast<size_t>(p)] ? 1 : 0;
      }
    }
    return static_cast<double>(right) / static_cast<double>(positions());
  }

 private:
  runtime::Session& session_;
  std::vector<std::span<const int64_t>> texts_;
  std::vector<Sequence> whole_;
  std::vector<std::vector<int64_t>> next_;
  int64_t depth_ = 0;
};

class Search {
 public:
  Search(const Graph& graph, std::span<const int64_t> tokens, const DraftSearchOptions& options)
      : options_(options),
        session_(runtime::compile_layerwise(graph), options.session),
        decoder_(session_, graph),
        texts_(session_, tokens, options),
        best_(static_cast<size_t>(decoder_.layers())) {
    all_.resize(static_cast<size_t>(decoder_.layers()));
    std::iota(all_.begin(), all_.end(), 0);
    whole_bytes_ = static_cast<double>(decoder_.bytes(all_));
  }

  DraftSearchResult run() {
    const int64_t layers = decoder_.layers();
    for (int64_t k = 1; k < layers; ++k) measure({.layers = {all_.begin(), all_.begin() + k}});
    for (const int64_t exit : decoder_.exits()) {
      measure({.layers = {all_.begin(), all_.begin() + exit}, .exit_head = true});
    }
    std::vector<int64_t> kept = all_;
    while (kept.size() > 1) {
      DraftCandidate least;
      for (size_t i = 0; i < kept.size(); ++i) {
        std::vector<int64_t> rest = kept;
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
        DraftCandidate candidate = measure({.layers = rest});
        if (candidate.agreement > least.agreement || least.draft.layers.empty()) least = candidate;
      }
      kept = least.draft.layers;
    }
    DraftSearchResult result;
    for (DraftCandidate& candidate : best_) {
      if (candidate.draft.layers.empty()) continue;
      result.candidates.push_back(std::move(candidate));
      if (result.candidates.back().speedup > result.candidates[result.best].speedup)
        result.best = result.candidates.size() - 1;
    }
    result.positions = texts_.positions();
    result.measured = measured_;
    return result;
  }

 private:
  DraftCandidate measure(const runtime::SelfDraft& draft) {
    const int64_t exit = draft.exit_head ? static_cast<int64_t>(draft.layers.size()) : 0;
    size_t shared = 0;
    while (shared < draft.layers.size() && draft.layers[shared] == static_cast<int64_t>(shared)) ++shared;
    const std::span<const int64_t> rest = std::span(all_).subspan(shared);
    const double cost = static_cast<double>(decoder_.bytes(draft.layers, exit)) / whole_bytes_;
    const double above = static_cast<double>(decoder_.bytes(rest)) / whole_bytes_;
    const double agreement = texts_.agreement(decoder_, draft);
    DraftCandidate candidate = weigh(draft, agreement, cost, 1 - above, options_.row_cost);
    DraftCandidate& best = best_[draft.layers.size()];
    if (best.draft.layers.empty() || candidate.speedup > best.speedup) best = candidate;
    if (options_.progress) options_.progress(++measured_);
    return candidate;
  }

  const DraftSearchOptions& options_;
  runtime::Session session_;
  runtime::LayerwiseDecoder decoder_;
  Texts texts_;
  std::vector<DraftCandidate> best_;  // by number of layers
  std::vector<int64_t> all_;
  double whole_bytes_ = 1;
  int64_t measured_ = 0;
};

}  // namespace

DraftCandidate weigh(runtime::SelfDraft draft, double agreement, double cost, double shared,
                     double row_cost) {
  DraftCandidate candidate{.draft = std::move(draft), .agreement = agreement, .cost = cost};
  for (int64_t n = 1; n <= kMostLength; ++n) {
    double tokens = 0, reached = 1;
    for (int64_t i = 0; i <= n; ++i, reached *= agreement) tokens += reached;
    const auto guesses = static_cast<double>(n);
    // The last token guessed still has to pass the shared layers, so that all weights are read once more; the
    // others' rows are computed behind those layers alone.
    const double seconds = guesses * cost + 1 + guesses * row_cost * (1 - shared);
    if (const double speedup = tokens / seconds; speedup > candidate.speedup) {
      candidate.speedup = speedup;
      candidate.length = n;
    }
  }
  return candidate;
}

DraftSearchResult search_draft(const Graph& graph, std::span<const int64_t> tokens,
                               const DraftSearchOptions& options) {
  if (options.context < 2 || options.positions < 1) {
    throw_error(ErrorCode::InvalidArgument, "pieces of ", options.context, " tokens and ", options.positions,
                " positions: 2 and 1 are the least");
  }
  return Search(graph, tokens, options).run();
}

}  // namespace quern::calibrate
