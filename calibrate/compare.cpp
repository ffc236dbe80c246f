#include "calibrate/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "calibrate/logit_metrics.h"
#include "ir/error.h"
#include "runtime/cpu/thread_team.h"

namespace quern::calibrate {
namespace {

using Clock = std::chrono::steady_clock;
using Rows = std::span<const float* const>;

// Logits of one model that are held at a time.
constexpr int64_t kChunkBytes = int64_t{64} << 20;
constexpr int64_t kMostChunkRows = 256;

// A window of one document, with the tokens it is scored against.
struct Piece {
  const Document* document;
  Window window;
  std::vector<int64_t> opened = {};  // its ids, where it begins with the document's opening again

  std::span<const int64_t> ids() const {
    if (!opened.empty()) return opened;
    return std::span(document->ids)
        .subspan(static_cast<size_t>(window.begin), static_cast<size_t>(window.length));
  }
};

Piece piece_of(const Document& document, const Window& window) {
  Piece piece{&document, window};
  if (window.opening == 0) return piece;
  const auto ids = document.ids.begin();
  piece.opened.assign(ids, ids + window.opening);
  piece.opened.insert(piece.opened.end(), ids + window.begin,
                      ids + window.begin + window.length - window.opening);
  return piece;
}

// Runs a model and notes the time it takes.
class TimedModel {
 public:
  TimedModel(ScoredModel& model, const char* name) : model_(model), name_(name) {}
  void expect(std::span<const std::span<const int64_t>> sequences) { model_.expect(sequences); }
  void start(std::span<const int64_t> ids, int64_t first) {
    timed([&] { model_.start(ids, first); });
  }
  Rows logits(int64_t first, int64_t count) {
    Rows rows;
    timed([&] { rows = model_.logits(first, count); });
    return rows;
  }
  const char* name() const { return name_; }
  double seconds() const { return seconds_; }

 private:
  template <class Body>
  void timed(Body&& body) {
    const Clock::time_point start = Clock::now();
    with_context(std::string("running the ") + name_, body);
    seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  }
  ScoredModel& model_;
  const char* name_;
  double seconds_ = 0;
};

// Sums over one window or document.
struct PieceSums {
  double weight = 0;
  double reference_nll = 0;
  double candidate_nll = 0;
  double kl = 0;
  double top1 = 0;
  double top5 = 0;
  double reference_right = 0;  // of classifiers: the label was found
  double candidate_right = 0;
};

class Comparer {
 public:
  Comparer(ScoredModel& reference, ScoredModel& candidate, const TokenData& data,
           const CompareOptions& options)
      : width_(reference.width()),
        reference_(reference, "original"),
        candidate_(candidate, "candidate"),
        data_(data),
        options_(options),
        team_(options.threads) {
    result_.kind = reference.kind();
    result_.protocol = options.protocol;
    result_.labelled = data.labelled() && result_.kind == ScoredModel::Kind::Classifier;
  }

  Comparison run() {
    const std::vector<Piece> pieces = result_.kind == ScoredModel::Kind::Classifier ? documents() : windows();
    const auto total = static_cast<int64_t>(pieces.size());
    std::vector<std::span<const int64_t>> sequences;
    for (const Piece& piece : pieces) sequences.push_back(piece.ids());
    reference_.expect(sequences);
    candidate_.expect(sequences);
    for (int64_t i = 0; i < total; ++i) {
      score(pieces[static_cast<size_t>(i)]);
      if (options_.progress) options_.progress(i + 1, total);
    }
    finish();
    return std::move(result_);
  }

 private:
  bool full(const std::vector<Piece>& pieces) const {
    return options_.max_windows > 0 && static_cast<int64_t>(pieces.size()) >= options_.max_windows;
  }

  std::vector<Piece> documents() const {
    std::vector<Piece> pieces;
    for (const Document& document : data_.documents) {
      if (full(pieces)) break;
      if (document.ids.empty())
        throw_error(ErrorCode::BadData, data_.where(document), " has no tokens to classify");
      if (result_.labelled && *document.label >= width_) {
        throw_error(ErrorCode::BadData, data_.where(document), " has the label ", *document.label,
                    "; the model tells ", width_, " classes apart, 0 to ", width_ - 1);
      }
      pieces.push_back({&document, {.length = static_cast<int64_t>(document.ids.size())}});
    }
    return pieces;
  }

  std::vector<Piece> windows() {
    std::vector<Piece> pieces;
    int64_t longest = 0;
    for (const Document& document : data_.documents) {
      WindowProtocol protocol = options_.protocol;
      protocol.opening = document.opening;
      const std::vector<Window> cut = cut_windows(static_cast<int64_t>(document.ids.size()), protocol);
      if (cut.empty()) ++result_.too_short;
      for (const Window& window : cut) {
        if (full(pieces)) break;
        longest = std::max(longest, window.length);
        pieces.push_back(piece_of(document, window));
        result_.protocol.opening = std::max(result_.protocol.opening, document.opening);
      }
    }
    if (pieces.empty()) {
      throw_error(ErrorCode::BadData, "'", data_.source, "' is too short: scoring needs at least 2 tokens");
    }
    if (longest < result_.protocol.context)
      result_.protocol = {.context = longest, .opening = std::min(result_.protocol.opening, longest - 1)};
    position_kl_.resize(static_cast<size_t>(longest));
    position_count_.resize(static_cast<size_t>(longest));
    return pieces;
  }

  void score(const Piece& piece) {
    const bool classifier = result_.kind == ScoredModel::Kind::Classifier;
    const Window& window = piece.window;
    const std::span<const int64_t> ids = piece.ids();
    with_context("scoring " + data_.where(*piece.document), [&] {
      reference_.start(ids, window.first);
      candidate_.start(ids, window.first);
      sums_.emplace_back();
      const int64_t rows = classifier ? 1 : window.length;
      const int64_t chunk = std::clamp<int64_t>(kChunkBytes / 4 / width_, 1, kMostChunkRows);
      for (int64_t first = window.first; first < rows; first += chunk) {
        add_rows(piece, first, std::min(chunk, rows - first));
      }
    });
    result_.tokens_computed += window.length;
  }

  void add_rows(const Piece& piece, int64_t first, int64_t count) {
    const Rows reference = reference_.logits(first, count);
    const Rows candidate = candidate_.logits(first, count);
    rows_.assign(static_cast<size_t>(count), {});
    const auto width = static_cast<size_t>(width_);
    team_.run([&](int thread) {
      const cpu::Range part = cpu::part_of(count, thread, team_.size());
      for (int64_t i = part.begin; i < part.end; ++i) {
        const auto at = static_cast<size_t>(i);
        rows_[at] = compare_rows({reference[at], width}, {candidate[at], width});
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      if (!rows_[at].finite) refuse_row({reference[at], width}, first + i);
      add_row(piece, first + i, rows_[at], reference[at], candidate[at]);
    }
  }

  void add_row(const Piece& piece, int64_t position, const RowComparison& row, const float* reference,
               const float* candidate) {
    PieceSums& sums = sums_.back();
    sums.weight += 1;
    sums.kl += row.kl;
    sums.top1 += row.top1 ? 1 : 0;
    sums.top5 += row.top5 ? 1 : 0;
    result_.agreement.kls.push_back(row.kl);
    if (result_.kind == ScoredModel::Kind::Classifier) {
      if (!result_.labelled) return;
      const int64_t label = *piece.document->label;
      sums.reference_right += row.reference_top == label ? 1 : 0;
      sums.candidate_right += rank_of({candidate, static_cast<size_t>(width_)}, label) == 0 ? 1 : 0;
      return;
    }
    const int64_t target = piece.document->ids[static_cast<size_t>(piece.window.target(position))];
    if (target >= width_) {
      throw_error(ErrorCode::BadData, "token id ", target, " is outside the model's vocabulary of ", width_);
    }
    sums.reference_nll += row.reference_lse - static_cast<double>(reference[target]);
    sums.candidate_nll += row.candidate_lse - static_cast<double>(candidate[target]);
    position_kl_[static_cast<size_t>(position)] += row.kl;
    position_count_[static_cast<size_t>(position)] += 1;
  }

  [[noreturn]] void refuse_row(std::span<const float> reference, int64_t position) const {
    const char* culprit = std::isfinite(log_sum_exp(reference)) ? candidate_.name() : reference_.name();
    throw_error(ErrorCode::InvalidModel, "the ", culprit, "'s logits at position ", position,
                " are NaN or infinite; it cannot be scored");
  }

  template <class Value>
  Figure figure(Value&& value) const {
    std::vector<Cluster> clusters;
    Cluster total;
    for (const PieceSums& sums : sums_) {
      clusters.push_back({value(sums), sums.weight});
      total.sum += clusters.back().sum;
      total.weight += clusters.back().weight;
    }
    return {.value = total.sum / total.weight, .interval = bootstrap_interval(clusters)};
  }

  // A figure of means through a function that grows.
  template <class Function>
  static Figure mapped(Figure figure, Function&& function) {
    figure.value = function(figure.value);
    if (figure.interval)
      figure.interval = Interval{function(figure.interval->low), function(figure.interval->high)};
    return figure;
  }

  void finish() {
    result_.windows = static_cast<int64_t>(sums_.size());
    result_.scored = static_cast<int64_t>(result_.agreement.kls.size());
    result_.reference.seconds = reference_.seconds();
    result_.candidate.seconds = candidate_.seconds();
    if (result_.kind == ScoredModel::Kind::NextToken) finish_perplexity();
    if (result_.labelled) {
      result_.reference.accuracy = figure([](const PieceSums& sums) { return sums.reference_right; });
      result_.candidate.accuracy = figure([](const PieceSums& sums) { return sums.candidate_right; });
    }
    finish_agreement();
    for (const PieceSums& sums : sums_) {
      result_.by_window.push_back(
          {sums.reference_nll / sums.weight, sums.candidate_nll / sums.weight, sums.kl / sums.weight});
    }
  }

  void finish_perplexity() {
    const auto exp = [](double nll) { return std::exp(nll); };
    result_.reference.perplexity =
        mapped(figure([](const PieceSums& sums) { return sums.reference_nll; }), exp);
    result_.candidate.perplexity =
        mapped(figure([](const PieceSums& sums) { return sums.candidate_nll; }), exp);
    result_.perplexity_increase =
        mapped(figure([](const PieceSums& sums) { return sums.candidate_nll - sums.reference_nll; }),
               [](double nll) { return std::expm1(nll); });
    for (size_t i = 0; i < position_kl_.size(); ++i) {
      const auto count = static_cast<double>(position_count_[i]);
      result_.kl_by_position.push_back(count > 0 ? position_kl_[i] / count : 0);
    }
  }

  void finish_agreement() {
    Agreement& agreement = result_.agreement;
    const Figure kl = figure([](const PieceSums& sums) { return sums.kl; });
    agreement.kl_mean = kl.value;
    agreement.kl_interval = kl.interval;
    agreement.top1 = figure([](const PieceSums& sums) { return sums.top1; });
    agreement.top5 = figure([](const PieceSums& sums) { return sums.top5; });
    std::vector<double> sorted = agreement.kls;
    agreement.kl_median = quantile(sorted, 0.5);
    agreement.kl_p99 = quantile(sorted, 0.99);
    agreement.kl_max = quantile(sorted, 1);
  }

  int64_t width_;
  TimedModel reference_;
  TimedModel candidate_;
  const TokenData& data_;
  const CompareOptions& options_;
  cpu::ThreadTeam team_;
  Comparison result_;
  std::vector<PieceSums> sums_;
  std::vector<RowComparison> rows_;
  std::vector<double> position_kl_;
  std::vector<int64_t> position_count_;
};

void check_models(const ScoredModel& reference, const ScoredModel& candidate,
                  const WindowProtocol& protocol) {
  protocol.check();
  if (reference.kind() != candidate.kind()) {
    throw_error(ErrorCode::InvalidArgument,
                "one model is a classifier and the other predicts tokens; they cannot be compared");
  }
  if (reference.width() != candidate.width()) {
    throw_error(ErrorCode::InvalidArgument, "the original gives ", reference.width(),
                " logits and the candidate ", candidate.width(),
                "; only models of one vocabulary can be compared");
  }
  if (reference.kind() == ScoredModel::Kind::Classifier) return;
  for (const ScoredModel* model : {&reference, &candidate}) {
    if (model->context() > 0 && protocol.context > model->context()) {
      throw_error(ErrorCode::InvalidArgument, "windows of ", protocol.context, " tokens are longer than the ",
                  model == &reference ? "original" : "candidate", "'s context of ", model->context(),
                  "; choose a shorter --context");
    }
  }
}

}  // namespace

Comparison compare(ScoredModel& reference, ScoredModel& candidate, const TokenData& data,
                   const CompareOptions& options) {
  check_models(reference, candidate, options.protocol);
  data.check_ids(reference.vocabulary());
  data.check_ids(candidate.vocabulary());
  return Comparer(reference, candidate, data, options).run();
}

}  // namespace quern::calibrate
